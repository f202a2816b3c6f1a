"""Tables of the comparison of KL estimators: how trainings end, and how noisy gradients are."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from experiments.captioning import evaluation as captioning_evaluation
from experiments.captioning import gradient_noise
from experiments.report.columns import Column, Row, Runs

__all__ = ["DEFINITIONS", "Noise", "RunsByEstimator", "flat_metrics", "noise_rows", "training_rows"]

RunsByEstimator = Mapping[tuple[str, str], Runs]  # by guide and estimator
Noise = Mapping[tuple[str, str], Mapping[str, float]]  # by guide and where it was measured

_COLUMNS = (
    Column("val perplexity", "val_ppl"),
    Column("BLEU-1", "test_bleu_1", 1),
    Column("points %", "test_pointing", 1, 100),  # captions without a digit's name point nowhere
)
_DIVERGED = (
    "share of the trainings whose numbers overflow, or whose best validation perplexity is no better than guessing "
    "among all word pieces"
)
DEFINITIONS = {
    name: f"{text}; over seeds" for name, text in {**captioning_evaluation.DEFINITIONS, "diverged": _DIVERGED}.items()
} | gradient_noise.DEFINITIONS


def training_rows(runs: RunsByEstimator) -> list[Row]:
    """One row a guide and estimator: how many diverged, and means ± standard deviations over the other seeds."""
    return [
        {"guide": guide, "KL": "none" if guide == "soft" else kl.replace("_", " ")}
        | {"diverged": f"{len(found) - len(_kept(found))} of {len(found)}"}
        | {column.name: column.cell(_kept(found)) for column in _COLUMNS}
        for (guide, kl), found in runs.items()
    ]


def noise_rows(noise: Noise) -> list[Row]:
    """One row a guide and point: variance of the gradients by both estimators, ± standard errors."""
    columns = {
        "KL closed form": "kl_variance_closed_form",
        "KL sampled": "kl_variance_sampled",
        "loss closed form": "loss_variance_closed_form",
        "loss sampled": "loss_variance_sampled",
        "mean squared": "gradient_square",
    }
    rows = []
    for (guide, point), found in noise.items():
        row = {"guide": guide, "parameters": point}
        row |= {
            column: f"{found[name]:.2e} ± {found[f'{name}_error']:.0e}" if found[name] else "0"
            for column, name in columns.items()
        }
        row["loss ratio"] = f"{found['loss_variance_ratio']:.3g} ± {found['loss_variance_ratio_error']:.1g}"
        rows.append(row)
    return rows


def flat_metrics(runs: RunsByEstimator, noise: Noise) -> dict[str, float]:
    """The numbers of metrics.json."""
    metrics = {}
    for (guide, kl), found in runs.items():
        kept = _kept(found)
        metrics[f"{guide}/{kl}/diverged"] = 1 - len(kept) / len(found)
        for name in (column.metric for column in _COLUMNS):
            if values := [one[name] for one in kept if name in one]:
                metrics[f"{guide}/{kl}/{name}"] = fmean(values)
    for key, measured in noise.items():
        metrics |= {"/".join((*key, name)): value for name, value in measured.items()}
    return metrics


def _kept(found: Runs) -> Runs:
    return [one for one in found if not one["diverged"]]
