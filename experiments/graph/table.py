"""Train all rows of a table on all its data sets and seeds, and write the table and its picture."""

from __future__ import annotations

from experiments.graph import train as graph
from experiments.graph.config import GraphOptions, TableConfig
from experiments.graph.table_report import difference_figure, table_parts
from experiments.graph.tables import DATASETS, TABLES
from experiments.harness.folder import exclusive
from experiments.harness.sweep import Sweep
from experiments.reporting.figures import save
from experiments.reporting.page import RESULTS
from experiments.reporting.report import Report

__all__ = ["TableConfig", "run"]


@exclusive
def run(config: TableConfig) -> dict[str, float]:
    """Train what is missing, write section and picture: ``"<data set>/<row>/<metric>"`` to its mean over seeds."""
    table = TABLES[config.name]
    sweep = Sweep(
        f"experiments.table {config.name}", config, f"table/{config.name}", RESULTS,
        free=("seeds", "first_seed", "max_epochs"), always=("seeds",),
    ).open()  # fmt: skip
    default = GraphOptions()
    shared = {
        "max_epochs": config.max_epochs or default.max_epochs,
        "num_samples": config.num_samples or default.num_samples,
        "patience": default.patience,
    }
    rows = {
        (dataset, row): {**shared, **options, "dataset": dataset}
        for dataset in DATASETS
        for row, options in table.rows.items()
    }
    seeds = range(config.first_seed, config.first_seed + config.seeds)
    trainings = sweep.train(graph.run, sweep.configs(graph.GraphConfig, rows, seeds))
    picture = save(difference_figure(table, trainings), sweep.pictures / f"{config.name}.png")
    report = Report(table.title, config.name, table_parts(table, trainings, picture))
    return sweep.finish(report, trainings, definitions="mean over seeds; see metrics.json of the runs")
