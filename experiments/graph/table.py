"""Train all rows of a table on all its data sets and seeds, and write the table and its picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.files import user_errors
from experiments.graph.config import TableConfig
from experiments.graph.table_report import Results, difference_figure, table_section
from experiments.graph.tables import TABLES, Table
from experiments.harness.cli import command_line
from experiments.harness.folder import exclusive, open_run
from experiments.harness.parallel import run_all
from experiments.harness.results import write_metrics
from experiments.reporting.figures import save
from experiments.reporting.page import RESULTS, hardware, update_section
from experiments.reporting.tables import as_table

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
    table, folder = TABLES[config.name], config.out or Path("runs", "table", config.name)
    page = config.results or RESULTS
    with user_errors(ValueError, OSError):
        open_run(folder, config, free=("seeds", "first_seed", "max_epochs"))
    configs = _configs(table, config, folder)
    metrics = run_all(
        table.run, configs, workers=config.workers, progress=config.progress,
        describe=lambda key, found: f"{', '.join(map(str, key))}: {found['val_accuracy']:.3f} on validation",
    )  # fmt: skip
    results = Results(table, range(config.first_seed, config.first_seed + config.seeds), metrics, configs)
    picture = save(difference_figure(results), page.parent / "pictures" / f"{config.name}.png")
    command = command_line(f"experiments.table {config.name}", config, always=("seeds",))
    text = table_section(results, command, hardware([found.out for found in configs.values()]), picture.name)
    update_section(page, config.name, text)
    means = results.means()
    write_metrics(folder, means, dict.fromkeys(means, "mean over seeds; see metrics.json of the runs"))
    print(f"\n{as_table(results.main_rows())}\n\n{page}\n{picture}")
    return means


def _configs(table: Table, config: TableConfig, folder: Path) -> dict[tuple[str, str, int], Any]:
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
