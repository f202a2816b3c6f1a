"""Train all rows of a table on all its data sets and seeds, and write the table and its picture."""

from __future__ import annotations

from dataclasses import replace

from experiments.files import UserError
from experiments.graph import train as graph
from experiments.graph.config import GraphOptions, TableConfig
from experiments.graph.heterophilous import HETEROPHILOUS
from experiments.graph.table_report import difference_figure, table_parts
from experiments.graph.tables import TABLES, Table, TableName
from experiments.harness.folder import exclusive
from experiments.harness.sweep import Sweep
from experiments.harness.words import expected_one_of
from experiments.reporting.figures import save
from experiments.reporting.page import RESULTS
from experiments.reporting.report import Report

__all__ = ["EVERY_TABLE", "TableConfig", "run"]

EVERY_TABLE: dict[TableName, Table] = TABLES | {"heterophilous": HETEROPHILOUS}


@exclusive
def run(config: TableConfig) -> dict[str, float]:
    """Train what is missing, write section and picture: ``"<data set>/<row>/<metric>"`` to its mean over seeds."""
    table, name = _chosen(config), "-".join(filter(None, (config.name, config.architecture)))
    sweep = Sweep(
        f"experiments.table {config.name}", config, f"table/{name}", RESULTS,
        free=("seeds", "first_seed", "max_epochs", "graphs"), always=("seeds",),
    ).open()  # fmt: skip
    default = GraphOptions()
    shared = {name: getattr(default, name) for name in ("max_epochs", "num_samples", "patience")} | dict(table.training)
    given = {name: getattr(config, name) for name in ("max_epochs", "num_samples", "architecture")}
    shared |= {name: value for name, value in given.items() if value is not None}
    rows = {
        (dataset, row): {**shared, **table.graph_options.get(dataset, {}), **options, "dataset": dataset}
        for dataset in table.datasets
        for row, options in table.rows.items()
    }
    seeds = range(config.first_seed, config.first_seed + config.seeds)
    configs = sweep.configs(graph.GraphConfig, rows, seeds)
    if table.splits:
        configs = {key: replace(one, split_seed=one.seed) for key, one in configs.items()}
    trainings = sweep.train(graph.run, configs)
    picture = save(difference_figure(table, trainings), sweep.pictures / f"{name}.png")
    report = Report(table.title, name, table_parts(table, trainings, picture))
    return sweep.finish(report, trainings, definitions="mean over seeds; see metrics.json of the runs")


def _chosen(config: TableConfig) -> Table:
    """The table, on the graphs that are asked for."""
    table = EVERY_TABLE[config.name]
    if not config.graphs:
        return table
    unknown = next((name for name in config.graphs if name not in table.datasets), None)
    if unknown is not None:
        raise UserError(f"graphs '{unknown}': {expected_one_of(table.datasets, unknown)}")
    return replace(table, datasets={name: table.datasets[name] for name in config.graphs})
