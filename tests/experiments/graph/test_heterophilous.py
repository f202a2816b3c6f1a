"""The table on graphs whose neighbours disagree."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.files import UserError
from experiments.graph import search, studies, table
from experiments.graph.config import GraphConfig, SearchConfig, StudyConfig, TableConfig
from experiments.graph.heterophilous import HETEROPHILOUS
from tests.experiments.graph.tiny_splits import write_splits


def config(folder: Path, **options: Any) -> TableConfig:
    sizes = {"seeds": 2, "max_epochs": 2, "num_samples": 2, "progress": False, "workers": 1}
    places = {"data_root": folder, "out": folder / "out", "results": folder / "RESULTS.md"}
    return TableConfig(name="heterophilous", **sizes | places | options)


def test_rows_are_runs_that_there_are() -> None:
    assert list(HETEROPHILOUS.rows) == ["soft", "LF", "LC", "WF", "WC", "doubly", "hybrid"]
    for dataset in HETEROPHILOUS.datasets:
        for row in HETEROPHILOUS.rows.values():
            options = HETEROPHILOUS.training | HETEROPHILOUS.graph_options.get(dataset, {}) | row
            assert GraphConfig(**options, dataset=dataset).kl_scale == "edge"  # type: ignore[arg-type]


def test_table_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, classes in (("texas", 5), ("minesweeper", 2)):
        write_splits(tmp_path / "heterophilous" / f"{name}.npz", classes=classes)
    small = replace(HETEROPHILOUS, rows={row: HETEROPHILOUS.rows[row] for row in ("soft", "WC")})
    monkeypatch.setitem(table.EVERY_TABLE, "heterophilous", small)
    means = table.run(config(tmp_path, graphs=("texas", "minesweeper")))
    folders = tmp_path / "out" / "runs"
    for split in range(2):
        saved = (folders / f"minesweeper-WC-{split}" / "config.yaml").read_text()
        assert f"split_seed: {split}\n" in saved
        assert "architecture: residual_gat\n" in saved
        assert "layers: 5\n" in saved
    one, two = (json.loads((folders / f"minesweeper-WC-{split}" / "metrics.json").read_text()) for split in range(2))
    mean = (one["test_mean_roc_auc"] + two["test_mean_roc_auc"]) / 2
    assert means["minesweeper/WC/test_mean_roc_auc"] == pytest.approx(mean)
    page = (tmp_path / "RESULTS.md").read_text()
    assert "Texas accuracy %" in page
    assert f"| {100 * mean:.2f} ±" in page.split("Mean ± standard deviation")[1]
    assert "Bonferroni's correction for the 2 comparisons" in page
    assert "Deep ensemble" not in page  # of networks with other test nodes
    for shown in ("ROC AUC %, uniform", "attention to other classes", "relative entropy"):
        assert shown in page
    assert (tmp_path / "pictures" / "heterophilous-texas-minesweeper.png").is_file()

    # a graph less is read; the other network is trained in a folder of its own
    runs = {path: path.stat().st_mtime_ns for path in folders.glob("*/metrics.json")}
    again = table.run(config(tmp_path, graphs=("texas",), resume=True))
    page = (tmp_path / "RESULTS.md").read_text()
    assert [line.rpartition(": ")[2] for line in page.splitlines() if line.startswith("## ")] == [
        "Texas, Minesweeper", "Texas",
    ]  # fmt: skip
    assert again["texas/WC/test_mean_accuracy"] == means["texas/WC/test_mean_accuracy"]
    assert {path: path.stat().st_mtime_ns for path in folders.glob("*/metrics.json")} == runs
    with pytest.raises(UserError, match="architecture None instead of gat"):
        table.run(config(tmp_path, graphs=("texas",), resume=True, architecture="gat"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"graphs": ("cora",)}, "graphs 'cora': expected one of actor, texas"),
        ({"graphs": ("texas",), "seeds": 3}, "has 2 fixed splits; expected 0 to 1"),
    ],
)
def test_bad_options(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    write_splits(tmp_path / "texas.npz", classes=5)
    with pytest.raises(UserError, match=message):
        table.run(config(tmp_path, **options, first_seed=2 if "seeds" in options else 0))


@pytest.mark.parametrize(("dataset", "metric", "layers"), [("texas", "accuracy", 2), ("minesweeper", "ROC AUC", 5)])
def test_study_and_search_have_the_network_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dataset: Any, metric: str, layers: int
) -> None:
    write_splits(tmp_path / "heterophilous" / f"{dataset}.npz", classes=5 if dataset == "texas" else 2)
    monkeypatch.setitem(studies.STUDIES, "label_rate", replace(studies.STUDIES["label_rate"], levels=(2, 4)))
    monkeypatch.setattr(search, "GRIDS", {"soft": [{}], "WC": [{"concentration": 1.0}, {"concentration": 2.0}]})
    sizes = {"seeds": 2, "max_epochs": 1, "dataset": dataset, "progress": False, "workers": 1}
    places = {"data_root": tmp_path, "results": tmp_path / "RESULTS.md"}
    study = StudyConfig(name="label_rate", out=tmp_path / "study", num_samples=2, **sizes | places)
    means = studies.run(study)
    tried = SearchConfig(name="heterophilous", rows=("WC",), out=tmp_path / "search", **sizes | places)
    assert search.run(tried).keys() == {"WC concentration=1", "WC concentration=2"}
    for path in (tmp_path / "study/runs/WC-2-1", tmp_path / "search/runs/WC-concentration=2-1001"):
        saved = (path / "config.yaml").read_text()
        for line in ("architecture: residual_gat", f"layers: {layers}", "kl_scale: edge", "split_seed: 1"):
            assert f"{line}\n" in saved
    page = (tmp_path / "RESULTS.md").read_text()
    assert f"| {metric} minus soft |" in page
    assert f"| validation {metric} % |" in page
    name = "test_mean_accuracy" if metric == "accuracy" else "test_mean_roc_auc"
    runs = [json.loads((tmp_path / f"study/runs/WC-4-{seed}/metrics.json").read_text())[name] for seed in range(2)]
    assert means[f"WC/4/{name}"] == pytest.approx(sum(runs) / 2)
    assert f"{100 * sum(runs) / 2:.2f} ±" in page


def test_the_table_is_cut_by_options(tmp_path: Path) -> None:
    write_splits(tmp_path / "heterophilous" / "minesweeper.npz")
    cut = {"graphs": ("minesweeper",), "rows": ("soft", "hybrid"), "layers": 1, "seeds": 1, "first_seed": 1}
    means = table.run(config(tmp_path, **cut))
    assert {name.split("/")[1] for name in means} == {"soft", "hybrid"}
    assert "layers: 1\n" in (tmp_path / "out" / "runs" / "minesweeper-soft-1" / "config.yaml").read_text()
    page = (tmp_path / "RESULTS.md").read_text()
    assert "Other than said here: max epochs 2, num samples 2, layers 1." in page
    assert "Bonferroni's correction for the 1 comparisons" in page


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": ("soft", "WD")}, "rows 'WD': expected one of soft, LF"),
        ({"rows": ("WC",)}, "rows are compared with 'soft', which has to be among them"),
        ({"graphs": ("cora",)}, "graphs 'cora': expected one of actor"),
    ],
)
def test_a_cut_that_is_none(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        table.run(config(tmp_path, **options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "dataset cora: expected one of actor"),
        ({"dataset": "texas", "rows": ("no KL",)}, "rows 'no KL': expected one of soft, LF, LC, WF, WC"),
    ],
)
def test_a_search_of_what_the_table_has_not(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        search.run(SearchConfig(name="heterophilous", out=tmp_path / "out", progress=False, **options))
