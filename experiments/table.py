"""Train all rows of a table on all its data sets and seeds, and write the table and its picture.

python -m experiments.table bam1 --seeds 10 --data-root DIR
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsonargparse.typing import NonNegativeInt, PositiveInt

from experiments.cli import command_line, run_script
from experiments.figures import save
from experiments.parallel import run_all
from experiments.results import SweepOptions, as_table, exclusive, open_run, user_errors, write_metrics
from experiments.results_page import RESULTS, hardware, update_section
from experiments.table_report import Results, difference_figure, table_section
from experiments.tables import TABLES, Table, TableName

__all__ = ["TableConfig", "run"]


@dataclass(frozen=True, kw_only=True)
class TableConfig(SweepOptions):
    """Train the rows of a table and write it into RESULTS.md, with a picture.

    Runs that are complete in the folder are read, not repeated, so seeds can be added later.

    Args:
        name: The table.
        seeds: Number of seeds, shared by the rows.
        first_seed: The first of them.
        max_epochs: Epochs at most; the table's own number when omitted.
        num_samples: Samples of a prediction; the table's own number when omitted.
    """

    name: TableName
    seeds: PositiveInt = 10  # type: ignore[valid-type]
    first_seed: NonNegativeInt = 0  # type: ignore[valid-type]
    max_epochs: PositiveInt | None = None  # type: ignore[valid-type]
    num_samples: PositiveInt | None = None  # type: ignore[valid-type]


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


if __name__ == "__main__":
    sys.exit(run_script(TableConfig, run, name="experiments.table"))
