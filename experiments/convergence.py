"""Part of a report that shows whether the trainings of a study had stopped improving."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from experiments.files import reading
from experiments.report.figures import learning_curves, save
from experiments.report.report import Part
from experiments.report.statistics import Row, summarize
from experiments.study import Finished

QUARTERS = (0.25, 0.5, 0.75, 1.0)


def best_so_far(values: Sequence[float]) -> np.ndarray:
    """Return the smallest value up to each epoch.

    Example:
        >>> best_so_far([3.0, 2.0, 2.5]).tolist()
        [3.0, 2.0, 2.0]
    """
    return np.minimum.accumulate(np.asarray(values, dtype=float))


def quarters(values: Sequence[float]) -> list[float]:
    """Return the smallest value of the first quarter of the epochs, of the first half, three quarters, and of all.

    Example:
        >>> quarters([4.0, 3.0, 2.0, 2.5])
        [4.0, 3.0, 2.0, 2.0]
    """
    best = best_so_far(values)
    return [float(best[max(1, round(share * len(best))) - 1]) for share in QUARTERS]


def convergence(finished: Finished, *, metric: str = "val_loss", name: str = "validation loss") -> Iterator[Part]:
    """Yield the best value of a metric after each quarter of the trainings, its last gain, and its learning curves.

    Args:
        finished: The study; its trainings have a history.csv.
        metric: The metric of the history, smaller is better.
        name: What the metric is, in the table.
    """
    study, table = finished.study, list[Row]()
    curves: dict[str, dict[str, list[np.ndarray]]] = {}
    for level in study.levels:
        folders = {row: [finished.configs[row, level, seed].out for seed in finished.seeds] for row in study.rows}
        if finished.firsts:
            folders = {"what all go on from": [finished.firsts[level, seed].out for seed in finished.seeds], **folders}
        for row in folders:
            runs = [_history(Path(str(folder)) / "history.csv", metric) for folder in folders[row]]
            shares = np.array([quarters(values) for values in runs])
            curves.setdefault(level, {})[row] = [best_so_far(values) for values in runs]
            table.append(
                {study.heads[0]: row}
                | ({study.heads[1] or "data": level} if level else {})
                | {"epochs": summarize([len(values) for values in runs], digits=0)}
                | {"best epoch": summarize([int(np.argmin(values)) + 1 for values in runs], digits=0)}
                | {
                    f"{name}, {quarter}": summarize(list(shares[:, number]), digits=4)
                    for number, quarter in enumerate(("1/4", "1/2", "3/4", "end"))
                }
                | {"gain of the last quarter": summarize(list(shares[:, 2] - shares[:, 3]), digits=4)}
            )
    title = finished.fill(study.title)
    figure = learning_curves(curves, name=f"best {name} so far", title=title)
    text = (
        f"Smallest {name} up to the end of each quarter of a training, mean ± standard deviation over seeds. A "
        "training whose last quarter gains nothing had stopped improving."
    )
    picture = save(figure, finished.pictures / f"{finished.name}-learning.png")
    labels = 1 + (list(study.levels) != [""])
    yield Part("Had the trainings stopped improving?", text, table, labels=labels, picture=picture, caption=title)


def _history(path: Path, metric: str) -> list[float]:
    with reading(path, "the history of a training", "run it again with --overwrite"), path.open(newline="") as file:
        return [float(row[metric]) for row in csv.DictReader(file) if row[metric]]
