"""Training on graphs end to end: guides, resuming, one's own graph, the KL and its scale, attention beside uniform."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from experiments.data.graphs.load import GraphData, read_own_graph
from experiments.files import UserError
from experiments.graph.config import GraphConfig
from experiments.graph.task import (
    GraphTask,
    build,
    build_model,
    chosen_graph,
    draw_reliability,
    edges_to_other_classes,
    kl_factor,
    perturbed,
    relative_attention,
    relative_entropies,
    uniform_guide,
)
from experiments.run import load_trained
from guides.schemes import build_scheme
from pyro_attention import AttentionELBO, EdgeList, predict, sample_posterior
from tests.experiments.graph.tiny_graphs import write_citations, write_splits

SMALL = {"max_epochs": 2, "num_samples": 2, "progress": False, "hidden": 2, "heads": 2}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the data sets."""
    folder = tmp_path_factory.mktemp("graphs")
    write_citations(folder)
    write_splits(folder / "people.npz")
    return folder


@pytest.fixture
def graph(data: Path) -> GraphData:
    """A graph of one's own, of two classes."""
    return read_own_graph(data / "people.npz")


def config(out: Path, **options: Any) -> GraphConfig:
    return GraphConfig(out=out, **SMALL | options)


def numbers(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name != "step_ms"}


# whole runs


@pytest.mark.parametrize(
    ("guide", "prior", "precision"),
    [("soft", "fixed", "32"), ("weibull", "contextual", "bf16-mixed")],
)
def test_every_kind_of_guide(guide: Any, prior: Any, precision: Any, data: Path, tmp_path: Path) -> None:
    """On a graph with sparse features; of soft attention there is nothing to sample."""
    given = {"guide": guide, "prior": prior, "precision": precision, "dataset": "cora", "data_root": data}
    metrics = GraphTask().run(config(tmp_path, **given))
    assert all(math.isfinite(value) for value in metrics.values())
    sampled = [name for name in metrics if re.search("test_attention|test_both|^attention_t|^both|share", name)]
    assert len(sampled) == (0 if guide == "soft" else 2 * (4 + 3 + 1 + 1 + 4) + 3)
    assert 0 < metrics["attention_entropy"] <= 1
    assert (metrics["kl"] > 0) == (guide != "soft")
    assert json.loads((tmp_path / "metrics.json").read_text()) == metrics


def test_attention_learns_digits(tmp_path: Path) -> None:
    fast = {"dropout": 0.0, "learning_rate": 0.02, "kl_weight": 0.0, "hidden": 8, "max_epochs": 15}
    metrics = GraphTask().run(config(tmp_path, **fast))
    assert metrics["val_accuracy"] > 0.9
    assert metrics["test_attention_accuracy"] > 0.85


def test_a_graph_of_ones_own(data: Path, tmp_path: Path, graph: GraphData, monkeypatch: pytest.MonkeyPatch) -> None:
    first = config(tmp_path / "a")
    metrics = GraphTask(graph).run(first)
    assert numbers(GraphTask().run(config(tmp_path / "b", graph=data / "people.npz"))) == numbers(metrics)
    # the network that is loaded is that of the best epoch
    trained = load_trained(GraphTask(graph), first)
    logits = np.load(tmp_path / "a" / "predictions.npz")["logits"]
    mean = predict(trained.guide, *trained.inputs, num_samples=1, noise="none").mean
    np.testing.assert_allclose(mean.numpy(), logits, rtol=1e-5, atol=1e-6)
    # and is read, not trained again
    monkeypatch.setattr(GraphTask, "fit", None)
    assert GraphTask(graph).run(replace(first, resume=True)) == metrics
    with pytest.raises(UserError, match="another configuration"):
        GraphTask(graph).run(replace(first, resume=True, kl_weight=0.5))


def test_a_run_goes_on_with_its_graph_alone(tmp_path: Path, graph: GraphData) -> None:
    graph = replace(graph, features=graph.features.to_sparse())
    GraphTask(graph).run(config(tmp_path, guide="soft"))
    (tmp_path / "metrics.json").unlink()
    for other in (
        replace(graph, features=2 * graph.features),
        replace(graph, labels=1 - graph.labels),
        replace(graph, metric="roc_auc"),
    ):
        with pytest.raises(UserError, match=r"run on another graph.*--overwrite"):
            GraphTask(other).run(config(tmp_path, guide="soft", resume=True))
    GraphTask(replace(graph, name="another name")).run(config(tmp_path, guide="soft", resume=True))


def test_two_classes_are_judged_by_roc_auc(tmp_path: Path, graph: GraphData) -> None:
    task = GraphTask(replace(graph, metric="roc_auc"))
    options = {"architecture": "gat_sep", "normalizer": "hybrid", "scores": "gatv2", "objective": "evidence"}
    chosen = config(tmp_path, monitor="metric", guide="lognormal", **options)
    found, trained = task.run(chosen), load_trained(task, chosen)
    logits = torch.from_numpy(np.load(tmp_path / "predictions.npz")["logits"])
    margin = (logits[:, 1] - logits[:, 0]).double()
    second, first = (margin[graph.test_mask & (graph.labels == label)] for label in (1, 0))
    expected = (second[:, None] > first).double().mean() + (second[:, None] == first).double().mean() / 2
    assert found["test_mean_roc_auc"] == pytest.approx(expected.item())
    assert {"val_roc_auc", "test_attention_roc_auc", "uniform_roc_auc", "other_class_attention"} <= found.keys()
    assert sum(name.startswith("hybrid_") for name in found) == 2
    axes = Figure().subplots()
    draw_reliability(trained, axes)
    assert axes.patches


def test_noise_reaches_the_graph_and_is_measured(data: Path, tmp_path: Path) -> None:
    clean = config(tmp_path, dataset="cora", data_root=data)
    noise = replace(clean, edge_noise=0.5, labels_per_class=1, feature_noise=0.5)
    before, after = (perturbed(chosen_graph(one), one) for one in (clean, noise))
    assert after.edge_index.size(1) == 1.5 * before.edge_index.size(1)
    assert after.train_mask.sum() == 7
    assert not torch.equal(after.features.to_dense(), before.features.to_dense())
    assert build(noise, chosen_graph(noise)).noise.sum() == after.edge_index.size(1) - before.edge_index.size(1)
    assert 0 < GraphTask().run(noise)["noise_edge_attention"] < 3


# network, KL and prior


@pytest.mark.parametrize(("guide", "prior"), [("weibull", "contextual"), ("lognormal", "fixed")])
def test_the_seed_alone_decides_on_the_shared_weights(guide: Any, prior: Any, graph: GraphData) -> None:
    reference = build_model(GraphConfig(), graph, build_scheme("soft", prior="fixed").prior)
    after = torch.rand(())
    model = build_model(GraphConfig(), graph, build_scheme(guide, prior=prior, prior_rate=3.0).prior)
    assert torch.rand(()) == after
    weights = dict(model.named_parameters())
    assert all(weights[name].equal(value) for name, value in reference.named_parameters())
    if guide == "weibull":
        assert model.layers[0].attention.prior.log_rate.exp().item() == pytest.approx(3.0)


def twice(graph: GraphData) -> GraphData:
    """The graph and a copy of it, not joined."""
    fields = ("features", "labels", "train_mask", "val_mask", "test_mask")
    doubled: dict[str, Any] = {name: torch.cat([getattr(graph, name)] * 2) for name in fields}
    return replace(graph, edge_index=torch.cat([graph.edge_index, graph.edge_index + graph.num_nodes], 1), **doubled)


def test_a_weight_an_edge_is_the_same_on_any_graph(graph: GraphData) -> None:
    """The loss of a label has the weight times the mean KL, with two copies and when one has few labels."""
    data = twice(graph)
    data = replace(data, train_mask=data.train_mask & (torch.arange(data.num_nodes) < 20))
    trained = build(config(Path("x"), kl_weight=0.5, layers=1, dropout=0.0), data)
    labels, nothing = int(data.train_mask.sum()), torch.zeros(data.num_nodes, dtype=torch.bool)
    loss = trained.module.objective(*trained.inputs, nothing) / labels
    mean = AttentionELBO()(trained.model, trained.guide)(*trained.inputs, nothing) / trained.graph.sources.index.numel()
    torch.testing.assert_close(loss, 0.5 * mean)  # one head
    single = build(config(Path("x"), layers=1, dropout=0.0), graph)
    total = AttentionELBO()(single.model, single.guide)(*single.inputs, nothing[:40])
    torch.testing.assert_close(mean, total / single.graph.sources.index.numel(), rtol=1e-4, atol=0)


@pytest.mark.parametrize(("architecture", "heads"), [("gat", 2 + 2 + 1), ("residual_gat", 6), ("gat_sep", 6)])
def test_the_scale_counts_every_attention_weight(graph: GraphData, architecture: str, heads: int) -> None:
    options = config(Path("x"), architecture=architecture, layers=3)
    trained = build(options, graph)
    edges = 80 if architecture == "gat_sep" else 120
    arguments = trained.model, trained.data, trained.graph
    assert kl_factor(replace(options, kl_scale="total"), *arguments) == 1
    assert kl_factor(options, *arguments) == pytest.approx(20 / (edges * heads))


# attention


def star() -> EdgeList:
    """Node 0 attends to itself and both others, and they attend to themselves."""
    return EdgeList.from_edge_index(torch.tensor([[1, 2], [0, 0]]), num_nodes=3, add_self_loops=True)


def test_relative_entropy_is_one_for_uniform_and_zero_for_certain_attention() -> None:
    uniform = star().softmax(torch.zeros(1, 5, 2))
    certain = star().softmax(torch.tensor([0.0, 0, 1, 1, 1]).mul(1000).reshape(1, 5, 1))
    first, second = relative_entropies({"a": uniform, "b": certain}, star())
    torch.testing.assert_close(first, torch.ones(1, 1, 2))  # the others have nobody to choose from
    torch.testing.assert_close(second, torch.zeros(1, 1, 1))


def test_attention_on_some_edges_is_relative_to_uniform(graph: GraphData) -> None:
    # node 1 alone is of another class: the edge 1 -> 0 gets half of the uniform third
    data = replace(
        graph, features=torch.eye(3), labels=torch.tensor([0, 1, 0]), edge_index=torch.empty(2, 0, dtype=torch.int64),
        **{f"{name}_mask": torch.arange(3) == index for index, name in enumerate(("train", "val", "test"))},
    )  # fmt: skip
    weights = torch.tensor([1 / 6, 0.5, 1 / 3, 1.0, 1.0]).reshape(1, 5, 1)
    edges = edges_to_other_classes(star(), data)
    assert edges.tolist() == [True] + [False] * 4
    assert relative_attention({"layer": weights}, star(), edges) == pytest.approx(0.5)


def test_uniform_attention_is_uniform(graph: GraphData) -> None:
    # a node in the middle of all others: over queries its weights are not those of the others
    middle = torch.stack([torch.zeros(39, dtype=torch.int64), torch.arange(1, 40)])
    edges = torch.cat([graph.edge_index, middle, middle.flip(0)], 1).unique(dim=1)
    options = {"normalizer": "hybrid", "architecture": "gat_sep", "scores": "gatv2"}
    trained = build(config(Path("x"), **options), replace(graph, edge_index=edges))
    before = predict(trained.guide, *trained.inputs, num_samples=1, noise="none").mean
    expected = (1 / trained.graph.targets.index.bincount())[trained.graph.targets.index]
    for weights in sample_posterior(uniform_guide(trained), *trained.inputs, num_samples=1, noise="none").values():
        torch.testing.assert_close(weights, expected[None, :, None].expand(weights.shape))
    assert predict(trained.guide, *trained.inputs, num_samples=1, noise="none").mean.equal(before)
