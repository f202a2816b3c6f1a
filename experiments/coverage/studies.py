"""The studies on coverage."""

from __future__ import annotations

from functools import partial
from statistics import fmean
from typing import Any

from experiments.coverage.task import WEIBULL, CoverageTask
from experiments.report.report import Part
from experiments.report.statistics import Column, beside
from experiments.study import Finished, Study, curves, run_study

TASK = CoverageTask()
COLUMNS = (
    Column("NLL", "{kind}_nll", better="lower"),
    Column("coverage", "{kind}_coverage"),
)
TERCILES = tuple(Column(f"{name} spread", f"{{kind}}_coverage_{name}") for name in ("low", "middle", "high"))
WIDTHS = (
    Column("width", "{kind}_width"),
    Column("error of weights", "{kind}_error", better="lower"),
    Column("error of weights, given y", "{kind}_error_given", better="lower"),
)
_SOFT: dict[str, Any] = {"objective": "soft", "batch_size": 256, "max_epochs": 5, "learning_rate": 0.02}
_ELBO: dict[str, Any] = {**_SOFT, "objective": "elbo"}
_FIXED: dict[str, Any] = {"family": "weibull", "width": "fixed", "spread": WEIBULL / 10}


def _ignorance_summary(finished: Finished) -> list[Part]:
    """Say in three sentences whose intervals hold; nothing where LaplacePosterior is not among the rows."""
    rows, levels = dict.fromkeys(finished.rows), list(finished.study.levels)
    if "soft, LaplacePosterior" not in rows:
        return []
    coverage = {row: [fmean(finished.values(row, COLUMNS[1], level)) for level in levels] for row in rows}
    laplace = coverage.pop("soft, LaplacePosterior")
    coverage.pop("soft, temperature", None)  # as soft
    shares = ", ".join(f"{share:.0%} from {level} items" for level, share in zip(levels, laplace, strict=True))
    ranges = "; ".join(f"{row}: {min(shares):.0%} to {max(shares):.0%}" for row, shares in coverage.items())
    text = (
        f"Of the 90 % intervals of LaplacePosterior these hold the true weight: {shares}. Other intervals do not hold "
        f"what they say ({ranges}). Only the scores are unknown here, and only LaplacePosterior draws them: believe an "
        f"interval where all that is unknown was drawn."
    )
    return [Part(text=text)]


NOISE = Study(
    name="coverage-noise",
    title="Noise in the attention: do 90 % intervals hold the true weights?",
    text=(
        "W = softmax(q'k + s(u) e) over 6 keys, e standard normal, s = .1 + 1.9 sigmoid(2u) of an observed u; y = W V "
        "+ .1 noise in 4 dimensions; 20 000 training items, 2 000 for validation and test each. Scores are a product "
        "of projected queries (q and u) and keys. Coverage: share of true weights inside the equal-tailed 90 % "
        "interval of draws that have not seen y, of all items and by the third of the true spread s. Width: mean width "
        "of the intervals. Error of weights: root mean square error of the mean weights, and given y, with draws "
        "weighted by the likelihood. NLL of an item of y, by 1 000 draws of W. The noise of y is a network of the "
        "query, except where one noise is learned. Widths: fixed, one that is learned, or a network of the query. "
        "ELBO: prior Gamma(1, 1) for Weibull, LogNormal(0, 1) for LogNormal. Evidence: by {config.draws} draws, "
        "corrected but where it says so, batches of 64, 2 epochs, learning rate up to .01; others batches of 256, "
        "5 epochs, up to .02; it falls to 0. These were chosen by the validation NLL of one seed. Truth: scores, "
        "spread and noise as they are."
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
        "evidence, 128 draws, not corrected": {"draws": 128, "correction": "none"},
        "evidence, Weibull": {"family": "weibull"},
    },
    readings={
        "MC dropout": ("MC dropout", "dropout"),
        "soft, temperature": ("soft", "scaled"),
        "soft, LaplacePosterior": ("soft", "laplace"),
        "evidence, LaplacePosterior": ("evidence", "laplace"),
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
        "with a standard normal prior, which is twice as wide as the truth. LaplacePosterior: Laplace over the 16 "
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
        "soft, LaplacePosterior": ("soft", "laplace"),
    },
    seeds=24,
    columns=(*COLUMNS, *beside(*WIDTHS)),
    parts=(_ignorance_summary, partial(curves, aims={"coverage": 0.9})),
)

MODELS = Study(
    name="coverage-models",
    title="Other models, and the number of draws: do 90 % intervals hold the true weights?",
    text=(
        "W = softmax(q'k + s(u) e) with learned scores, as in coverage-noise, and other keys, spreads s and "
        "observations y around W V. Multinomial: 20 counts in 4 classes, 12 keys, s = .2 + 1.6 sigmoid(2u). Poisson: "
        "3 counts, 6 keys, s = .3 + .3 (u + 2), u within [-2, 2]. Correlated: normal noise of .1 in 4 dimensions, 12 "
        "keys that share half of their variance, s = .2 + 1.2 max(0, 1 - |u| / 2). 20 000 training items, 2 000 for "
        "validation and test each; batches of 64, 2 epochs, learning rate up to .01. Low, middle, high: share of true "
        "weights inside their 90 % interval, by the third of the true spread. Ratio: learned spread over the true one "
        "in that third. Gap: what the draws leave of the log evidence, and signal, what an item says of the noise, in "
        "nats of a validation item. Warned: share of the trainings with a GapWarning. The correction was chosen on "
        "other models (DEVELOPMENT in problems.py)."
    ),
    task=TASK,
    heads=("draws", "model"),
    rows={
        "16, corrected": {"check": True},
        "8, not corrected": {"draws": 8, "correction": "none", "check": True},
    },
    levels={name: {"toy": name} for name in ("multinomial", "poisson", "correlated")},
    seeds=5,
    columns=(
        *COLUMNS,
        *beside(
            *TERCILES,
            *(Column(f"{name} ratio", f"{{kind}}_ratio_{name}") for name in ("low", "middle", "high")),
            *(Column(name, name) for name in ("gap", "signal")),
            Column("warned", "gap_warned"),
            Column("believable", "check_believable"),
        ),
    ),
)

STUDIES = {study.name: study for study in (NOISE, IGNORANCE, MODELS)}

table = partial(run_study, STUDIES)
