"""Train all rows of a table on all its data sets and seeds, and write the table and its picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from experiments.files import UserError
from experiments.graph import train as graph
from experiments.graph.config import TableConfig
from experiments.graph.heterophilous import HETEROPHILOUS
from experiments.graph.table_report import difference_figure, table_parts
from experiments.graph.tables import BASELINE, TABLES, Table, TableName
from experiments.harness.folder import exclusive
from experiments.harness.sweep import Sweep
from experiments.harness.words import expected_one_of
from experiments.report.figures import save
from experiments.report.report import Report
from experiments.report.results import RESULTS

__all__ = ["EVERY_TABLE", "TableConfig", "run"]

EVERY_TABLE: dict[TableName, Table] = TABLES | {"heterophilous": HETEROPHILOUS}


@exclusive
def run(config: TableConfig) -> dict[str, float]:
    """Train what is missing, write section and picture: ``"<data set>/<row>/<metric>"`` to its mean over seeds."""
    names = ("max_epochs", "num_samples", "architecture", "layers")
    given = {name: getattr(config, name) for name in names if getattr(config, name) is not None}
    table, name = _chosen(config, given), "-".join(filter(None, (config.name, config.architecture)))
    sweep = Sweep(
        f"experiments.table {config.name}", config, f"table/{name}", RESULTS,
        free=("seeds", "first_seed", "max_epochs", "graphs", "rows"), always=("seeds",),
    ).open()  # fmt: skip
    rows = {
        (dataset, row): {**table.options(dataset, **given), **options, **own.get(row, {})}
        for dataset in table.datasets
        for own in [table.graph_rows.get(dataset, {})]
        for row, options in table.rows.items()
    }
    seeds = range(config.first_seed, config.first_seed + config.seeds)
    configs = sweep.configs(graph.GraphConfig, rows, seeds)
    if table.splits:
        configs = {key: replace(one, split_seed=one.seed) for key, one in configs.items()}
    trainings = sweep.train(graph.run, configs)
    section = "-".join((name, *config.graphs))  # tables of some graphs alone stand beside each other
    title = ": ".join(filter(None, (table.title, ", ".join(table.datasets.values()) if config.graphs else "")))
    picture = save(difference_figure(table, trainings), sweep.pictures / f"{section}.png")
    report = Report(title, section, table_parts(table, trainings, picture))
    return sweep.finish(report, trainings, definitions="mean over seeds; see metrics.json of the runs")


def _chosen(config: TableConfig, given: Mapping[str, Any]) -> Table:
    """The table with the graphs and rows that are asked for; its text says which options are others."""
    table = EVERY_TABLE[config.name]
    for option, known in (("graphs", table.datasets), ("rows", table.rows)):
        unknown = next((name for name in getattr(config, option) if name not in known), None)
        if unknown is not None:
            raise UserError(f"{option} '{unknown}': {expected_one_of(known, unknown)}")
    rows = {name: table.rows[name] for name in config.rows or table.rows}
    if lacking := {BASELINE, *map(table.reference, rows)} - set(rows):
        raise UserError(f"rows are compared with '{lacking.pop()}', which has to be among them")
    graphs = {name: table.datasets[name] for name in config.graphs or table.datasets}
    changed = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in given.items())
    text = f"{table.text} Other than said here: {changed}." if changed else table.text
    return replace(table, datasets=graphs, rows=rows, text=text)
