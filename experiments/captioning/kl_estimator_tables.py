"""Tables of the comparison of KL estimators: how trainings end, and how noisy gradients are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from experiments.captioning import evaluation as captioning_evaluation
from experiments.captioning import gradient_noise
from experiments.reporting.statistics import summarise

__all__ = ["Noise", "Runs", "flat_metrics", "noise_rows", "training_rows"]

Runs = Mapping[tuple[str, str], Sequence[Mapping[str, float]]]  # of every seed, by guide and estimator
Noise = Mapping[tuple[str, str], Mapping[str, float]]  # by guide and where it was measured

_COLUMNS = {
    "val perplexity": ("val_ppl", 3, 1.0),
    "BLEU-1": ("test_bleu_1", 1, 1.0),
    "points %": ("test_pointing", 1, 100.0),
}
_DIVERGED = (
    "share of the trainings whose numbers overflow, or whose best validation perplexity is no better than guessing "
    "among all word pieces"
)


def training_rows(runs: Runs) -> list[dict[str, str]]:
    """One row a guide and estimator: how many diverged, and means +- standard deviations over the other seeds."""
    rows = []
    for (guide, kl), found in runs.items():
        kept = _kept(found)
        row = {"guide": guide, "KL": "none" if guide == "soft" else kl.replace("_", " ")}
        row["diverged"] = f"{len(found) - len(kept)} of {len(found)}"
        for column, (metric, digits, factor) in _COLUMNS.items():
            # captions without a digit's name point nowhere
            values = [factor * one[metric] for one in kept if metric in one]
            row[column] = _mean_and_spread(values, digits)
        rows.append(row)
    return rows


def _mean_and_spread(values: Sequence[float], digits: int) -> str:
    if not values:
        return "-"
    summary = summarise(values)
    return f"{summary.mean:.{digits}f}" + (f" +- {summary.spread:.{digits}f}" if summary.count > 1 else "")


def noise_rows(noise: Noise) -> list[dict[str, str]]:
    """One row a guide and point: variance of the gradients by both estimators, +- standard errors."""
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
            column: f"{found[name]:.2e} +- {found[f'{name}_error']:.0e}" if found[name] else "0"
            for column, name in columns.items()
        }
        row["loss ratio"] = f"{found['loss_variance_ratio']:.3g} +- {found['loss_variance_ratio_error']:.1g}"
        rows.append(row)
    return rows


def flat_metrics(runs: Runs, noise: Noise) -> tuple[dict[str, float], dict[str, str]]:
    """The numbers of metrics.json, and what they mean."""
    known = captioning_evaluation.DEFINITIONS | gradient_noise.DEFINITIONS | {"diverged": _DIVERGED}
    metrics = {}
    for key, found in runs.items():
        kept = _kept(found)
        metrics["/".join((*key, "diverged"))] = 1 - len(kept) / len(found)
        for name in ("val_ppl", "test_bleu_1", "test_pointing"):
            values = [one[name] for one in kept if name in one]
            if values:
                metrics["/".join((*key, name))] = math.fsum(values) / len(values)
    for key, measured in noise.items():
        metrics |= {"/".join((*key, name)): value for name, value in measured.items()}
    definitions = {key: known[key.rsplit("/", 1)[1]] for key in metrics}
    return metrics, {
        key: text if key.rsplit("/", 1)[1] in gradient_noise.DEFINITIONS else f"{text}; over seeds"
        for key, text in definitions.items()
    }


def _kept(found: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
    return [one for one in found if not one["diverged"]]
