"""Many trainings in one folder: their rows, folders, means, and what is written at the end."""

import math
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from experiments.files import UserError
from experiments.harness.folder import exclusive, open_run
from experiments.harness.options import RunOptions, SweepOptions
from experiments.harness.results import read_metrics, write_environment, write_metrics
from experiments.harness.sweep import Sweep, Trainings
from experiments.report.report import Part, Report
from experiments.report.results import read_results


@dataclass(frozen=True, kw_only=True)
class Training(RunOptions):
    seed: int = 0
    level: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Levels(SweepOptions):
    seeds: int = 2


def train(config):
    config.out.mkdir(parents=True)
    write_environment(config.out, torch.device("cpu"))
    return {"score": config.level + config.seed}


@exclusive
def run(config):
    sweep = Sweep("levels", config, "levels", free=("seeds",), always=("seeds",)).open()
    rows = {("some row", level): {"level": level} for level in (0.0, 0.5)}
    trainings = sweep.train(train, sweep.configs(Training, rows, range(config.seeds)))
    parts = [Part(rows=[{"row": row[0], "level": row[1]} for row in trainings.rows])]
    return sweep.finish(Report("Levels", "levels", parts), trainings, definitions={"score": "what it scores"})


def sweep_options(tmp_path, **options):
    return Levels(out=tmp_path / "out", results=tmp_path / "results", workers=1, progress=False, **options)


def test_a_sweep_from_the_folder_to_the_page(tmp_path, capsys):
    metrics = run(sweep_options(tmp_path))
    assert metrics == {"some row/0.0/score": 0.5, "some row/0.5/score": 1.0}
    assert read_metrics(tmp_path / "out") == metrics
    assert "what it scores" in (tmp_path / "out" / "metrics.json").read_text()
    # seeds first, and numbers without what they do not need
    names = [path.name for path in sorted((tmp_path / "out" / "runs").iterdir())]
    assert names == ["some-row-0-0", "some-row-0-1", "some-row-0.5-0", "some-row-0.5-1"]
    _, source = read_results(tmp_path / "results" / "levels.json")
    assert (source.command, source.seeds) == ("python -m levels --seeds 2", "seeds 0 to 1")
    assert "some row" in capsys.readouterr().out
    with pytest.raises(UserError, match="--resume"):
        run(sweep_options(tmp_path))


def test_an_interrupted_overwriting_leaves_no_older_run(tmp_path):
    """Else resume would read those that had not begun again."""

    def versions(number, **options):
        config = sweep_options(tmp_path, **options)

        @exclusive
        def one(config):
            open_run(config.out, config)
            if (config.out / "metrics.json").is_file():
                return read_metrics(config.out)
            if number == 2 and config.seed == 1 and options.get("overwrite"):
                raise KeyboardInterrupt
            write_metrics(config.out, {"version": float(number)}, {"version": "of the code"})
            return read_metrics(config.out)

        @exclusive
        def all_of_them():
            sweep = Sweep("levels", config, "levels", free=("seeds",)).open()
            found = sweep.train(one, sweep.configs(Training, {("row",): {}}, range(3)))
            return [run["version"] for run in found.runs("row")]

        return all_of_them()

    assert versions(1) == [1, 1, 1]
    with pytest.raises(KeyboardInterrupt):
        versions(2, overwrite=True)
    assert versions(2, resume=True) == [2, 2, 2]
    with pytest.raises(UserError, match=r"resume and overwrite are both set.*to go on leave --overwrite out"):
        versions(2, resume=True, overwrite=True)


def test_rows_and_runs_by_seed():
    configs = {
        (row, seed): Training(out=Path(f"{row}-{seed}"), seed=seed) for seed in (3, 1) for row in ("first", "second")
    }
    trainings = Trainings(configs, {key: {"score": float(key[1])} for key in configs})
    assert trainings.rows == [("first",), ("second",)]
    assert trainings.seeds == [3, 1]
    assert trainings.runs("second") == [{"score": 3.0}, {"score": 1.0}]
    assert trainings.by_row().keys() == {"first", "second"}
    assert trainings.first("second").seed == 3
    assert trainings.folders[0] == Path("first-3")


def test_means_are_over_the_seeds_that_have_the_number():
    metrics = {("row", 0): {"a": 1.0}, ("row", 1): {"a": 2.0, "b": 4.0}, ("row", 2): {"a": math.nan, "b": 5.0}}
    means = Trainings(dict.fromkeys(metrics, RunOptions()), metrics).means()
    assert means["row/b"] == 4.5
    assert math.isnan(means["row/a"])


@pytest.mark.parametrize("results", [None, "results"])
def test_pictures_lie_beside_the_published_numbers(results, tmp_path):
    config = Levels(out=tmp_path / "out", results=None if results is None else tmp_path / results)
    expected = tmp_path / ("results/pictures" if results else "out/figures")
    assert Sweep("levels", config, "levels").pictures == expected
    assert Sweep("levels", Levels(), "levels", tmp_path / "there").results == tmp_path / "there"
    assert Sweep("levels", Levels(), "levels").folder == Path("runs/levels")
