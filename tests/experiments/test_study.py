"""A study without a network: what is trained, compared, chosen and published."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from matplotlib.figure import Figure
from scipy import stats

import experiments.study
from experiments.files import UserError
from experiments.folder import write_environment
from experiments.options import StudyOptions, TrainingOptions
from experiments.report.report import read_results, write_results
from experiments.report.statistics import Column, beside, paired_difference
from experiments.study import Block, First, Search, Seed, Study, curves, run_search, run_study

SCORE = Column("score", "{kind}_score", 1, better="higher")
NOISE = (0.0, 1.0, -1.0)  # of the seeds, shared by the rows


@dataclass(frozen=True, kw_only=True)
class Config(TrainingOptions):
    """Options of nothing."""

    gain: float = 0.0
    level: float = 0.0
    init_from: Path | None = None


class Task:
    """What a study needs of a task."""

    config, script, named = Config, "experiments.nothing", ()

    def run(self, config: Config) -> dict[str, float]:
        raise NotImplementedError  # patched

    def warnings(self, metrics: Mapping[str, float]) -> list[str]:
        return ["no gain"] if metrics["mean_score"] == 0 else []


@pytest.fixture(autouse=True)
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """Every training that was made: its score is its gain, the noise of its seed, and half of its level."""
    done = []

    def run(_: Any, config: Config) -> dict[str, float]:
        done.append(config)
        config.out.mkdir(parents=True)  # type: ignore[union-attr]
        write_environment(config.out, torch.device("cpu"))  # type: ignore[arg-type]
        score = config.gain + NOISE[config.seed % 3] + config.level / 2
        return {"mean_score": score, "other_score": 10 * score, "val": -abs(config.gain - 2)}

    monkeypatch.setattr(Task, "run", run)
    monkeypatch.setattr(experiments.study, "run_all", lambda run, configs, **_: {k: run(c) for k, c in configs.items()})
    return done


def study(**changes: Any) -> Study:
    rows: Mapping[str, Mapping[str, Any]] = {"soft": {"gain": 0.0}, "good": {"gain": 3.0}, "better": {"gain": 3.5}}
    made = Study(name="made", title="Made", task=Task(), rows=rows, columns=(SCORE,), text="{seeds} of {config.gain}.")  # type: ignore[arg-type]
    return replace(made, **changes)


def options(folder: Path, **given: Any) -> StudyOptions:
    return StudyOptions(
        **{"name": "made", "workers": 1, "progress": False, "out": folder / "out", "results": folder / "results"}
        | given
    )


def published(folder: Path) -> Any:
    (path,) = (folder / "results").glob("*.json")
    return read_results(path)


def test_rows_are_compared_seed_by_seed(tmp_path: Path, trained: list[Config]) -> None:
    noisy = study(
        rows={"soft": {"gain": 0.0}, "good": {"gain": 3.0}},
        levels={"low": {}, "high": {"level": 1.0}},
        heads=("row", "at"),
    )
    means = run_study({"made": noisy}, options(tmp_path))
    assert [(config.seed, config.level, config.gain) for config in trained[:4]] == [
        (0, 0.0, 0.0), (0, 0.0, 3.0), (0, 1.0, 0.0), (0, 1.0, 3.0),
    ]  # fmt: skip
    assert means["high/good/mean_score"] == pytest.approx(3.5)
    report, source = published(tmp_path)
    table = report.parts[0]
    assert [(row["at"], row["row"]) for row in table.rows] == [
        ("low", "soft"), ("low", "good"), ("high", "soft"), ("high", "good"),
    ]  # fmt: skip
    found = table.rows[1]["score: difference"]
    # the noise of the seeds is shared, so that the interval is a point
    assert (found.mean, found.low, found.high, found.against, found.better) == (3, 3, 3, "soft", "higher")
    assert table.rows[0]["score: difference"] == ""
    assert "3 of 0.0." in table.text
    assert "correction for the 2 comparisons" in table.text
    assert source.command == "python -m experiments.nothing table made"
    assert str(table.rows[1]["score"]) == "3.0 ± 1.0"
    # reading and writing change nothing
    path = next((tmp_path / "results").glob("*.json"))
    assert write_results(tmp_path / "again", report, source).read_text() == path.read_text()


def test_a_row_without_the_number_has_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a scheme without gold links, beside schemes that have an error rate."""
    run = Task.run
    monkeypatch.setattr(
        Task, "run", lambda task, config: {
            name: value for name, value in run(task, config).items() if (name, config.gain) != ("mean_score", 3.0)
        },
    )  # fmt: skip
    monkeypatch.setattr(Task, "warnings", lambda *_: [])
    run_study({"made": study()}, options(tmp_path))
    soft, good, better = published(tmp_path)[0].parts[0].rows
    assert (good["score"], good["score: difference"]) == ("-", "-")
    assert better["score: difference"].mean == pytest.approx(3.5)
    assert soft["score: difference"] == ""


def test_published_values_of_the_seeds_give_the_paired_intervals_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = {0.0: (0.0, 1.0, -1.0), 3.0: (0.25, 0.5, -0.5)}

    def run(_: Any, config: Config) -> dict[str, float]:
        config.out.mkdir(parents=True)  # type: ignore[union-attr]
        write_environment(config.out, torch.device("cpu"))  # type: ignore[arg-type]
        return {"mean_score": config.gain + noise[config.gain][config.seed]}

    monkeypatch.setattr(Task, "run", run)
    run_study({"made": study(rows={"soft": {"gain": 0.0}, "good": {"gain": 3.0}})}, options(tmp_path))
    soft, good = published(tmp_path)[0].parts[0].rows
    assert soft["score"].values == (0.0, 1.0, -1.0)
    again, shown = paired_difference(good["score"].values, soft["score"].values), good["score: difference"]
    assert (again.mean, again.low, again.high) == (shown.mean, shown.low, shown.high)
    assert again.high > again.low


def test_the_aim_of_a_column_is_a_line_in_its_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = list[Figure]()
    monkeypatch.setattr(experiments.study, "save", lambda figure, path: figures.append(figure) or path)
    drawn = study(
        rows={"soft": {"gain": 0.0}, "good": {"gain": 3.0}}, levels={"low": {}, "high": {"level": 1.0}},
        heads=("row", "at"), columns=(SCORE, *beside(Column("other", "other_score"))),
        parts=(partial(curves, aims={"score": 2.5}),),
    )  # fmt: skip
    run_study({"made": drawn}, options(tmp_path))
    (figure,) = figures
    aims = {
        axes.get_title(): [line.get_ydata()[0] for line in axes.lines if line.get_linestyle() == "--"]
        for axes in figure.axes
    }
    assert aims == {"score (dashed: 2.5)": [2.5], "other": []}


def test_the_correction_is_bonferronis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of differences with p just above and just below .05 / 2 the second is bold."""

    def run(_: Any, config: Config) -> dict[str, float]:
        config.out.mkdir(parents=True)  # type: ignore[union-attr]
        write_environment(config.out, torch.device("cpu"))  # type: ignore[arg-type]
        return {"mean_score": config.gain + (config.gain > 0) * NOISE[config.seed]}

    critical = stats.t(2).ppf(1 - 0.05 / 2 / 2) / 3**0.5  # mean over deviation
    rows = {"soft": {"gain": 0.0}, "less": {"gain": 0.99 * critical}, "more": {"gain": 1.01 * critical}}
    monkeypatch.setattr(Task, "run", run)
    run_study({"made": study(rows=rows)}, options(tmp_path))
    cells = [row["score: difference"] for row in published(tmp_path)[0].parts[0].rows]
    assert [cell.bold for cell in cells[1:]] == [False, True]


def test_a_wide_table_and_rows_of_another_kind(tmp_path: Path) -> None:
    wide = study(
        levels={"low": {}, "high": {"level": 1.0, "better": {"gain": 4.5}}},
        readings={"soft again": ("soft", "other")},
        baselines={"better": "good"}, paper={"good": {"high": "3.1"}},
        columns=(SCORE, *beside(Column("raw", "mean_score")), Column("high one", "mean_score", levels=("high",))),
        parts=(Block("More of {seeds}", "", (Column("other", "other_score"),)), curves),
    )  # fmt: skip
    run_study({"made": wide}, options(tmp_path))
    report, _ = published(tmp_path)
    rows = {row["row"]: row for row in report.parts[0].rows}
    assert list(rows) == ["soft", "soft again", "good", "better"]
    assert rows["soft again"]["high score"].mean == pytest.approx(5)
    assert (rows["better"]["high score"].mean, rows["better"]["high score: difference"].mean) == (5.0, 1.5)
    assert {"high high one", "low raw"} <= rows["good"].keys()
    assert not {"low high one", "low raw: difference"} & rows["good"].keys()
    assert (rows["good"]["low raw"].mean, rows["good"]["high raw"].mean) == (3, 3.5)
    assert (rows["better"]["compared with"], rows["better"]["low score: difference"].mean) == ("good", 0.5)
    assert (rows["good"]["high paper"], rows["good"]["low paper"]) == ("3.1", "")
    assert report.parts[1].title == "More of 3"
    assert report.parts[-1].picture == tmp_path / "results" / "pictures" / "made.png"


def test_changes_hold_for_all_trainings_and_are_told(tmp_path: Path, trained: list[Config]) -> None:
    changes = {"level": 4.0, "init_from": tmp_path / "weights"}
    run_study(
        {"short": study()},
        options(tmp_path, name="short", seeds=2, first_seed=5, rows=("soft", "good"), changes=changes),
    )
    assert {(config.level, config.seed) for config in trained} == {(4.0, 5), (4.0, 6)}
    report, source = published(tmp_path)
    assert report.name == "made-level-4.0"
    assert "Other than said here: level 4.0, init from weights." in report.parts[0].text
    assert source.command == (
        'python -m experiments.nothing table short --seeds 2 --first-seed 5 --rows \'["soft", "good"]\' --level 4.0 '
        "--init-from weights"
    )


def test_a_change_that_some_rows_set_themselves_is_told(tmp_path: Path, trained: list[Config]) -> None:
    made = study(rows={"soft": {}, "good": {"gain": 3.0}, "better": {}}, levels={"": {"better": {"gain": 3.5}}})
    run_study({"made": made}, options(tmp_path, changes={"gain": 1.0}))
    assert {config.gain for config in trained} == {1.0, 3.0, 3.5}
    report, _ = published(tmp_path)
    assert "Other than said here: gain 1.0 (not in good, better, which set it themselves)." in report.parts[0].text


@pytest.mark.parametrize("is_search", [False, True])
def test_a_change_that_no_training_would_have_is_refused(
    is_search: bool, tmp_path: Path, trained: list[Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every row sets it, or does not use it, as soft attention a concentration."""

    class Sometimes(Config):
        """Options of which one is used at times."""

        USED_BY: ClassVar[Mapping[str, Any]] = {"gain": {"precision": ("bf16-mixed",)}}

    monkeypatch.setattr(Task, "config", Sometimes)
    made = study(rows={"soft": {}, "good": {"gain": 3.0, "precision": "bf16-mixed"}})
    given = options(tmp_path, changes={"gain": 1.0})
    said = r"^--gain 1\.0 would change nothing, as every row that uses it has its own: good.*; leave --gain out$"
    search = Search(made, {"good": ({"gain": 3.0},)}, (SCORE,))
    assert not run_study({"made": made}, replace(given, changes={"gain": 3.0}, out=tmp_path / "same")).keys() - {
        f"{row}/{name}" for row in ("soft", "good") for name in ("mean_score", "other_score", "val")
    }  # a file of options that says what a row has anyway
    trained.clear()
    run = partial(run_search, {"made": search}) if is_search else partial(run_study, {"made": made})
    with pytest.raises(UserError, match=said):
        run(given)
    assert not trained
    assert not (tmp_path / "out").exists()


def test_a_change_that_no_row_uses_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Never(Config):
        """Options of which one is not used."""

        USED_BY: ClassVar[Mapping[str, Any]] = {"level": {"precision": ("bf16-mixed",)}}

    monkeypatch.setattr(Task, "config", Never)
    run_study({"made": study()}, options(tmp_path, changes={"level": 1.0}))
    assert "Other than said here: level 1.0 (which no row uses)." in published(tmp_path)[0].parts[0].text


@pytest.mark.parametrize("levels", [(), ("high",)])
def test_a_change_that_makes_two_levels_the_same_is_refused(
    levels: tuple[str, ...], tmp_path: Path, trained: list[Config]
) -> None:
    """The names of the levels would say something else than what is trained."""
    made = study(levels={"low": {"level": 0.0}, "high": {"level": 1.0}}, heads=("row", "at"))
    said = "^--level would make the levels low and high the same; leave it out, and choose a level by --levels$"
    with pytest.raises(UserError, match=said):
        run_study({"made": made}, options(tmp_path, levels=levels, changes={"level": 0.0}))
    assert not trained
    run_study({"made": made}, options(tmp_path, levels=("low",), changes={"level": 0.0}))  # which it has anyway
    assert {config.level for config in trained} == {0.0}


def test_rows_go_on_from_a_first_training(
    tmp_path: Path, trained: list[Config], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its options stand above the study's, and a change above both."""
    made = study(
        rows={"soft": {}, "good": {"gain": 3.0}}, levels={"low": {}, "high": {"level": 1.0}}, heads=("row", "at"),
        seeds=1, options={"init_from": First({"max_epochs": 7, "gain": 9.0})},
        text="{first.max_epochs} and {config.max_epochs}",
    )  # fmt: skip
    run_study({"made": made}, options(tmp_path, changes={"max_epochs": 2}))
    runs = tmp_path / "out" / "runs"
    bases, rows = trained[:2], trained[2:]
    assert [(one.gain, one.level, one.max_epochs, one.init_from) for one in bases] == [
        (9.0, 0.0, 2, None), (9.0, 1.0, 2, None),
    ]  # fmt: skip
    assert [(one.gain, one.max_epochs, one.init_from) for one in rows] == [
        (gain, 2, runs / f"{level}-base-0") for level in ("low", "high") for gain in (0.0, 3.0)
    ]
    report, source = published(tmp_path)
    assert [row["row"] for row in report.parts[0].rows] == ["soft", "good"] * 2
    assert report.parts[0].text.startswith("2 and 2\n\nOther than said here: max epochs 2.")
    assert source.command.endswith("made --max-epochs 2")
    assert "warning: soft, low, 0: no gain" in capsys.readouterr().err


def test_a_search_chooses_by_quality(tmp_path: Path, trained: list[Config]) -> None:
    grid = {"good": ({"gain": 1.5}, {"gain": 2.25}, {"gain": 1.75})}  # .5, .25 and .25 away from 2
    quality = (Column("validation", "val", better="higher"), Column("score", "mean_score", better="lower"))
    run_search({"made": Search(study(), grid, quality)}, options(tmp_path))
    assert {config.seed for config in trained} == {1000, 1001, 1002}
    report, source = published(tmp_path)
    assert {row["setting"]: row["best"] for row in report.parts[0].rows} == {
        "gain 1.5": "", "gain 2.25": "", "gain 1.75": "best",
    }  # fmt: skip
    assert source.command == "python -m experiments.nothing search made"
    text = report.parts[0].text
    assert text.startswith("Means over 3 seeds, which are none of the table's, on validation data. Best: the largest")
    assert "validation, of equals that by score;" in text


def test_a_search_on_seeds_of_the_table_says_so(tmp_path: Path) -> None:
    search = Search(study(seeds=2), {"good": ({"gain": 1.5},)}, (Column("validation", "val", better="higher"),))
    run_search({"made": search}, options(tmp_path, first_seed=1))
    text = published(tmp_path)[0].parts[0].text
    assert text.startswith("Means over 3 seeds, some of them of the table's, on validation data.")
    assert "validation; rows of the table have it" in text


@pytest.mark.parametrize("first_seed", [0, 7])
def test_a_search_begins_with_the_seed_that_is_given(
    first_seed: int, tmp_path: Path, trained: list[Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zero too; it may be one of the table's, so nothing is published."""
    monkeypatch.setattr(experiments.study, "RESULTS", tmp_path / "published")
    search = Search(study(), {"good": ({"gain": 1.5},)}, (Column("validation", "val", better="higher"),))
    run_search({"made": search}, options(tmp_path, first_seed=first_seed, results=None))
    assert {config.seed for config in trained} == {first_seed, first_seed + 1, first_seed + 2}
    assert not (tmp_path / "published").exists()


def test_an_option_may_be_the_seed(tmp_path: Path, trained: list[Config]) -> None:
    run_study({"made": study(options={"level": Seed.SEED})}, options(tmp_path, first_seed=4))
    assert {(config.seed, config.level) for config in trained} == {(4, 4.0), (5, 5.0), (6, 6.0)}


def test_an_option_that_is_the_seed_counts_the_trainings_of_a_search(tmp_path: Path, trained: list[Config]) -> None:
    """As the number of a fixed split, of which there are few."""
    search = Search(study(options={"level": Seed.SEED}), {"good": ({"gain": 1.5},)}, (Column("validation", "val"),))
    run_search({"made": search}, options(tmp_path))
    assert {(config.seed, config.level) for config in trained} == {(1000, 0.0), (1001, 1.0), (1002, 2.0)}


def test_a_study_has_few_fields() -> None:
    assert len(fields(Study)) <= 15


@pytest.mark.parametrize(
    ("given", "is_published"), [({"seeds": 5}, True), ({"seeds": 2}, False), ({"changes": {"level": 1.0}}, False)]
)
def test_only_a_whole_study_takes_the_place_of_published_numbers(
    given: dict[str, Any], is_published: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiments.study, "RESULTS", tmp_path / "results")
    run_study({"made": study()}, options(tmp_path, results=None, **given))
    assert (tmp_path / "results").exists() == is_published


def test_a_study_of_no_task_stays_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments.study, "RESULTS", tmp_path / "results")
    run_study({"made": study(about=None)}, options(tmp_path, results=None))
    assert not (tmp_path / "results").exists()
    assert (tmp_path / "out" / "report.md").is_file()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rows": ("soft", "god")}, "rows 'god': expected one of soft, good, better"),
        ({"levels": ("low",)}, "levels 'low': the study has no levels; leave --levels out"),
        ({"rows": ("good",)}, "rows are compared with 'soft', which has to be among them"),
    ],
)
def test_what_a_study_has_not_is_named(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        run_study({"made": study()}, options(tmp_path, **given))


def test_overwriting_removes_all_runs_before_the_first_begins(tmp_path: Path, trained: list[Config]) -> None:
    run_study({"made": study()}, options(tmp_path))
    run_study({"made": study()}, options(tmp_path, overwrite=True))  # whose folders must not be there
    assert len(trained) == 2 * 9
    assert all(config.resume and not config.overwrite for config in trained)


def test_a_study_whose_kl_weight_is_chosen_does_not_warn_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    def run(_: Any, config: Config) -> dict[str, float]:
        warnings.warn("the KL outweighs the data: 3 nats", stacklevel=1)
        warnings.warn("something else", stacklevel=1)
        config.out.mkdir(parents=True)  # type: ignore[union-attr]
        write_environment(config.out, torch.device("cpu"))  # type: ignore[arg-type]
        return {"mean_score": 1.0}

    monkeypatch.setattr(Task, "run", run)
    run_study({"made": study()}, options(tmp_path))
    assert {str(warning.message) for warning in recwarn} == {"something else"}
