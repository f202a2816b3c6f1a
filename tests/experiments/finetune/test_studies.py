"""Studies of fine-tuned transformers: their declarations, and what they publish, on a tiny random BERT."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.files import UserError
from experiments.finetune import studies
from experiments.finetune.config import COMMANDS
from experiments.finetune.studies import QA_STUDIES, STUDIES
from experiments.harness.cli import run_commands
from experiments.harness.options import StudyOptions
from experiments.report.report import Report
from experiments.report.results import read_results
from experiments.study import Finished, run_search, run_study
from tests.experiments.finetune.tiny_glue import write_bert, write_glue
from tests.experiments.finetune.tiny_squad import write_squad

ALL = {**STUDIES, **QA_STUDIES}
TINY = {"max_epochs": 1, "num_samples": 2, "batch_size": 20, "length": 20}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with all data and a pretrained model."""
    write_bert(tmp_path / "some" / "bert")
    write_squad(tmp_path)
    return write_glue(tmp_path)


def options(place: Path, name: str, **given: Any) -> StudyOptions:
    changes = {"model": str(place / "some" / "bert"), **TINY, **({"stride": 8} if name in QA_STUDIES else {})}
    how: dict[str, Any] = {
        "data_root": place,
        "out": place / "out",
        "results": place,
        "workers": 1,
        "progress": False,
        "seeds": 1,
    }
    return StudyOptions(name=name, **how | {"rows": ("soft", "WC"), "changes": changes} | given)


def assert_same_differences(report: Report) -> None:
    """Those with intervals over items are those with intervals over seeds."""
    main, items, *_ = report.parts
    assert items.title.startswith("Differences over test")
    for row, of_items in zip(main.rows[1:], items.rows, strict=True):
        for head, cell in list(of_items.items())[1:]:
            assert cell.mean == pytest.approx(row[f"{head}: difference"].mean, abs=1e-4)
            assert (cell.over, cell.against, cell.better) == ("items", "soft", None)


@pytest.mark.parametrize("name", ALL)
def test_a_study_declares_options_that_there_are(name: str) -> None:
    study = ALL[name]
    assert study.name == name
    known = {field.name for field in fields(study.task.config)}
    assert set(study.named) <= known
    assert {*study.rows, *study.shows} - {"soft"} <= study.kinds.keys()
    for level in study.levels.values():
        for of_row in study.rows.values():
            study.task.config(**{**study.options, **level, **of_row, "model": "bert"})
    # what a search chose is one of the settings that it tried
    for row, settings in study.grid.items():
        assert any(setting.items() <= study.rows[row].items() for setting in settings)


def test_tasks_of_glue_have_their_own_metrics_and_two_intervals(place: Path) -> None:
    means = studies.table(options(place, "glue", levels=("mrpc", "stsb"), seeds=2))
    report, source = read_results(next(place.glob("glue-*.json")))
    assert report.title.startswith("GLUE with bert, ")
    assert f"--model {place}/some/bert" in source.command
    assert report.about == "text: GLUE"
    main, items, mean, *scores = report.parts
    rows = {row["row"]: row for row in main.rows}
    assert list(rows) == ["soft", "MC dropout", "WC"]
    assert [row["row"] for row in mean.rows] == ["soft", "WC"]
    for row, trained, kind in (
        ("soft", "soft", "mean"),
        ("MC dropout", "soft", "mc_dropout"),
        ("WC", "WC", "attention"),
    ):
        for column, metric in (("mrpc F1 %", "mrpc/{}/test_{}_f1"), ("stsb Pearson %", "stsb/{}/test_{}_pearson")):
            assert rows[row][column].mean == pytest.approx(100 * means[metric.format(trained, kind)])
    assert rows["WC"]["stsb paper"] == "91.1"
    assert_same_differences(report)
    assert items.rows[1]["mrpc F1 %"].data == "mrpc"
    assert scores[0].rows[2]["NLL"].mean == pytest.approx(means["mrpc/WC/test_attention_nll"])
    assert "AURC" not in scores[1].rows[0]  # grades


def test_intervals_over_items_are_those_of_resampled_predictions(place: Path) -> None:
    """The mean over seeds of the difference of F1, resampled; classes by the mean of the probabilities."""
    generator = np.random.default_rng(1)
    study = replace(STUDIES["glue"], rows={row: {} for row in ("soft", "WC")}, shows={}, levels={"mrpc": {}})
    labels, configs, logits = generator.integers(0, 2, 30), {}, {}
    for key in [(row, "mrpc", seed) for row in study.rows for seed in (0, 1)]:
        folder = place / "-".join(map(str, key))
        folder.mkdir()
        kind = study.kinds.get(key[0], "mean")
        logits[key] = 3 * generator.normal(size=(3, 30, 2))
        arrays: dict[str, Any] = {f"{kind}_test": logits[key], "labels_test": labels}
        np.savez(folder / "predictions.npz", **arrays)
        configs[key] = options(place, "glue", out=folder)
    metrics = {key: {f"test_{study.kinds.get(key[0], 'mean')}_f1": 0.0} for key in configs}
    finished = Finished(study, "glue", place, place, configs, metrics)
    (row,) = studies.over_items(finished, studies._example_scores, "examples").rows
    probabilities = {key: np.exp(one) / np.exp(one).sum(-1, keepdims=True) for key, one in logits.items()}
    classes = {key: one.mean(0).argmax(-1) for key, one in probabilities.items()}

    def difference(places: Any) -> float:
        f1 = {key: 200 * (labels * one)[places].sum() / (labels + one)[places].sum() for key, one in classes.items()}
        return float(np.mean([f1["WC", "mrpc", seed] - f1["soft", "mrpc", seed] for seed in (0, 1)]))

    drawn = [difference(np.repeat(np.arange(30), count.astype(int))) for count in studies.resamples(30)[1:]]
    found = row["mrpc F1 %"]
    assert found.mean == pytest.approx(difference(np.arange(30)))
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(drawn, (0.025, 0.975))))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ALL if name != "glue"])
def test_every_study_end_to_end(name: str, place: Path) -> None:
    study = ALL[name]
    levels = () if "" in study.levels else tuple(study.levels)[-2:]
    means = run_study({name: study}, options(place, name, levels=levels))
    (path,) = place.glob("*.json")
    report, _ = read_results(path)
    assert {key.split("/")[-2] for key in means} == {"soft", "WC"}
    for level, columns in (study.level_columns or dict.fromkeys(study.levels, study.columns)).items():
        for column in columns:
            head = f"{level} {column.name}" if study.wide else column.name
            assert {head, f"{head}: difference"} <= report.parts[0].rows[-1].keys()
    if study.blocks:
        assert_same_differences(report)


def test_search_tries_one_row_and_chooses_by_the_validation_score(place: Path) -> None:
    study = replace(STUDIES["glue"], grid={"WC": STUDIES["glue"].grid["WC"][:2], "LC": STUDIES["glue"].grid["LC"]})
    means = run_search({"glue": study}, options(place, "glue", levels=("rte",), rows=("WC",)))
    scores = {key: value for key, value in means.items() if key.endswith("val_score")}
    assert len(scores) == 2
    report, _ = read_results(next(place.glob("search-glue-*.json")))
    assert [row["best"] for row in report.parts[0].rows].count("best") == 1


def test_the_command_names_its_files_after_model_and_changes(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    line = (
        "qa-table squad-v2 --data-root . --results page --workers 1 --no-progress --seeds 1 --rows [soft] "
        "--num-samples 2 --length 20 --stride 8 --precision 32 --max-epochs 1 --batch-size 20 --model some/bert"
    )
    assert run_commands(COMMANDS, name="experiments.finetune", arguments=line.split()) == 0
    (path,) = (place / "page").glob("*.json")
    report, source = read_results(path)
    changes = "batch_size-20-length-20-max_epochs-1-num_samples-2-precision-32-stride-8"  # whatever their order
    assert path.stem == f"squad-v2-bert-{changes}"
    assert source.command.startswith("python -m experiments.finetune qa-table squad-v2 --seeds 1 --rows")
    assert "precision 32" in report.parts[0].text
    assert "model" not in report.parts[0].text.partition("Other than said here")[2]
    assert {"NoAns %", "HasAns F1 %"} <= report.parts[0].rows[0].keys()
    # nothing is trained again; a run whose predictions are gone is told of
    (folder,) = (place / "runs" / "qa-table").glob("*/runs/soft-0")
    assert not (folder / "checkpoints" / "best.safetensors").exists()
    (folder / "predictions.npz").unlink()
    assert run_commands(COMMANDS, name="experiments.finetune", arguments=[*line.split(), "--resume"]) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": ("WC",)}, "rows are compared with 'soft'"),
        ({"changes": {}}, "model is missing, expected --model FOLDER"),
    ],
)
def test_bad_options(place: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        studies.table(options(place, "glue", **changes))
