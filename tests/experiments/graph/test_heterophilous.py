"""The table on graphs whose neighbours disagree."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.files import UserError
from experiments.graph import table
from experiments.graph.config import GraphConfig, TableConfig
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
    assert (tmp_path / "pictures" / "heterophilous.png").is_file()

    # a graph less is read; the other network is trained in a folder of its own
    runs = {path: path.stat().st_mtime_ns for path in folders.glob("*/metrics.json")}
    again = table.run(config(tmp_path, graphs=("texas",), resume=True))
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
