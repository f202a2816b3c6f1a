"""Many trainings of one script in one folder, and what is said of them at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, Generic, TypeVar

from experiments.files import user_errors
from experiments.harness.cli import command_line
from experiments.harness.folder import exclusive, open_run
from experiments.harness.options import RunOptions, SweepOptions
from experiments.harness.parallel import run_all
from experiments.harness.results import write_metrics
from experiments.report.columns import Runs
from experiments.report.report import Report
from experiments.report.results import source_of, write_results

__all__ = ["Key", "Metrics", "Sweep", "Trainings", "best_settings", "to_continue"]

Key = tuple[Any, ...]  # tells a training from the others of its sweep: its row, in one or several parts, and its seed
Metrics = Mapping[str, float]
Config = TypeVar("Config", bound=RunOptions)


@dataclass(frozen=True)
class Trainings(Generic[Config]):
    """Configurations and metrics of finished trainings, by row and seed."""

    configs: Mapping[Key, Config]
    metrics: Mapping[Key, Metrics]

    @cached_property
    def rows(self) -> list[Key]:
        """The rows, in the order of the configurations."""
        return list(dict.fromkeys(key[:-1] for key in self.configs))

    @cached_property
    def seeds(self) -> list[int]:
        """The seeds, in the order of the configurations."""
        return list(dict.fromkeys(key[-1] for key in self.configs))

    def runs(self, *row: Any) -> Runs:
        """Metrics of a row, one entry a seed."""
        return [self.metrics[*row, seed] for seed in self.seeds]

    def by_row(self) -> dict[str, Runs]:
        """Metrics of rows that have a name alone, one entry a seed."""
        return {row[0]: self.runs(*row) for row in self.rows}

    def first(self, *row: Any) -> Config:
        """Configuration of a row's first seed."""
        return self.configs[*row, self.seeds[0]]

    @property
    def folders(self) -> list[Path]:
        """Folders of all trainings."""
        return [Path(str(config.out)) for config in self.configs.values()]

    def means(self) -> dict[str, float]:
        """``"<row>/<metric>"`` to its mean over the seeds that have it."""
        found = {}
        for row in self.rows:
            runs = self.runs(*row)
            for metric in dict.fromkeys(name for one in runs for name in one):
                found["/".join(map(str, (*row, metric)))] = fmean(one[metric] for one in runs if metric in one)
        return found


def best_settings(quality: Mapping[Key, Any]) -> set[Key]:
    """Of the settings (row, setting) of each row the one of the largest quality, the first of equals.

    Example:
        >>> best_settings({("WC", "a"): 0.5, ("WC", "b"): 0.7, ("soft", ""): 0.1}) == {("WC", "b"), ("soft", "")}
        True
    """
    rows = dict.fromkeys(key[0] for key in quality)
    return {max((key for key in quality if key[0] == row), key=lambda key: quality[key]) for row in rows}


@dataclass(frozen=True)
class Sweep:
    """A script that starts trainings of another script: its folder, its trainings and its report."""

    script: str  # the module, with what is given by position: what the command line begins with
    config: SweepOptions
    name: str  # folder below runs/ when config.out is omitted
    default_results: Path | None = None  # where the numbers are written when config.results is omitted
    free: Sequence[str] = ()  # options that may differ when the sweep is continued, such as the number of seeds
    always: Sequence[str] = ()  # options that the repeated command names even where they have their default

    @property
    def folder(self) -> Path:
        """Where everything of the sweep is written."""
        return self.config.out or Path("runs", self.name)

    @property
    def results(self) -> Path | None:
        """The folder of published numbers, if they are published."""
        return self.config.results or self.default_results

    @property
    def pictures(self) -> Path:
        """Folder of the pictures: beside the published numbers, else in the sweep's own."""
        return self.folder / "figures" if self.results is None else self.results / "pictures"

    def open(self) -> Sweep:
        """Prepare the folder; see :func:`open_run`."""
        with user_errors(ValueError, OSError):
            open_run(self.folder, self.config, free=self.free)
        return self

    def configs(
        self, config_type: Callable[..., Config], rows: Mapping[Key, Mapping[str, Any]], seeds: Iterable[int]
    ) -> dict[Key, Config]:
        """Configurations of all trainings, from the options of every row; the keys of the rows name the folders too.

        All rows of the first seed come first, so that an interrupted sweep has them.
        """
        how, runs = self.config.for_runs(), self.folder / "runs"
        return {
            (*row, seed): config_type(**how, **options, seed=seed, out=runs / f"{_file_name(row)}-{seed}")
            for seed in seeds
            for row, options in rows.items()
        }

    def train(
        self, run: Callable[[Config], dict[str, float]], configs: Mapping[Key, Config], *, shown: str = "val_accuracy"
    ) -> Trainings[Config]:
        """Run every configuration that is not finished yet; the bar shows the metric ``shown`` of the last one.

        Raises:
            UserError: Trainings have failed, such as for want of data; the others are finished.
        """

        def describe(key: Key, metrics: Metrics) -> str:
            score = f": {shown} {metrics[shown]:.3f}" if shown in metrics else ""
            return f"{', '.join(map(str, key[:-1]))}, seed {key[-1]}{score}"

        emptied = {key: to_continue(config) for key, config in configs.items()}
        metrics = run_all(
            run, emptied, workers=self.config.workers, cluster=self.config.cluster, progress=self.config.progress,
            describe=describe,
        )  # fmt: skip
        return Trainings(configs, metrics)

    def finish(
        self,
        report: Report,
        trainings: Trainings[Any],
        metrics: Metrics | None = None,
        definitions: str | Mapping[str, str] = "mean over seeds",
    ) -> dict[str, float]:
        """Write metrics.json, report.html and the published numbers, print the tables, and return the metrics.

        The metrics are the trainings' means when omitted. The definitions say what they mean, by what their names have
        after the last slash, or in one text for all.
        """
        found = dict(trainings.means() if metrics is None else metrics)
        texts = {
            name: definitions if isinstance(definitions, str) else definitions[name.rpartition("/")[2]]
            for name in found
        }
        write_metrics(self.folder, found, texts)
        seeds = f"seeds {trainings.seeds[0]} to {trainings.seeds[-1]}"
        command = command_line(self.script, self.config, always=self.always)
        source = source_of(trainings.folders, command, seeds)
        report.write(self.folder, source)
        if self.results is not None:
            print(write_results(self.results, report, source))
        return found


def to_continue(config: Config) -> Config:
    """The configuration of a run, which is removed before the first training begins, if it is to be.

    What an interrupted sweep or a worker that dies leaves can then be continued, and holds nothing that is older.
    """
    if not config.overwrite:
        return config
    exclusive(open_run)(Path(str(config.out)), config)
    return replace(config, overwrite=False, resume=True)


def _file_name(row: Key) -> str:
    """Name of the folders of a row, without spaces; numbers as short as they are."""
    parts = (f"{part:g}" if isinstance(part, float) else str(part) for part in row)
    return "-".join(part.replace(", ", "-").replace(" ", "-") for part in parts if part)
