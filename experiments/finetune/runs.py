"""Trainings of tables, studies and searches: their options, and what is computed from their saved predictions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.datasets.safe_arrays import read_arrays
from experiments.files import DamagedFileError, UserError
from experiments.finetune.config import GlueConfig, GlueName, ManyRuns
from experiments.finetune.metrics import weighted_score
from experiments.finetune.rows import ROWS, SEARCHED
from experiments.harness.sweep import Trainings
from experiments.reporting.statistics import Difference

__all__ = ["example_difference", "run_options"]

_RESAMPLES = 2000


def run_options(config: ManyRuns, task: GlueName, row: str, **changes: Any) -> dict[str, Any]:
    """Options of a training of one row on one task; the setting that was chosen for the row unless changed.

    Raises:
        UserError: No model is given.
    """
    if not config.model:
        raise UserError("model is missing, expected --model FOLDER, of a pretrained model of Hugging Face")
    names = ("model", "learning_rate", "max_epochs", "pooling", "num_samples", "precision")
    shared = {name: getattr(config, name) for name in names}
    share = {"train_share": config.sst2_share} if task == "sst2" else {}
    return {**shared, **share, "keep_weights": False, **ROWS[row], **SEARCHED.get(row, {}), **changes, "task": task}


def example_difference(
    trainings: Trainings[GlueConfig],
    row: Sequence[Any],
    other: Sequence[Any],
    metric: str,
    kinds: tuple[str, str],
    *,
    factor: float = 1.0,
) -> Difference:
    """Mean difference of a metric over seeds, with the interval of resampled test examples, the same ones for both.

    The seeds are those that are there, so the interval says how far the test part decides, not the training.

    Args:
        trainings: Trainings whose predictions are saved.
        row: Parts of the name of a row.
        other: Those of the row to compare it with, on the same task.
        metric: Name of a metric of GLUE.
        kinds: Kind of prediction of either row.
        factor: What the difference is multiplied with.

    Raises:
        UserError: Predictions are missing or damaged.
    """
    found = list[NDArray[np.float64]]()
    counts: NDArray[np.float64] | None = None
    for seed in trainings.seeds:
        scores = []
        for key, kind in zip((row, other), kinds, strict=True):
            outputs, labels = _read(Path(str(trainings.configs[*key, seed].out)) / "predictions.npz", kind)
            if counts is None:
                counts = _counts(len(labels))
            scores.append(weighted_score(metric, _predicted(outputs), labels.astype(float), counts))
        found.append(factor * (scores[0] - scores[1]))
    mean = np.mean(found, 0)
    low, high = np.quantile(mean[1:], (0.025, 0.975))
    return Difference(float(mean[0]), float(low), float(high), float("nan"))


def _counts(items: int) -> NDArray[np.float64]:
    """Every item once, and then resamples."""
    drawn = np.random.default_rng(0).multinomial(items, np.full(items, 1 / items), size=_RESAMPLES)
    return np.vstack([np.ones((1, items)), drawn])


def _read(path: Path, kind: str) -> tuple[NDArray[Any], NDArray[Any]]:
    try:
        arrays = read_arrays(path, remedy="")
        outputs, labels = arrays[f"{kind}_test"], arrays["labels_test"]
        if outputs.ndim != 3 or outputs.dtype.kind != "f" or labels.shape != outputs.shape[1:2]:
            raise ValueError(f"predictions {list(outputs.shape)} of labels {list(labels.shape)}")
        return outputs, labels
    except (OSError, ValueError, KeyError) as error:
        raise DamagedFileError(
            f"{path} cannot be read ({error}), expected the predictions of a training; remove its folder, and the same "
            f"command with --resume makes it again"
        ) from error


def _predicted(outputs: NDArray[Any]) -> NDArray[np.float64]:
    """Class of each item by the mean of its probabilities, or mean grade, of outputs ``[S, items, outputs]``."""
    if outputs.shape[-1] == 1:
        return np.asarray(outputs[..., 0].mean(0), float)
    exponentials = np.exp(outputs - outputs.max(-1, keepdims=True))
    return np.asarray((exponentials / exponentials.sum(-1, keepdims=True)).mean(0).argmax(-1), float)
