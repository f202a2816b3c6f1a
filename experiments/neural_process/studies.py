"""Tables of neural processes."""

from __future__ import annotations

from functools import partial
from typing import Any

from experiments.neural_process.task import KERNELS, NeuralProcessTask
from experiments.report.statistics import Column, beside
from experiments.study import Study, run_study

_BASES = {"soft": "product", "distance": "distance", "heads, then contexts": "heads"}
_KINDS: dict[str, dict[str, Any]] = {
    "": {},
    ", Weibull 300": {"objective": "elbo"},
    ", Weibull 10": {"objective": "elbo", "concentration": 10.0},
    ", evidence": {"objective": "evidence"},
    ", as long as evidence": {"steps": 9000},
}
_QUIET = ("heads, then contexts, Weibull 300", "heads, then contexts, evidence")
NEURAL_PROCESS = Study(
    name="neural-process",
    title="Attentive neural processes: which attention, and what noise in it is worth",
    text=(
        "Functions of a Gaussian process (RBF, lengthscale U[.1, .6], variance U[.1, 1]) at random points of [-2, 2], "
        "observed with noise of .05. Deterministic path, width 64, 8 heads; {config.functions} training functions, "
        "{config.steps} steps of Adam on batches of {config.batch_size}, 3 to 60 context points and 20 targets each. "
        "Numbers: mean log likelihood of a single target value of 128 test functions, given 5, 10, 20 and 60 "
        "points; and given 20 points, of functions with lengthscales U[.05, .1] (short) or U[.6, 1.2] (long), with a "
        "Matern 3/2 kernel, or with noise of .3 more in the context. Rows: products of queries and keys; distances of "
        "the points, with a learned bandwidth a head; products that are normalized over the heads, and then over the "
        "context. Weibull: with concentration 300 or 10, contextual Gamma prior, KL weight .0002. Evidence: LogNormal "
        "weights whose width is a network of the query, by {config.draws} draws for the target set of a function. "
        "Tests: {config.num_samples} draws. Without noise: the same network with the mean attention. As long as "
        "evidence: three times the steps, which take about as long. True process: the process that drew the data."
    ),
    task=NeuralProcessTask(),
    heads=("attention", ""),
    rows={f"{base}{kind}": {"scores": scores, **of} for base, scores in _BASES.items() for kind, of in _KINDS.items()},
    baselines={f"{base}{kind}": base for base in _BASES for kind in _KINDS if kind},
    readings={f"{row}, without noise": (row, "quiet") for row in _QUIET} | {"true process": ("soft", "oracle")},
    columns=[
        *(Column(f"{n} points", f"{{kind}}_same_{n}", better="higher") for n in (5, 10, 20, 60)),
        *beside(*(Column(name, f"{{kind}}_{name}_20", better="higher") for name in list(KERNELS)[1:])),
    ],
)

table = partial(run_study, {NEURAL_PROCESS.name: NEURAL_PROCESS})
