"""A study: rows, levels and seeds of one training, and its tables; a search is a study of settings.

A :class:`Study` is a declaration; :func:`run_study` trains what is not trained yet, prints and publishes its tables.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.cli import command_line
from experiments.files import UserError, expected_one_of
from experiments.folder import open_run, write_metrics
from experiments.options import StudyOptions, unused
from experiments.parallel import run_all
from experiments.report.figures import level_curves, save
from experiments.report.report import RESULTS, Part, Report, publish, source_of
from experiments.report.statistics import Cell, Column, Difference, Row, Runs
from experiments.run import Task

Options = Mapping[str, Any]
Key = tuple[str, str, int]  # row, level, seed
_SEARCH_SEED = 1000  # first seed of a search, which no table comes to


class Seed(Enum):
    """Value of an option that counts the trainings of a row, such as the number of a fixed split.

    It is the seed of the training; in a search, whose seeds begin with 1000, it is counted from there.
    """

    SEED = "seed"


@dataclass(frozen=True)
class First:
    """Value of an option that is the folder of another training, which is made first at each level and seed."""

    options: Options  # beside those of the study


@dataclass(frozen=True)
class Block:
    """Further table of a study; rows without the first column's metric are left out."""

    title: str  # placeholders as in Study.text, here and in the text
    text: str
    columns: Sequence[Column]
    terminal: bool = False


@dataclass(frozen=True, kw_only=True)
class Study:
    """Rows at some levels, for some seeds."""

    name: str  # of its folder and of its file in results/
    task: Task[Any, Any]  # what is trained
    rows: Mapping[str, Options]  # options of each row; the first row is the baseline
    columns: Sequence[Column]  # numbers of the table
    options: Options = field(default_factory=dict)  # of all trainings
    # Options of each level, such as a data set or a share of noise. A mapping under the name of a row has options that
    # this row has at this level.
    levels: Mapping[str, Options] = field(default_factory=lambda: {"": {}})
    seeds: int = 3
    baselines: Mapping[str, str] = field(default_factory=dict)  # rows that are compared with another row than the first
    # Rows that show the trainings of a row by another kind of prediction, {kind} in a metric: (row, kind); "mean"
    # where nothing is said.
    readings: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    paper: Mapping[str, Any] = field(default_factory=dict)  # the paper's numbers by row, and by level in a wide table
    parts: Sequence[Block | Callable[[Finished], Iterable[Part]]] = ()  # what else is reported
    # Heads of the columns of the rows and of the levels. Without the second the table is wide: a row has all levels.
    heads: tuple[str, str] = ("row", "")
    title: str  # heading, with placeholders as in the text
    # {config.max_epochs} is an option of the first row, {first.max_epochs} of the training that is made first, {seeds}
    # the number of seeds
    text: str = ""
    about: str | None = ""  # the task in "Where it helps", "" for none; None leaves the numbers in the run's folder

    @property
    def baseline(self) -> str:
        """The row that others are compared with."""
        return next(iter(self.rows))

    @property
    def is_wide(self) -> bool:
        """Whether a row of the table has all levels."""
        return not self.heads[1] and list(self.levels) != [""]

    @property
    def first(self) -> Options:
        """Options of the training that all rows go on from; empty without one."""
        return next((value.options for value in self.options.values() if isinstance(value, First)), {})

    def rows_with_own(self, option: str) -> list[str]:
        """Return the rows that set an option themselves at every level, which a change of it does not reach."""
        return [
            row
            for row, of_row in self.rows.items()
            if option in of_row or all(option in of_level.get(row, {}) for of_level in self.levels.values())
        ]

    def reference(self, row: str) -> str | None:
        """Return the row that a row is compared with; None for the baseline."""
        return None if row == self.baseline else self.baselines.get(row, self.baseline)

    def training(self, level: str, row: str | None, seed: int, first: Path | None = None) -> dict[str, Any]:
        """Return the options of a training; without a row those of the training that is made first."""
        of_level = self.levels[level]
        merged = {**self.options, **{name: value for name, value in of_level.items() if not isinstance(value, Mapping)}}
        merged |= self.first if row is None else {**self.rows[row], **of_level.get(row, {})}
        number = seed % _SEARCH_SEED
        values = {name: number if value is Seed.SEED else value for name, value in merged.items()}
        return {name: first if isinstance(value, First) else value for name, value in values.items()} | {"seed": seed}

    def chosen(self, options: StudyOptions) -> Study:
        """Return the study with the rows, levels, seeds and changes that are asked for.

        Raises:
            UserError: A row or level is unknown, one is missing that others are compared with, or a level would be
                that of another name.
        """
        _require_known("rows", options.rows, self.rows)
        _require_known("levels", options.levels, self.levels)
        _require_distinct(self.levels, options)
        rows = [name for name in self.rows if name in (options.rows or self.rows)]
        lacking = {self.baselines.get(row, self.baseline) for row in rows} - set(rows)
        if lacking:
            raise UserError(f"rows are compared with '{lacking.pop()}', which has to be among them")
        changed = {
            name: First({**value.options, **options.changes}) if isinstance(value, First) else value
            for name, value in self.options.items()
        }
        return replace(
            self,
            options=changed,
            rows={name: self.rows[name] for name in rows},
            levels={name: {**self.levels[name], **options.changes} for name in options.levels or self.levels},
            seeds=options.seeds or self.seeds,
        )

    def whole(self, options: StudyOptions) -> bool:
        """Return whether what is asked for is the study as declared, or some of its levels, with as many seeds."""
        few = options.seeds is not None and options.seeds < self.seeds
        return not (few or options.rows or options.first_seed or options.changes.keys() - set(self.task.named))


@dataclass(frozen=True)
class Search:
    """Search for the settings of a study's rows."""

    study: Study
    grid: Mapping[str, Sequence[Options]]  # settings of a row that are tried
    quality: Sequence[Column]  # numbers on validation data that choose, in their order


@dataclass(frozen=True)
class Finished:
    """Study whose trainings are done."""

    study: Study  # as it was asked for
    name: str  # of its file in results/
    folder: Path  # where it lies
    results: Path | None  # where it is published
    configs: Mapping[Key, Any]  # options of every training, by row, level and seed
    metrics: Mapping[Key, Mapping[str, float]]  # their metrics
    # Options of the trainings that the rows go on from, by level and seed.
    firsts: Mapping[tuple[str, int], Any] = field(default_factory=dict)

    @property
    def pictures(self) -> Path:
        """Folder of its pictures."""
        return self.folder / "figures" if self.results is None else self.results / "pictures"

    @property
    def seeds(self) -> list[int]:
        """The seeds."""
        return list(dict.fromkeys(key[-1] for key in self.configs))

    @property
    def rows(self) -> list[str]:
        """The rows that are shown."""
        readings = self.study.readings
        return [
            row
            for trained in self.study.rows
            for row in (trained, *(name for name, (of, _) in readings.items() if of == trained != name))
        ]

    def trained_row(self, row: str) -> str:
        """Return the row whose trainings a row shows."""
        return self.study.readings.get(row, (row, ""))[0]

    def runs(self, row: str, level: str = "") -> Runs:
        """Return the metrics of a row at a level, one entry a seed."""
        return [self.metrics[self.trained_row(row), level, seed] for seed in self.seeds]

    def of(self, row: str, column: Column) -> Column:
        """Return the column of the kind of prediction that the row shows."""
        kind = self.study.readings.get(row, ("", "mean"))[1]
        return replace(column, metric=column.metric.replace("{kind}", kind))

    def cell(self, row: str, column: Column, level: str = "", *, error: bool = False) -> Cell:
        """Return the cell of a table."""
        return self.of(row, column).cell(self.runs(row, level), error=error)

    def difference(self, row: str, column: Column, level: str = "") -> Difference | str:
        """Return the difference to the row that a row is compared with; "" without one, "-" without numbers."""
        reference = self.study.reference(row)
        if reference is None:
            return ""
        runs, baseline = self.runs(row, level), self.runs(reference, level)
        column, of_reference = self.of(row, column), self.of(reference, column)
        if not column.paired(runs, baseline, of_reference):
            return "-"
        difference = column.difference(runs, baseline, reference, other=of_reference)
        is_clear = difference.p_value * self.tests < 0.05
        return replace(difference, bold=is_clear, data=level if self.study.is_wide else "")

    @property
    def tests(self) -> int:
        """Number of differences in the table."""
        rows = sum(self.study.reference(row) is not None for row in self.rows)
        return rows * sum(len(self.main(level)) for level in self.study.levels)

    def main(self, level: str) -> Sequence[Column]:
        """Return the columns that rows are compared by at a level, those that some row has a number for."""
        columns = [column for column in self.study.columns if column.compared and level in (column.levels or [level])]
        return self.present(columns, level)

    def present(self, columns: Sequence[Column], *levels: str) -> Sequence[Column]:
        """Return the columns that some row has a number for at one of the levels."""
        cells = [(row, level) for row in self.rows for level in levels]
        return [column for column in columns if any(self.values(row, column, level) for row, level in cells)]

    def values(self, row: str, column: Column, level: str) -> list[float]:
        """Return the numbers of a row at a level, one a seed."""
        return self.of(row, column).values(self.runs(row, level))

    def fill(self, text: str) -> str:
        """Return a text with its placeholders filled in."""
        config, first = (next(iter(configs.values()), None) for configs in (self.configs, self.firsts))
        return text.format(config=config, first=first, seeds=len(self.seeds))


def run_study(studies: Mapping[str, Study], options: StudyOptions, *, command: str = "table") -> dict[str, float]:
    """Train what is not trained yet, print the tables, publish them, and return ``"<level>/<row>/<metric>"`` to means.

    ``command`` is the task's command that runs these studies. A part of a study is published only where ``results``
    names a folder: in experiments/results it would replace the numbers of the whole study.

    Raises:
        UserError: An option is wrong, or trainings have failed; the others are finished.
    """
    _require_known("name", [options.name], studies)
    declared = studies[options.name]
    study = declared.chosen(options)
    _require_effect(study, options.changes)
    with _trained(study, options, command, whole=declared.whole(options)) as finished:
        return _publish(finished, options, _study_report(finished, options), command)


def run_search(searches: Mapping[str, Search], options: StudyOptions) -> dict[str, float]:
    """Try every setting of the grid, by validation data and on seeds that are none of the table's.

    Raises:
        UserError: As of :func:`run_study`.
    """
    _require_known("name", [options.name], searches)
    search = searches[options.name]
    study, rows = search.study, options.rows or tuple(search.grid)
    _require_known("rows", rows, search.grid)
    settings = {
        f"{row}: {', '.join(f'{name} {value:g}' for name, value in setting.items()).replace('_', ' ') or '-'}":
        {**study.rows[row], **setting} for row in rows for setting in search.grid[row]
    }  # fmt: skip
    levels = {
        level: {name: value for name, value in of_level.items() if not isinstance(value, Mapping)}
        for level, of_level in study.levels.items()
    }
    trials = replace(study, rows=settings, levels=levels, seeds=3, baselines={}, readings={})
    trials = trials.chosen(replace(options, rows=()))
    if len(trials.levels) > 1:
        raise UserError(f"levels are {', '.join(trials.levels)}, expected one to search on; pass --levels")
    _require_effect(trials, options.changes)
    whole = study.whole(options) and options.first_seed is None
    with _trained(trials, options, "search", whole=whole) as finished:
        return _publish(finished, options, _search_report(finished, search), "search")


def _study_report(finished: Finished, options: StudyOptions) -> Report:
    study = finished.study
    text = "\n\n".join(filter(None, (finished.fill(study.text), _changed(study, options), _how_compared(finished))))
    table = Part(text=text, rows=_table(finished), labels=len(_labels(finished, "", "")))
    makers = [partial(_block_parts, block=part) if isinstance(part, Block) else part for part in study.parts]
    parts = [table, *(part for make in makers for part in make(finished))]
    return Report(finished.fill(study.title), finished.name, parts, about=study.about or "")


def _search_report(finished: Finished, search: Search) -> Report:
    """Report every setting of a search, and the best one of each row."""
    (level,), settings, quality = finished.study.levels, finished.study.rows, search.quality
    signs = [-1 if column.better == "higher" else 1 for column in quality]
    ranks = {  # accuracies are equal up to the rounding of a mean
        name: [
            round(sign * fmean(column.values(finished.runs(name, level))), 4)
            for sign, column in zip(signs, quality, strict=True)
        ]
        for name in settings
    }
    row_of = {name: name.partition(": ")[0] for name in settings}
    best = {min((name for name in ranks if row_of[name] == row), key=ranks.__getitem__) for row in row_of.values()}
    rows = [
        {"row": row_of[name], "setting": name.partition(": ")[2]}
        | {column.name: finished.cell(name, column, level) for column in quality}
        | {"best": "best" if name in best else ""}
        for name in settings
    ]
    is_apart = finished.seeds[0] >= search.study.seeds  # as far as the table has the seeds that it declares
    equals = f", of equals that by {quality[-1].name}" if len(quality) > 1 else ""
    which = "which are none" if is_apart else "some of them"
    text = (
        f"Means over {len(finished.seeds)} seeds, {which} of the table's, on validation data. Best: the largest or "
        f"smallest {quality[0].name}{equals}; rows of the table have it."
    )
    title = f"Settings tried: {finished.fill(finished.study.title)}"
    return Report(title, f"search-{finished.name}", [Part(text=text, rows=rows, labels=2)])


def _require_known(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    known = [name for name in known if name]
    for name in names:
        if not known:
            raise UserError(f"{what} '{name}': the study has no {what}; leave --{what} out")
        if name not in known:
            raise UserError(f"{what} '{name}': {expected_one_of(known, name)}")


def _require_distinct(levels: Mapping[str, Options], options: StudyOptions) -> None:
    """Refuse a change by which a level would have the options of another one, and its name would be wrong."""
    changed = {level: {**of_level, **options.changes} for level, of_level in levels.items()}
    for level in options.levels or levels:
        replaced = [name for name, value in levels[level].items() if options.changes.get(name, value) != value]
        same = [other for other, of_level in changed.items() if of_level == changed[level]]
        if replaced and len(same) > 1:
            raise UserError(
                f"--{replaced[0].replace('_', '-')} would make the levels {' and '.join(same[:2])} the same; leave it "
                f"out, and choose a level by --levels"
            )


def _require_effect(study: Study, changes: Options) -> None:
    """Refuse a change of an option that rows use, all of them with a value of their own: it would change nothing."""
    if study.first:
        return  # it has the changes
    for name, value in changes.items():
        used = [getattr(config, name) for config in _configs_without_folder(study) if name not in _unused(config)]
        if used and value not in used:
            option = f"--{name.replace('_', '-')}"
            raise UserError(
                f"{option} {value} would change nothing, as every row that uses it has its own: "
                f"{', '.join(study.rows_with_own(name))}; leave {option} out"
            )


def _configs_without_folder(study: Study) -> Iterator[Any]:
    """Yield the options of a training of every row at every level."""
    make: Any = study.task.config
    for level in study.levels:
        for row in study.rows:
            yield make(**study.training(level, row, 0))


def _unused(config: Any) -> set[str]:
    return {option for option, _, _ in unused(config)}


@contextmanager
def _trained(study: Study, options: StudyOptions, command: str, *, whole: bool) -> Iterator[Finished]:
    """Train what is not trained yet, in the folder of the study, which is held until its report is written."""
    name, results = _name(study, options), options.results or (RESULTS if study.about is not None and whole else None)
    path = options.out or Path("runs", command, name)
    with open_run(path, options, free=("seeds", "rows", "changes")) as folder:
        configs, metrics, firsts = _train_all(study, options, folder, command)
        yield Finished(study, name, folder, results, configs, metrics, firsts)


def _train_all(
    study: Study, options: StudyOptions, folder: Path, command: str
) -> tuple[dict[Key, Any], dict[Key, dict[str, float]], dict[tuple[str, int], Any]]:
    """Return options and metrics of all trainings, and options of those that the rows go on from."""
    default = _SEARCH_SEED if command == "search" else 0
    first = default if options.first_seed is None else options.first_seed
    firsts, configs = _configs(study, options, folder, range(first, first + study.seeds))

    def train(configs: Mapping[Any, Any]) -> dict[Any, Any]:
        return run_all(
            partial(_train_one, study.task.run), configs, workers=options.workers, cluster=options.cluster,
            progress=options.progress,
        )  # fmt: skip

    if firsts:
        print("Training what all rows go on from:", flush=True)
        train(firsts)
    metrics = train(configs)
    for key, of_run in metrics.items():
        for text in study.task.warnings(of_run):
            print(f"warning: {', '.join(str(part) for part in key if part != '')}: {text}", file=sys.stderr)
    return configs, metrics, firsts


def _train_one(run: Callable[[Any], dict[str, float]], config: Any) -> dict[str, float]:
    """Train one network of a study, whose weight of the KL is chosen and told, so that no warning has to tell it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the KL outweighs the data")
        return run(config)


def _name(study: Study, options: StudyOptions) -> str:
    """Name of a study's folder and file; one of some levels alone, or with other options, has its own.

    A file or folder among the options says where something is, not what is computed, unless the study is named by it.
    """
    named = [Path(str(options.changes[name])).name for name in study.task.named if name in options.changes]
    changes = [f"{name}-{value}" for name, value in _others(study, options).items() if not isinstance(value, Path)]
    return "-".join((study.name, *options.levels, *named, *changes))


def _others(study: Study, options: StudyOptions) -> dict[str, Any]:
    return {name: value for name, value in options.changes.items() if name not in study.task.named}


def _changed(study: Study, options: StudyOptions) -> str:
    changes = [
        f"{name.replace('_', ' ')} {getattr(value, 'name', value)}{_exceptions(study, name, value)}"
        for name, value in _others(study, options).items()
    ]
    return f"Other than said here: {', '.join(changes)}." if changes else ""


def _exceptions(study: Study, name: str, value: Any) -> str:
    """Say which rows a change of an option does not reach."""
    if not study.first and all(name in _unused(config) for config in _configs_without_folder(study)):
        return " (which no row uses)"
    exceptions = [row for row in study.rows_with_own(name) if study.rows[row].get(name) != value]
    return f" (not in {', '.join(exceptions)}, which set it themselves)" if exceptions else ""


def _configs(
    study: Study, options: StudyOptions, folder: Path, seeds: Iterable[int]
) -> tuple[dict[tuple[str, int], Any], dict[Key, Any]]:
    """Return options of the trainings to go on from, and of all rows; the first seed comes first."""
    firsts, configs = dict[tuple[str, int], Any](), dict[Key, Any]()

    def config(level: str, row: str | None, seed: int, first: Path | None = None) -> Any:
        parts = level, "base" if row is None else row, str(seed)
        name = "-".join(filter(None, parts)).translate({ord(" "): "-", ord(","): None})
        make: Any = study.task.config
        return make(**options.for_runs(), **study.training(level, row, seed, first), out=folder / "runs" / name)

    for seed in seeds:
        for level in study.levels:
            if study.first:
                firsts[level, seed] = config(level, None, seed)
            first = firsts[level, seed].out if study.first else None
            for row in study.rows:
                configs[row, level, seed] = config(level, row, seed, first)
    return firsts, configs


def _how_compared(finished: Finished) -> str:
    seeds = len(finished.seeds)
    if seeds == 1:
        return "One seed."
    text, tests = f"Mean ± standard deviation over {seeds} seeds.", finished.tests
    if tests == 0:
        return text
    return (
        f"{text} Differences are taken seed by seed, with their 95 % confidence interval (Student's t, {seeds - 1} "
        f"degrees of freedom). Bold: clearly different from zero at 5 %, after Bonferroni's correction for the {tests} "
        f"comparisons."
    )


def _labels(finished: Finished, row: str, level: str) -> Row:
    study = finished.study
    head, axis = study.heads
    labels = {axis: level} if axis else {}
    against = {"compared with": study.reference(row) or ""} if study.baselines else {}
    return {**labels, head: row, **against}


def _table(finished: Finished) -> list[Row]:
    """Return the rows of the study, at each level by itself or, in a wide table, with columns for each level."""
    study, rows, wide = finished.study, list[Row](), finished.study.is_wide
    more = finished.present([column for column in study.columns if not column.compared], *study.levels)
    for levels in [list(study.levels)] if wide else [[level] for level in study.levels]:
        for row in finished.rows:
            cells = _labels(finished, row, levels[0])
            for level in levels:
                of = f"{level} " if wide else ""
                for column in finished.main(level):
                    cells[f"{of}{column.name}"] = finished.cell(row, column, level, error=wide)
                    if len(finished.rows) > 1:
                        cells[f"{of}{column.name}: difference"] = finished.difference(row, column, level)
                cells |= {f"{of}{column.name}": finished.cell(row, column, level) for column in more}
                if study.paper:
                    paper = study.paper.get(row, {} if wide else "")
                    cells[f"{of}paper"] = paper.get(level, "") if wide else paper
            rows.append(cells)
    heads = dict.fromkeys(head for row in rows for head in row)
    return [{head: row.get(head, "-") for head in heads} for row in rows]


def _block_parts(finished: Finished, block: Block) -> Iterator[Part]:
    title, text = finished.fill(block.title), finished.fill(block.text)
    for number, level in enumerate(finished.study.levels):
        shown = finished.present(block.columns, level)
        rows = [
            {finished.study.heads[0]: row} | {column.name: finished.cell(row, column, level) for column in shown}
            for row in finished.rows
            if finished.values(row, block.columns[0], level)
        ]
        if rows:
            about = "\n\n".join(filter(None, (text if number == 0 else "", f"{level}:" if level else "")))
            yield Part(title if number == 0 else "", about, rows, terminal=block.terminal)


def curves(finished: Finished, *, aims: Mapping[str, float] | None = None) -> Iterator[Part]:
    """Draw the numbers of the rows over the levels, with a line at the aim of a column; a part of a study."""
    study, values = finished.study, finished.values
    shown = {
        column.name: {row: [values(row, column, level) for level in study.levels] for row in finished.rows}
        for column in finished.present(study.columns, *study.levels)
    }
    figure = level_curves(shown, list(study.levels), axis=study.heads[1], title=finished.fill(study.title), aims=aims)
    picture = save(figure, finished.pictures / f"{finished.name}.png")
    yield Part(picture=picture, caption=finished.fill(study.title))


def _publish(finished: Finished, options: StudyOptions, report: Report, command: str) -> dict[str, float]:
    """Write metrics.json and report.md, print the tables, publish them if asked, and return the metrics."""
    study, means = finished.study, dict[str, float]()
    for row, level in dict.fromkeys(key[:2] for key in finished.metrics):
        runs = finished.runs(row, level)
        for name in dict.fromkeys(name for metrics in runs for name in metrics):
            key = "/".join(filter(None, (level, row, name)))
            means[key] = fmean(metrics[name] for metrics in runs if name in metrics)
    write_metrics(finished.folder, means)
    seeds = f"seeds {finished.seeds[0]} to {finished.seeds[-1]}"
    folders = [Path(str(config.out)) for config in finished.configs.values()]
    line = command_line(f"{study.task.script} {command} {options.name}", options, **options.changes)
    source = source_of(folders, line, seeds)
    report.write(finished.folder, source)
    if finished.results is not None or study.about is not None:
        publish(finished.results, report, source)
    return means
