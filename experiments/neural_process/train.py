"""Train a neural process on functions of Gaussian processes, and score it beside the one they were drawn from."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from experiments.harness.training import FITTED, Fitted, fit
from experiments.neural_process import model
from experiments.neural_process.config import NeuralProcessConfig
from experiments.neural_process.model import Batches, Functions, Kernel, TrainedProcess, generate, oracle, predictive
from experiments.report.statistics import Column
from experiments.run import Task
from experiments.study import Study, run_study
from pyro_attention import AttentionGuide, Soft

KERNELS = {
    "same": Kernel(),
    "short": Kernel(lengthscale=(0.05, 0.1)),
    "long": Kernel(lengthscale=(0.6, 1.2)),
    "matern": Kernel(matern=True),
    "noisy": Kernel(noise=0.3),
}
TESTS = [("same", 5), ("same", 10), ("same", 20), ("same", 60), *((name, 20) for name in list(KERNELS)[1:])]
TEST_FUNCTIONS = 128


class NeuralProcessTask(Task[NeuralProcessConfig, dict[str, Functions], TrainedProcess]):
    """Attentive neural processes."""

    config = NeuralProcessConfig
    script = "experiments.neural_process"

    def folder(self, config: NeuralProcessConfig) -> str:
        return f"neural-process/{config.scores}-{config.objective}-{config.seed}"

    def load(self, config: NeuralProcessConfig) -> dict[str, Functions]:
        """Functions of the seed; test functions have their own."""
        tests = {name: generate(kernel, TEST_FUNCTIONS, 2000 + config.seed) for name, kernel in KERNELS.items()}
        val = generate(Kernel(), 128, 1000 + config.seed)
        return tests | {"train": generate(Kernel(), config.functions, config.seed), "val": val}

    def build(self, config: NeuralProcessConfig, data: dict[str, Functions], folder: Path) -> TrainedProcess:  # noqa: ARG002
        return model.build(config)

    def fit(self, trained: TrainedProcess, data: dict[str, Functions], folder: Path) -> Fitted:
        config = trained.config
        train = Batches(data["train"], config.batch_size, max(1, config.steps // config.max_epochs))
        batches: Any = [data["val"].split(contexts) for contexts in (5, 20)]
        val = DataLoader[Any](batches, batch_size=None)
        return fit(
            config, trained.module, train, val, folder=folder, patience=config.max_epochs,
            monitor={"val_loss": "min"}, keep="last", gradient_clip=10.0,
        )  # fmt: skip

    def evaluate(
        self, trained: TrainedProcess, data: dict[str, Functions], fitted: Fitted, folder: Path  # noqa: ARG002
    ) -> dict[str, float]:  # fmt: skip
        soft, found = trained.config.objective == "soft", {}
        quiet = AttentionGuide(trained.model, Soft())
        for name, contexts in TESTS:
            batch, end = data[name].split(contexts), f"{name}_{contexts}"
            draws = 1 if soft else trained.config.num_samples
            found[f"mean_{end}"] = predictive(trained.guide, batch, draws).mean().item()
            # beside them what needs no training, or no draws
            other = oracle(KERNELS[name], data[name], contexts) if soft else predictive(quiet, batch, 1)
            found[f"{'oracle' if soft else 'quiet'}_{end}"] = other.mean().item()
        return found

    def definitions(self, metrics: Mapping[str, float]) -> Mapping[str, str]:
        kinds = {"mean": "", "quiet": ", by the mean attention", "oracle": ", of the true process"}
        text = "log likelihood of a target given {} points, {} functions{}"
        texts = {f"{kind}_{name}_{n}": text.format(n, name, kinds[kind]) for kind in kinds for name, n in TESTS}
        return {name: texts[name] for name in metrics if name in texts} | FITTED


TASK = NeuralProcessTask()
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
        "seen with noise of .05. Deterministic path, width 64, 8 heads; {config.functions} training functions, "
        "{config.steps} steps of Adam on batches of {config.batch_size}, 3 to 60 context points and 20 targets each. "
        "Numbers: mean log likelihood of a target of 128 test functions, each by itself, given 5, 10, 20 and 60 "
        "points; and given 20 points, of functions with lengthscales U[.05, .1] (short) or U[.6, 1.2] (long), with a "
        "Matern 3/2 kernel, or with noise of .3 more in the context. Rows: products of queries and keys; distances of "
        "the points, with a learned bandwidth a head; products that are normalised over the heads, and then over the "
        "context. Weibull: with concentration 300 or 10, contextual Gamma prior, KL weight .0002. Evidence: LogNormal "
        "weights whose width is a network of the query, by {config.draws} draws for the target set of a function. "
        "Tests: {config.num_samples} draws. Without noise: the same network with the mean attention. As long as "
        "evidence: three times the steps, which take about its time. True process: that of the data."
    ),
    task=TASK,
    row="attention",
    rows={f"{base}{kind}": {"scores": scores, **of} for base, scores in _BASES.items() for kind, of in _KINDS.items()},
    against={f"{base}{kind}": base for base in _BASES for kind in _KINDS if kind},
    shows={f"{row}, without noise": row for row in _QUIET} | {"true process": "soft"},
    kinds={f"{row}, without noise": "quiet" for row in _QUIET} | {"true process": "oracle"},
    columns=[Column(f"{n} points", f"{{kind}}_same_{n}", better="higher") for n in (5, 10, 20, 60)],
    more=[Column(name, f"{{kind}}_{name}_20", better="higher") for name in list(KERNELS)[1:]],
)

table = partial(run_study, {NEURAL_PROCESS.name: NEURAL_PROCESS})
