"""Trainings of tables, studies and searches: their options, and what is computed from their saved predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.datasets.arrays import read_arrays
from experiments.files import UserError, reading
from experiments.finetune.config import GlueConfig, GlueName, ManyRuns, RowOptions
from experiments.finetune.metrics import weighted_score
from experiments.finetune.rows import ROWS, SEARCHED
from experiments.harness.sweep import Trainings
from experiments.report.statistics import Difference

__all__ = ["example_difference", "resampled_difference", "resamples", "row_options", "run_options", "saved_predictions"]

_RESAMPLES = 2000


def run_options(config: ManyRuns, task: GlueName, row: str, **changes: Any) -> dict[str, Any]:
    """Options of a training of one row on one task; the setting that was chosen for the row unless changed.

    Raises:
        UserError: No model is given.
    """
    share = (config.sst2_share if task == "sst2" else 1.0) * changes.pop("train_share", 1.0)
    return {**row_options(config, row), "pooling": config.pooling, "train_share": share, **changes, "task": task}


def row_options(config: RowOptions, row: str) -> dict[str, Any]:
    """Options of a training of one row, whatever its task; UserError if no model is given."""
    if not config.model:
        raise UserError("model is missing, expected --model FOLDER, of a pretrained model of Hugging Face")
    names = ("model", "learning_rate", "max_epochs", "num_samples", "precision")
    shared = {name: getattr(config, name) for name in names}
    return {**shared, "keep_weights": False, **ROWS[row], **SEARCHED.get(row, {})}


def example_difference(
    trainings: Trainings[GlueConfig],
    row: Sequence[Any],
    other: Sequence[Any],
    metric: str,
    kinds: tuple[str, str],
    *,
    factor: float = 1.0,
) -> Difference:
    """Mean difference of a metric of GLUE, for :func:`resampled_difference`, whose other arguments these are."""

    def scores(path: Path, kind: str) -> NDArray[np.float64]:
        outputs, labels = _read(path, kind)
        return weighted_score(metric, _predicted(outputs), labels.astype(float), resamples(len(labels)))

    return resampled_difference(trainings, row, other, scores, kinds, factor=factor)


def resampled_difference(
    trainings: Trainings[Any],
    row: Sequence[Any],
    other: Sequence[Any],
    scores: Callable[[Path, str], NDArray[np.float64]],
    kinds: tuple[str, str],
    *,
    factor: float = 1.0,
) -> Difference:
    """Mean difference of a score over seeds, with the interval of resampled test examples, the same ones for both.

    The seeds are those that are there, so the interval says how far the test part decides, not the training.

    Args:
        trainings: Trainings whose predictions are saved.
        row: Parts of the name of a row.
        other: Those of the row to compare it with, on the same task.
        scores: Scores of :func:`resamples` of a training's predictions.npz and a kind of prediction.
        kinds: Kind of prediction of either row.
        factor: What the difference is multiplied with.

    Raises:
        UserError: Predictions are missing or damaged.
    """
    found = list[NDArray[np.float64]]()
    for seed in trainings.seeds:
        ours, others = (
            scores(Path(str(trainings.configs[*key, seed].out)) / "predictions.npz", kind)
            for key, kind in zip((row, other), kinds, strict=True)
        )
        found.append(factor * (ours - others))
    mean = np.mean(found, 0)
    low, high = np.quantile(mean[1:], (0.025, 0.975))
    return Difference(float(mean[0]), float(low), float(high), over="items")


@lru_cache(maxsize=1)
def resamples(items: int) -> NDArray[np.float64]:
    """How often each item is there, ``[R, items]``: every item once, and then resamples, always the same."""
    drawn = np.random.default_rng(0).multinomial(items, np.full(items, 1 / items), size=_RESAMPLES)
    return np.vstack([np.ones((1, items)), drawn])


@contextmanager
def saved_predictions(path: Path) -> Iterator[dict[str, NDArray[Any]]]:
    """The arrays that a training has saved; DamagedFileError where they cannot be read, or are not what is needed."""
    remedy = "remove its folder, and the same command with --resume makes it again"
    with reading(path, "the predictions of a training", remedy):
        yield read_arrays(path, remedy)


def _read(path: Path, kind: str) -> tuple[NDArray[Any], NDArray[Any]]:
    with saved_predictions(path) as arrays:
        outputs, labels = arrays[f"{kind}_test"], arrays["labels_test"]
        if outputs.ndim != 3 or outputs.dtype.kind != "f" or labels.shape != outputs.shape[1:2]:
            raise ValueError(f"predictions {list(outputs.shape)} of labels {list(labels.shape)}")
        return outputs, labels


def _predicted(outputs: NDArray[Any]) -> NDArray[np.float64]:
    """Class of each item by the mean of its probabilities, or mean grade, of outputs ``[S, items, outputs]``."""
    if outputs.shape[-1] == 1:
        return np.asarray(outputs[..., 0].mean(0), float)
    exponentials = np.exp(outputs - outputs.max(-1, keepdims=True))
    return np.asarray((exponentials / exponentials.sum(-1, keepdims=True)).mean(0).argmax(-1), float)
