"""The studies on coverage."""

from __future__ import annotations

from functools import partial
from typing import Any

from experiments.coverage.task import WEIBULL, CoverageTask
from experiments.report.statistics import Column, beside
from experiments.study import Study, curves, run_study

TASK = CoverageTask()
COLUMNS = (
    Column("NLL", "{kind}_nll", better="lower"),
    Column("coverage", "{kind}_coverage"),
)
TERCILES = tuple(Column(f"{name} spread", f"{{kind}}_coverage_{name}") for name in ("low", "middle", "high"))
WIDTHS = (
    Column("width", "{kind}_width"),
    Column("error of W", "{kind}_error", better="lower"),
    Column("given y", "{kind}_error_given", better="lower"),
)
_SOFT: dict[str, Any] = {"objective": "soft", "batch_size": 256, "max_epochs": 5, "learning_rate": 0.02}
_ELBO: dict[str, Any] = {**_SOFT, "objective": "elbo"}
_FIXED: dict[str, Any] = {"family": "weibull", "width": "fixed", "spread": WEIBULL / 10}

NOISE = Study(
    name="coverage-noise",
    title="Noise in the attention: do 90 % intervals hold the true weights?",
    text=(
        "W = softmax(q'k + s(u) e) over 6 keys, e standard normal, s = .1 + 1.9 sigmoid(2u) of an observed u; y = W V "
        "+ .1 noise in 4 dimensions; 20 000 training items, 2 000 for validation and test each. Scores are a product "
        "of projected queries (q and u) and keys. Coverage: share of true weights inside the equal-tailed 90 % "
        "interval of draws that have not seen y, of all items and by the third of the true spread s. Width: mean width "
        "of the intervals. Error of W: root mean square error of the mean weights, and given y, with draws weighted by "
        "the likelihood. NLL of an item of y, by 1 000 draws of W. The noise of y is a network of the query, except "
        "where one noise is learned. Widths: fixed, one that is learned, or a network of the query. ELBO: prior "
        "Gamma(1, 1) for Weibull, LogNormal(0, 1) for LogNormal. Evidence: by 128 draws, batches of 64, 2 epochs, "
        "learning rate up to .01; others batches of 256, 5 epochs, up to .02; it falls to 0. These were chosen by the "
        "validation NLL of one seed. Truth: scores, spread and noise as they are."
    ),
    task=TASK,
    heads=("attention", ""),
    rows={
        "soft, one noise": {**_SOFT, "noise": "one"},
        "soft": {**_SOFT, "laplace": True},
        "MC dropout": {**_SOFT, "dropout": 0.1},
        "ensemble of five": {**_SOFT, "members": 5},
        "ELBO, Weibull k = 10, KL .001": {**_ELBO, **_FIXED, "kl_weight": 1e-3},
        "ELBO, LogNormal 1, KL .001": {**_ELBO, "width": "fixed", "kl_weight": 1e-3},
        "ELBO, learned width, KL .001": {**_ELBO, "kl_weight": 1e-3},
        "ELBO, learned width": _ELBO,
        "evidence, one width": {"width": "one"},
        "evidence, one noise": {"noise": "one"},
        "evidence": {"laplace": True},
        "evidence, Weibull": {"family": "weibull"},
    },
    readings={
        "MC dropout": ("MC dropout", "dropout"),
        "soft, temperature": ("soft", "scaled"),
        "soft, ScorePosterior": ("soft", "laplace"),
        "evidence, ScorePosterior": ("evidence", "laplace"),
        "truth": ("evidence", "truth"),
    },
    seeds=5,
    columns=(*COLUMNS, *beside(*TERCILES, *WIDTHS, Column("validation NLL", "val_nll"))),
)
IGNORANCE = Study(
    name="coverage-ignorance",
    title="Scores that are learned from few items: do 90 % intervals hold the true weights?",
    text=(
        "W = softmax(q'Mk) over 6 keys, M of 4 x 4 normal entries of standard deviation .5, without noise; y = W V + "
        ".5 noise in 3 dimensions, the noise known; 2 000 test items. M is trained by 300 steps of Adam on all items, "
        "with a standard normal prior, which is twice as wide as the truth. ScorePosterior: Laplace over the 16 "
        "numbers. Ensemble: each network on a bootstrap sample of the items. Temperature: of the noise, by validation "
        "items. Coverage: share of true weights inside the equal-tailed 90 % interval of draws that have not seen y. "
        "Error given y: with draws weighted by the likelihood. Each seed has its M."
    ),
    task=TASK,
    heads=("attention", "items"),
    rows={
        "soft": {"objective": "soft", "laplace": True},
        "MC dropout": {"objective": "soft", "dropout": 0.1},
        "ensemble of five": {"objective": "soft", "members": 5},
        "ELBO, Weibull k = 10, KL .001": {"objective": "elbo", "kl_weight": 1e-3, **_FIXED},
    },
    options={
        "toy": "ignorance",
        "noise": "known",
        "batch_size": 5000,
        "learning_rate": 0.05,
        "max_epochs": 1,
        "repeats": 300,
    },
    levels={str(count): {"items": count} for count in (30, 100, 300, 1000, 5000)},
    readings={
        "MC dropout": ("MC dropout", "dropout"),
        "soft, temperature": ("soft", "scaled"),
        "soft, ScorePosterior": ("soft", "laplace"),
    },
    seeds=24,
    columns=(*COLUMNS, *beside(*WIDTHS)),
    parts=(curves,),
)

STUDIES = {study.name: study for study in (NOISE, IGNORANCE)}

table = partial(run_study, STUDIES)
