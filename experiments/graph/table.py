"""Train all rows of a table on all its data sets and seeds, and write the table and its picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.graph.config import TableConfig
from experiments.graph.table_report import difference_figure, table_parts
from experiments.graph.tables import TABLES, Table
from experiments.harness.folder import exclusive
from experiments.harness.sweep import Key, Sweep
from experiments.reporting.figures import save
from experiments.reporting.page import RESULTS
from experiments.reporting.report import Report

__all__ = ["TableConfig", "run"]


@exclusive
def run(config: TableConfig) -> dict[str, float]:
    """Train what is not trained yet, write the section and print the main numbers.

    Returns:
        ``"<data set>/<row>/<metric>"`` to its mean over seeds.

    Raises:
        UserError: Data, options or folder are not right.
        KeyboardInterrupt: Stopped by Ctrl-C; ``resume`` continues.
    """
    table, page, default = TABLES[config.name], config.results or RESULTS, Path("runs", "table", config.name)
    free = ("seeds", "first_seed", "max_epochs")
    sweep = Sweep(f"experiments.table {config.name}", config, default, page, free=free, always=("seeds",))
    sweep.open()
    trainings = sweep.train(table.run, _configs(table, config, sweep.folder))
    picture = save(difference_figure(table, trainings), sweep.pictures / f"{config.name}.png")
    report = Report(table.title, config.name, table_parts(table, trainings, picture))
    return sweep.finish(report, trainings, definitions="mean over seeds; see metrics.json of the runs")


def _configs(table: Table, config: TableConfig, folder: Path) -> dict[Key, Any]:
    """Seeds first, so that an interrupted table has all rows of the first seeds."""
    changes = {name: value for name in ("max_epochs", "num_samples") if (value := getattr(config, name)) is not None}
    return {
        (dataset, row, seed): table.configure(
            row, dataset, seed, out=folder / "runs" / f"{dataset}-{row.replace(' ', '-')}-{seed}",
            **config.for_runs(), **changes,
        )
        for seed in range(config.first_seed, config.first_seed + config.seeds)
        for dataset in table.datasets
        for row in table.rows
    }  # fmt: skip
