"""What studies on graphs publish, on tiny graphs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments.graph import studies
from experiments.graph.config import GraphConfig
from experiments.graph.studies import STUDIES, TASK
from experiments.graph.task import chosen_graph
from experiments.options import StudyOptions
from experiments.report.report import read_results
from experiments.study import Finished
from tests.experiments.graph.tiny_graphs import write_citations, write_splits

TINY: dict[str, Any] = {"max_epochs": 1, "num_samples": 2, "hidden": 2, "heads": 2}


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


def test_splits_are_those_of_the_seeds_and_levels_have_their_own_metric(data: Path) -> None:
    given = options(data, "heterophilous", levels=("texas", "minesweeper"), rows=("soft",), seeds=1, first_seed=1)
    means = studies.table(given)
    saved = (data / "out" / "runs" / "minesweeper-soft-1" / "config.yaml").read_text()
    for line in ("split_seed: 1", "architecture: residual_gat", "layers: 5"):
        assert f"{line}\n" in saved
    report, _ = read_results(next((data / "results").glob("*.json")))
    row = report.parts[0].rows[0]
    assert row["minesweeper ROC AUC %"].mean == pytest.approx(100 * means["minesweeper/soft/test_mean_roc_auc"])
    assert {"texas accuracy %", "minesweeper ROC AUC %"} <= row.keys()
    assert "texas ROC AUC %" not in row


def test_ensemble_averages_probabilities(data: Path) -> None:
    shared: dict[str, Any] = {"dataset": "cora", "data_root": data, "guide": "soft", "progress": False}
    configs = {("soft", "", seed): GraphConfig(**shared, **TINY, seed=seed, out=data / str(seed)) for seed in range(2)}
    metrics = {key: TASK.run(config) for key, config in configs.items()}
    study = replace(STUDIES["bam1"], rows={"soft": {}}, levels={"": {}})
    (part,) = studies.ensemble(Finished(study, "bam1", data, data, configs, metrics))
    logits = torch.stack([torch.from_numpy(np.load(data / str(seed) / "predictions.npz")["logits"]) for seed in (0, 1)])
    graph = chosen_graph(configs["soft", "", 0])
    probabilities, labels = logits.softmax(-1).mean(0)[graph.test_mask], graph.labels[graph.test_mask]
    nll = -probabilities.gather(1, labels[:, None]).log().mean().item()
    assert part.rows[0]["NLL"].mean == pytest.approx(nll, rel=1e-5)
