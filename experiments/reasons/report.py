"""What both studies report: how well a reason was found, and how honest its probability is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc, binary_calibration_error

from experiments.cli import command_line
from experiments.folder import write_environment, write_metrics
from experiments.report.report import RESULTS, Report, source_of, write_results
from experiments.report.statistics import Column, Row, Runs

TOP_1 = Column("top-1", "top_1", 3, better="higher")
AUROC = Column("AUROC", "auroc", 3, better="higher")
ECE = Column("ECE", "ece", 4, better="lower")
ECE_FLOOR = Column("ECE floor", "ece_floor", 4, better="lower")
ACCURACY = Column("accuracy", "accuracy", 3, better="higher")
DEFINITIONS = {
    "top_1": "share of items whose most probable reason is the true one",
    "auroc": "area under the ROC curve of the probabilities of all candidates, the true reason against the others",
    "ece": "expected calibration error of these probabilities, 15 bins",
    "ece_floor": "the ECE if the reasons were drawn from these probabilities",
    "accuracy": "share of test labels predicted right",
    "agreement": "share of test nodes with the same most probable reason in two runs of the explanation",
    "step_ratio": "time of a training step under Marginal, divided by that of soft attention, medians of steps in turn",
}


def reason_scores(probabilities: Tensor, reasons: Tensor) -> dict[str, float]:
    """Scores of probabilities ``[items, candidates]``, 0 where there is no candidate, of the true one ``[items]``."""
    truth = torch.nn.functional.one_hot(reasons, probabilities.size(-1))
    there = probabilities.isfinite()
    flat, true = probabilities[there].clamp(0, 1), truth[there]
    return {
        "top_1": (probabilities.nan_to_num(-1).argmax(-1) == reasons).float().mean().item(),
        "auroc": binary_auroc(flat, true).item(),
        "ece": binary_calibration_error(flat, true, n_bins=15, norm="l1").item(),
    }


def table(
    head: str, axis: str, runs: Mapping[str, Mapping[str, Runs]], columns: Sequence[Column], compared: Column
) -> list[Row]:
    """Rows of every level, with their differences to the level's first row in one column."""
    rows = list[Row]()
    for level, found in runs.items():
        baseline = next(iter(found))
        for name, metrics in found.items():
            cells: Row = {axis: level, head: name} | {column.name: column.cell(metrics) for column in columns}
            shown = name != baseline and len(metrics) > 1
            difference = compared.difference(metrics, found[baseline], baseline) if shown else ""
            rows.append(cells | {f"{compared.name}: difference": difference})
    return rows


def closing(seeds: int, *columns: Column) -> str:
    """End of the text above a table: what columns hold, and what their numbers are."""
    defined = "".join(f"{each.name[0].upper()}{each.name[1:]}: {DEFINITIONS[each.metric]}. " for each in columns)
    seed_by_seed = "differences seed by seed with their 95 % interval (Student's t)"
    return f"{defined}Mean ± standard deviation over {seeds} seeds; {seed_by_seed}."


def publish(config: Any, command: str, report: Report, runs: Mapping[str, Mapping[str, Runs]]) -> dict[str, float]:
    """Write metrics, report and results/; the metrics are means over seeds, ``"<level>/<row>/<metric>"``."""
    folder = config.out or Path("runs", "reasons", command)
    metrics = {
        f"{level}/{row}/{name}": sum(one[name] for one in seeds) / len(seeds)
        for level, found in runs.items() for row, seeds in found.items() for name in seeds[0]
    }  # fmt: skip
    write_metrics(folder, metrics)
    write_environment(folder, torch.device("cpu"))
    source = source_of([folder], command_line(f"experiments.reasons {command}", config))
    report.write(folder, source)
    print(write_results(config.results or RESULTS, report, source))
    return metrics
