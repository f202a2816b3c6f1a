"""Training on a graph of one's own, the scale of the KL, the prior's nodes, and attention beside uniform attention."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments.datasets.graphs.load import GraphData, read_own_graph
from experiments.files import UserError
from experiments.graph.attention import attention_to_other_classes, uniform_attention, uniform_logits
from experiments.graph.config import ArchitectureName, GraphConfig, NormalizerName
from experiments.graph.evaluation import prediction_table
from experiments.graph.figures import attention_figure
from experiments.graph.model import TrainedGraph, build, kl_factor
from experiments.graph.train import GraphTask
from experiments.harness.cli import run_script
from experiments.run import load_trained, run
from pyro_attention import AttentionELBO, Dense, EdgeList, predict, sample_posterior
from pyro_attention.families.key_network import KeyNetwork
from tests.experiments.graph.tiny_splits import write_splits


@pytest.fixture
def graph(tmp_path: Path) -> GraphData:
    return read_own_graph(write_splits(tmp_path / "people.npz"))


def config(folder: Path, **options: Any) -> GraphConfig:
    small = {"max_epochs": 2, "num_samples": 2, "progress": False, "hidden": 2, "heads": 2}
    return GraphConfig(out=folder, **small | options)


def numbers(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name != "step_ms"}


def fit(graph: GraphData, options: GraphConfig) -> dict[str, float]:
    return run(GraphTask(graph), options)


def trained_on(graph: GraphData, options: GraphConfig) -> TrainedGraph:
    return load_trained(GraphTask(graph), options)


def test_a_graph_of_ones_own(tmp_path: Path, graph: GraphData, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = fit(graph, config(tmp_path / "a"))
    assert numbers(run(GraphTask(), config(tmp_path / "b", graph=tmp_path / "people.npz"))) == numbers(metrics)
    # the network that is loaded is that of the best epoch
    trained = trained_on(graph, config(tmp_path / "a"))
    logits = np.load(tmp_path / "a" / "predictions.npz")["logits"]
    mean = predict(trained.guide, *trained.inputs, num_samples=1, noise="none").mean
    np.testing.assert_allclose(mean.numpy(), logits, rtol=1e-5, atol=1e-6)
    # and is read, not trained again
    monkeypatch.setattr(GraphTask, "fit", None)
    assert fit(graph, config(tmp_path / "a", resume=True)) == metrics
    with pytest.raises(UserError, match="holds this run already"):
        fit(graph, config(tmp_path / "a"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TypeError):  # the stub: the folder is named after the graph
        fit(graph, replace(config(tmp_path), out=None))
    assert (tmp_path / "runs" / "graph" / "people-weibull-contextual-0" / "config.yaml").is_file()


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("sparse", [True, False])
def test_a_run_goes_on_with_its_graph_alone(tmp_path: Path, graph: GraphData, finished: bool, sparse: bool) -> None:
    if sparse:
        graph = replace(graph, features=graph.features.to_sparse())
    found = fit(graph, config(tmp_path / "run", guide="soft"))
    if not finished:
        (tmp_path / "run" / "metrics.json").unlink()
    resumed = config(tmp_path / "run", guide="soft", resume=True)
    others = {
        "features": replace(graph, features=2 * graph.features),
        "labels": replace(graph, labels=1 - graph.labels),
        "edge_index": replace(graph, edge_index=graph.edge_index.flip(1)),
        "train_mask, test_mask": replace(graph, train_mask=graph.test_mask, test_mask=graph.train_mask),
        "metric": replace(graph, metric="roc_auc"),
    }
    for fields, other in others.items():
        with pytest.raises(UserError, match=rf"run on another graph \({fields} differ\).*--overwrite"):
            fit(other, resumed)
    assert fit(replace(graph, name="another name"), resumed).keys() == found.keys()
    (tmp_path / "run" / "graph.json").write_text("{")
    with pytest.raises(UserError, match=r"graph\.json cannot be read .* pass --overwrite"):
        fit(graph, resumed)
    # another graph may take the place of the first one
    fit(others["labels"], config(tmp_path / "run", guide="soft", overwrite=True))
    with pytest.raises(UserError, match="labels differ"):
        fit(graph, resumed)


@pytest.mark.parametrize("architecture", ["gat", "residual_gat", "gat_sep"])
@pytest.mark.parametrize("normalizer", ["softmax", "hybrid"])
def test_two_classes_are_judged_by_roc_auc(
    tmp_path: Path, graph: GraphData, architecture: ArchitectureName, normalizer: NormalizerName
) -> None:
    graph = replace(graph, metric="roc_auc")
    options = {"architecture": architecture, "normalizer": normalizer, "scores": "gatv2", "layers": 3}
    chosen = config(tmp_path / "run", monitor="metric", guide="lognormal", **options)
    found, trained = fit(graph, chosen), trained_on(graph, chosen)
    assert trained.module.metric == "roc_auc"
    logits = torch.from_numpy(np.load(tmp_path / "run" / "predictions.npz")["logits"])
    margin = (logits[:, 1] - logits[:, 0]).double()
    second, first = (margin[graph.test_mask & (graph.labels == label)] for label in (1, 0))
    expected = (second[:, None] > first).double().mean() + (second[:, None] == first).double().mean() / 2
    assert found["test_mean_roc_auc"] == pytest.approx(expected.item())
    assert {"val_roc_auc", "test_attention_roc_auc", "uniform_roc_auc", "other_class_attention"} <= found.keys()
    assert sum(name.startswith("hybrid_") for name in found) == (3 if normalizer == "hybrid" else 0)
    assert "roc_auc" in prediction_table(found)
    assert attention_figure(trained)[1].startswith("Test node")


def test_accuracy_of_more_classes_has_no_roc_auc(tmp_path: Path) -> None:
    graph = read_own_graph(write_splits(tmp_path / "people.npz", classes=3))
    metrics = fit(graph, config(tmp_path / "run", guide="soft"))
    assert not any("roc_auc" in name for name in metrics)
    assert 0 <= metrics["uniform_accuracy"] <= 1
    assert "roc_auc" not in prediction_table(metrics)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--graph", "FOLDER/nobody.npz"], "nobody.npz is missing"),
        (["--graph", "FOLDER/people.npz", "--split-seed", "2"], "has 2 fixed splits; expected 0 to 1"),
        (["--graph", "FOLDER/bad.npz"], "KeyError: 'y'"),
        (["--graph", "FOLDER/people.npz", "--layers", "0"], "layers"),
        (["--guide", "soft", "--prior-nodes", "all"], "--prior-nodes is for guide weibull"),
        (["--graph", "FOLDER/people.npz", "--architecture", "gcn"], "architecture"),
    ],
)
def test_bad_input(
    tmp_path: Path, graph: GraphData, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "bad.npz", x=graph.features.numpy())
    arguments = [one.replace("FOLDER", str(tmp_path)) for one in arguments]
    given = [*arguments, "--out", str(tmp_path / "run"), "--no-progress"]
    assert run_script(GraphConfig, partial(run, GraphTask()), name="experiments.graph", arguments=given) in (1, 2)
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


# the scale of the KL


def twice(graph: GraphData) -> GraphData:
    """The graph and a copy of it, not joined."""
    fields = ("features", "labels", "train_mask", "val_mask", "test_mask")
    doubled: dict[str, Any] = {name: torch.cat([getattr(graph, name)] * 2) for name in fields}
    return replace(graph, edge_index=torch.cat([graph.edge_index, graph.edge_index + graph.num_nodes], 1), **doubled)


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("unlabelled", [False, True])
def test_a_weight_an_edge_is_the_same_on_any_graph(graph: GraphData, copies: int, unlabelled: bool) -> None:
    """The loss of a label has the weight times the mean KL, with two copies and when one has no labels."""
    data = graph if copies == 1 else twice(graph)
    if unlabelled:
        data = replace(data, train_mask=data.train_mask & (torch.arange(data.num_nodes) < 20))
    trained = build(config(Path("x"), kl_scale="edge", kl_weight=0.5, layers=1, dropout=0.0), data)
    labels, nothing = int(data.train_mask.sum()), torch.zeros(data.num_nodes, dtype=torch.bool)
    loss = trained.module.objective(*trained.inputs, nothing) / labels
    kl = AttentionELBO()(trained.model, trained.guide)(*trained.inputs, nothing)
    mean = kl / trained.graph.sources.index.numel()  # one head
    torch.testing.assert_close(loss, 0.5 * mean)
    single = build(config(Path("x"), layers=1, dropout=0.0), graph)
    total = AttentionELBO()(single.model, single.guide)(*single.inputs, nothing[:40])
    torch.testing.assert_close(mean, total / single.graph.sources.index.numel(), rtol=1e-4, atol=0)


@pytest.mark.parametrize(("architecture", "heads"), [("gat", 2 + 2 + 1), ("residual_gat", 6), ("gat_sep", 6)])
def test_the_scale_counts_every_attention_weight(graph: GraphData, architecture: ArchitectureName, heads: int) -> None:
    options = config(Path("x"), architecture=architecture, layers=3)
    trained = build(options, graph)
    edges = 80 if architecture == "gat_sep" else 120
    arguments = trained.model, trained.data, trained.graph
    assert kl_factor(replace(options, kl_scale="total"), *arguments) == 1
    assert kl_factor(options, *arguments) == pytest.approx(20 / (edges * heads))


@pytest.mark.parametrize("guide", ["weibull", "gamma", "lognormal"])
def test_prior_over_all_nodes(graph: GraphData, guide: Any) -> None:
    """The released code's softmax: prior weights of all nodes, not those of a neighbourhood, add up to one."""
    near, far = (build(config(Path("x"), guide=guide, prior_nodes=nodes), graph) for nodes in ("neighbours", "all"))
    networks = [one.model.layers[0].attention.prior.network for one in (near, far)]
    assert [network.all_nodes for network in networks] == [False, True]
    keys = torch.rand(graph.num_nodes, 2, 2)
    neighbours, everywhere = (network(keys, near.graph) for network in networks)
    torch.testing.assert_close(near.graph.targets.sum(neighbours.exp()), torch.ones(graph.num_nodes, 2))
    loops = everywhere[-graph.num_nodes :]  # one edge a node
    torch.testing.assert_close(loops.exp().sum(0), torch.ones(2))
    torch.testing.assert_close(everywhere.log_softmax(0), networks[0](keys, _one_query(near.graph)).log_softmax(0))
    assert "all_nodes=True" in repr(far.model)


def _one_query(graph: EdgeList) -> EdgeList:
    """The same edges, all of them to one target: a softmax over all of them."""
    edges = torch.stack([graph.sources.index, torch.zeros_like(graph.sources.index)])
    return EdgeList.from_edge_index(edges, num_nodes=(graph.sources.count, 1))


def test_all_nodes_needs_a_graph() -> None:
    with pytest.raises(ValueError, match="all_nodes is meant for graphs, but the layout is Dense"):
        KeyNetwork(3, all_nodes=True)(torch.rand(1, 4, 3), Dense())


# beside uniform attention


@pytest.mark.parametrize("normalizer", ["softmax", "doubly_normalized", "hybrid"])
@pytest.mark.parametrize("architecture", ["gat", "gat_sep"])
def test_uniform_attention_is_uniform_and_put_back(
    graph: GraphData, normalizer: NormalizerName, architecture: ArchitectureName
) -> None:
    # a node in the middle of all others: over queries its weights are not those of the others
    star = torch.stack([torch.zeros(39, dtype=torch.int64), torch.arange(1, 40)])
    edges = torch.cat([graph.edge_index, star, star.flip(0)], 1).unique(dim=1)
    options = {"normalizer": normalizer, "architecture": architecture, "scores": "gatv2"}
    trained = build(config(Path("x"), **options), replace(graph, edge_index=edges))
    degree = trained.graph.targets.index.bincount()
    before = predict(trained.guide, *trained.inputs, num_samples=1, noise="none").mean
    with uniform_attention(trained.model):
        for weights in sample_posterior(trained.guide, *trained.inputs, num_samples=1, noise="none").values():
            expected = (1 / degree)[trained.graph.targets.index]
            torch.testing.assert_close(weights, expected[None, :, None].expand(weights.shape))
    assert not uniform_logits(trained).equal(before)
    assert predict(trained.guide, *trained.inputs, num_samples=1, noise="none").mean.equal(before)


def test_attention_to_other_classes(graph: GraphData) -> None:
    # node 0 of class 0 attends to node 1 of class 1, node 2 of class 0 and itself; the edge 1 -> 0 gets half of a third
    layout = EdgeList.from_edge_index(torch.tensor([[1, 2], [0, 0]]), num_nodes=3, add_self_loops=True)
    data = replace(
        graph, features=torch.eye(3), labels=torch.tensor([0, 1, 0]), edge_index=torch.empty(2, 0, dtype=torch.int64),
        **{f"{name}_mask": torch.arange(3) == index for index, name in enumerate(("train", "val", "test"))},
    )  # fmt: skip
    weights = {"layer": torch.tensor([1 / 6, 0.5, 1 / 3, 1.0, 1.0]).reshape(1, 5, 1)}
    assert attention_to_other_classes(weights, layout, data) == pytest.approx(0.5)
    alike = replace(data, labels=torch.zeros(3, dtype=torch.int64))
    assert attention_to_other_classes(weights, layout, alike) is None
