"""Part of a report that shows whether the trainings of a study had stopped improving."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from experiments.files import UserError
from experiments.folder import read_history
from experiments.report.figures import learning_curves, save
from experiments.report.report import Part
from experiments.report.statistics import Row, summarize
from experiments.study import Finished

QUARTERS = {"1/4": 0.25, "1/2": 0.5, "3/4": 0.75, "end": 1.0}  # shares of the epochs, as the table names them


def best_so_far(values: Sequence[float], *, better: Literal["lower", "higher"] = "lower") -> np.ndarray:
    """Return the best value up to each epoch; epochs of NaN, which are never the best one, count for nothing.

    Example:
        >>> best_so_far([3.0, 2.0, 2.5]).tolist()
        [3.0, 2.0, 2.0]
    """
    accumulate = np.fmin.accumulate if better == "lower" else np.fmax.accumulate
    return accumulate(np.asarray(values, dtype=float))


def quarters(best: Sequence[float] | np.ndarray) -> list[float]:
    """Return the value at the end of each quarter of the epochs.

    Example:
        >>> quarters(best_so_far([4.0, 3.0, 2.0, 2.5]))
        [4.0, 3.0, 2.0, 2.0]
    """
    return [float(best[max(1, round(share * len(best))) - 1]) for share in QUARTERS.values()]


def convergence(
    finished: Finished, *, metric: str = "val_loss", name: str = "validation loss",
    better: Literal["lower", "higher"] = "lower",
) -> Iterator[Part]:  # fmt: skip
    """Yield the best value of a metric after each quarter of the trainings, its last gain, and its learning curves.

    Rows whose trainings have fewer than four epochs are left out; nothing is yielded where no other is left.

    Args:
        finished: The study; its trainings have a history.csv.
        metric: The metric of the history.
        name: What the metric is, in the table.
        better: Whether a lower or a higher value is better.
    """
    study, table, short = finished.study, list[Row](), list[str]()
    curves: dict[str, dict[str, list[np.ndarray]]] = {}
    for level in study.levels:
        folders = {row: [finished.configs[row, level, seed].out for seed in finished.seeds] for row in study.rows}
        if finished.firsts:
            folders = {"what all go on from": [finished.firsts[level, seed].out for seed in finished.seeds], **folders}
        for row in folders:
            runs = [_history(Path(str(folder)), metric) for folder in folders[row]]
            if max(map(len, runs)) < len(QUARTERS):
                short.append(row)
                continue
            best = [best_so_far(values, better=better) for values in runs]
            curves.setdefault(level, {})[row] = best
            shares = np.array([quarters(values) for values in best])
            gains = np.abs(shares[:, 3] - shares[:, 2])
            table.append(
                {study.heads[0]: row}
                | ({study.heads[1] or "data": level} if level else {})
                | {"epochs": summarize([len(values) for values in runs], digits=0)}
                | {"best epoch": summarize([int(np.argmax(values == values[-1])) + 1 for values in best], digits=0)}
                | {
                    f"{name}, {quarter}": summarize(list(shares[:, number]), digits=4)
                    for number, quarter in enumerate(QUARTERS)
                }
                | {"gain of the last quarter": summarize(list(gains), digits=4)}
            )
    if not table:
        return
    title = finished.fill(study.title)
    figure = learning_curves(curves, name=f"best {name} so far", title=title)
    text = (
        f"Best {name} up to the end of each quarter of a training, mean ± standard deviation over seeds. A training "
        "whose last quarter gains nothing had stopped improving. The best epoch is counted from 1."
    )
    if short:
        text += f" Trainings of fewer than four epochs are not shown: {', '.join(dict.fromkeys(short))}."
    picture = save(figure, finished.pictures / f"{finished.name}-{metric}.png")
    labels = 1 + (list(study.levels) != [""])
    yield Part(
        f"Had the trainings stopped improving? By the {name}",
        text,
        table,
        labels=labels,
        picture=picture,
        caption=title,
    )


def _history(folder: Path, metric: str) -> list[float]:
    """Return a metric of every epoch that has it."""
    values = [epoch[metric] for epoch in read_history(folder) if metric in epoch]
    if not values:
        raise UserError(f"{folder / 'history.csv'} has no {metric}; train again with --overwrite")
    return values
