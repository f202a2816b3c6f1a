"""Studies on graphs: their declarations, and what they publish, on tiny graphs."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments.graph import studies
from experiments.graph.attention import relative_attention
from experiments.graph.config import GraphConfig
from experiments.graph.data import load_data
from experiments.graph.studies import STUDIES, TASK
from experiments.harness.options import StudyOptions
from experiments.report.results import read_results
from experiments.report.statistics import Difference, Estimate
from experiments.run import run
from experiments.study import Finished
from pyro_attention import EdgeList
from tests.experiments.graph.tiny_graphs import write_citations
from tests.experiments.graph.tiny_splits import write_splits

TINY: dict[str, Any] = {"max_epochs": 2, "num_samples": 2}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_citations(tmp_path)
    write_citations(tmp_path, name="citeseer", classes=6)
    for name, classes in (("texas", 5), ("minesweeper", 2)):
        write_splits(tmp_path / "heterophilous" / f"{name}.npz", classes=classes)
    return tmp_path


def options(data: Path, name: str, **given: Any) -> StudyOptions:
    how = {"seeds": 2, "progress": False, "workers": 1, "changes": TINY, "data_root": data}
    return StudyOptions(name=name, **how | {"out": data / "out", "results": data / "results"} | given)


def test_every_study_declares_options_that_there_are() -> None:
    known = {field.name for field in fields(GraphConfig)}
    for name, study in STUDIES.items():
        assert study.name == name
        settings = [study.options, *study.rows.values(), *study.levels.values(), *study.cells.values()]
        assert {option for setting in settings for option in setting} <= known
        for level in study.levels.values():
            for row in study.rows.values():
                GraphConfig(**{**study.options, **level, **row})
        assert {*study.against, *study.against.values(), *study.paper} <= study.rows.keys()
        # what a search chose is one of the settings that it tried
        for row, settings in study.grid.items():
            assert any(setting.items() <= study.rows[row].items() for setting in settings)


def test_a_wide_table(data: Path) -> None:
    means = studies.table(options(data, "bam1", rows=("soft", "WC")))
    report, source = read_results(next((data / "results").glob("bam1*.json")))
    rows = {row["attention"]: row for row in report.parts[0].rows}
    assert source.command.startswith("python -m experiments.graph table bam1 --seeds 2 --rows")
    cell, difference = rows["WC"]["cora accuracy %"], rows["WC"]["cora accuracy %: difference"]
    assert isinstance(cell, Estimate)
    assert cell.mean == pytest.approx(100 * means["cora/WC/test_mean_accuracy"])
    assert isinstance(difference, Difference)
    assert difference.mean == pytest.approx(cell.mean - 100 * means["cora/soft/test_mean_accuracy"])
    assert (difference.against, difference.data, rows["WC"]["citeseer paper"]) == ("soft", "cora", "73.52")
    titles = [part.title for part in report.parts]
    assert "Deep ensemble of the 2 seeds" in titles
    assert {"Confidence before and after temperature scaling", "What the attention does", "Training"} <= {*titles}
    assert next((data / "results" / "pictures").glob("bam1*.png")).is_file()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in STUDIES if name != "bam1"])
def test_every_study_end_to_end(name: str, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = STUDIES[name]
    levels = {"heterophilous": ("texas", "minesweeper"), "uniformity": ("cora",)}.get(name, tuple(study.levels)[:2])
    given = options(data, name, levels=() if levels == ("",) else levels, seeds=1)
    means = studies.table(given)
    (path,) = (data / "results").glob("*.json") if study.published else ()
    report, _ = read_results(path)
    assert {key.split("/")[-2] for key in means} == {*study.rows}
    shown = {column for row in report.parts[0].rows for column in row}
    assert any(column.name in head for column in study.columns for head in shown)


def test_splits_are_those_of_the_seeds_and_levels_have_their_own_metric(data: Path) -> None:
    given = options(data, "heterophilous", levels=("texas", "minesweeper"), rows=("soft", "WC"))
    means = studies.table(given)
    saved = (data / "out" / "runs" / "minesweeper-WC-1" / "config.yaml").read_text()
    for line in ("split_seed: 1", "architecture: residual_gat", "layers: 5"):
        assert f"{line}\n" in saved
    report, _ = read_results(next((data / "results").glob("*.json")))
    row = report.parts[0].rows[1]
    assert row["minesweeper ROC AUC %"].mean == pytest.approx(100 * means["minesweeper/WC/test_mean_roc_auc"])
    assert {"texas accuracy %", "minesweeper ROC AUC %"} <= row.keys()
    assert "texas ROC AUC %" not in row


def test_search(data: Path) -> None:
    study = STUDIES["bam1"]
    grid = {"soft": ({},), "WC": ({"kl_weight": 0.1}, {"kl_weight": 0.2})}
    found = studies.run_search({"bam1": replace(study, grid=grid)}, options(data, "bam1", levels=("cora",)))
    assert {key.split("/")[1] for key in found} == {"soft: -", "WC: kl weight 0.1", "WC: kl weight 0.2"}
    report, source = read_results(next((data / "results").glob("search-bam1*.json")))
    assert [row["best"] for row in report.parts[0].rows].count("best") == 2
    assert source.seeds == "seeds 1000 to 1001"


def test_ensemble_averages_probabilities(data: Path) -> None:
    shared: dict[str, Any] = {"dataset": "cora", "data_root": data, "guide": "soft", "progress": False}
    configs = {("soft", "", seed): GraphConfig(**shared, **TINY, seed=seed, out=data / str(seed)) for seed in range(2)}
    metrics = {key: run(TASK, config) for key, config in configs.items()}
    study = replace(STUDIES["bam1"], rows={"soft": {}}, levels={"": {}})
    (part,) = studies.ensemble(Finished(study, "bam1", data, data, configs, metrics))
    logits = torch.stack([torch.from_numpy(np.load(data / str(seed) / "predictions.npz")["logits"]) for seed in (0, 1)])
    graph = load_data(configs["soft", "", 0])
    probabilities, labels = logits.softmax(-1).mean(0)[graph.test_mask], graph.labels[graph.test_mask]
    nll = -probabilities.gather(1, labels[:, None]).log().mean().item()
    assert part.rows[0]["NLL"].mean == pytest.approx(nll, rel=1e-5)


def test_attention_on_added_edges_is_relative_to_uniform() -> None:
    # node 0 has the in-edges 1->0 and 2->0 and its loop; 2->0 is noise and gets half of the uniform third
    graph = EdgeList.from_edge_index(torch.tensor([[1, 2], [0, 0]]), num_nodes=3, add_self_loops=True)
    weights = torch.tensor([0.5, 1 / 6, 1 / 3, 1.0, 1.0]).reshape(1, 5, 1)
    noise = torch.tensor([False, True, False, False, False])
    assert relative_attention({"layer": weights}, graph, noise) == pytest.approx(0.5)


def test_noise_reaches_the_graph_and_is_measured(data: Path) -> None:
    shared: dict[str, Any] = {"dataset": "cora", "data_root": data, "progress": False, **TINY}
    clean = load_data(GraphConfig(**shared, out=data / "a"))
    noisy_config = GraphConfig(**shared, edge_noise=0.5, labels_per_class=1, feature_noise=0.5, out=data / "b")
    noisy = load_data(noisy_config)
    assert noisy.edge_index.size(1) == 1.5 * clean.edge_index.size(1)
    assert noisy.train_mask.sum() == 7
    assert not torch.equal(noisy.features.to_dense(), clean.features.to_dense())
    assert 0 < run(TASK, noisy_config)["noise_edge_attention"] < 3
