from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from experiments.datasets.graphs.load import GraphData
from experiments.datasets.graphs.perturbations import add_edge_noise, add_feature_noise, limit_labels

PERTURBATIONS = {
    "labels": (limit_labels, 2, "train_mask"),
    "features": (add_feature_noise, 0.3, "features"),
    "edges": (add_edge_noise, 0.5, "edge_index"),
}
each = pytest.mark.parametrize(("perturb", "amount", "field"), PERTURBATIONS.values(), ids=PERTURBATIONS.keys())


def to_edge_index(pairs):
    edges = torch.tensor(pairs).T
    return torch.cat([edges, edges.flip(0)], 1)


def make_graph(features=None, pairs=None, nodes=30):
    """A ring of nodes in three classes; 12 nodes to train on."""
    index = torch.arange(nodes)
    if features is None:
        generator = torch.Generator().manual_seed(1)
        features = torch.rand(nodes, 11, generator=generator)
        features = features * (torch.rand(nodes, 11, generator=generator) < 0.4)
        features = torch.nn.functional.normalize(features, p=1, dim=1)
    return GraphData(
        name="ring",
        features=features,
        labels=index % 3,
        edge_index=to_edge_index([(i, (i + 1) % nodes) for i in range(nodes)] if pairs is None else pairs),
        train_mask=index < nodes - 18,
        val_mask=(index >= nodes - 18) & (index < nodes - 8),
        test_mask=index >= nodes - 8,
        num_classes=3,
        images=torch.zeros(nodes, 2, 2),
    )


def dense(value):
    return value.to_dense() if isinstance(value, torch.Tensor) else value


def same(first, second):
    return torch.equal(dense(first), dense(second)) if isinstance(first, torch.Tensor) else first == second


def undirected(graph):
    return {tuple(sorted(pair)) for pair in graph.edge_index.T.tolist()}


# all of them


@each
@pytest.mark.parametrize("sparse", [False, True])
def test_everything_else_is_left_alone(perturb, amount, field, sparse):
    graph = make_graph()
    graph = replace(graph, features=graph.features.to_sparse_coo().coalesce()) if sparse else graph
    before = {name.name: dense(getattr(graph, name.name)) for name in fields(graph)}
    before = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in before.items()}
    noisy = perturb(graph, amount)
    changed = [name for name, value in before.items() if not same(value, getattr(noisy, name))]
    assert changed == [field]
    assert all(same(value, getattr(graph, name)) for name, value in before.items())
    assert noisy.features.is_sparse == sparse


@each
def test_seed_decides_and_global_state_does_not(perturb, amount, field):
    graph = make_graph()
    state = torch.get_rng_state()
    first = getattr(perturb(graph, amount, seed=3), field)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(5)
    assert same(first, getattr(perturb(graph, amount, seed=3), field))
    assert not same(first, getattr(perturb(graph, amount, seed=4), field))


# labels


@pytest.mark.parametrize("per_class", [1, 3, 4])
def test_labels_of_each_class_are_kept(per_class):
    graph = make_graph()
    mask = limit_labels(graph, per_class, seed=1).train_mask
    assert graph.labels[mask].bincount().tolist() == [per_class] * 3
    assert not (mask & ~graph.train_mask).any()


def test_a_class_with_fewer_labels_keeps_them_all():
    graph = make_graph()
    first, *others = (graph.train_mask & (graph.labels == 0)).nonzero().flatten().tolist()
    rare = torch.isin(torch.arange(graph.num_nodes), torch.tensor(others))
    graph = replace(graph, train_mask=graph.train_mask & ~rare, num_classes=4)  # one node of class 0, none of class 3
    mask = limit_labels(graph, 3, seed=1).train_mask
    assert graph.labels[mask].bincount(minlength=4).tolist() == [1, 3, 3, 0]
    assert mask[first]


@pytest.mark.parametrize(
    ("perturb", "changes", "amount", "message"),
    [
        (limit_labels, {}, 5, "per_class=5, but no class of 'ring' has more than 4 training nodes"),
        (add_feature_noise, {"features": torch.ones(30, 1)}, 0.5, r"=0\.5: row \d+ of the features of 'ring' has no z"),
        (add_edge_noise, {}, 14, "is 420 new ones, but only 405 pairs of nodes have none"),
    ],
)
def test_bad_amounts(perturb, changes, amount, message):
    with pytest.raises(ValueError, match=message):
        perturb(replace(make_graph(), **changes), amount)


# features


@pytest.mark.parametrize("fraction", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("sparse", [False, True])
def test_features_move_within_their_rows(fraction, sparse):
    graph = make_graph()
    if sparse:
        graph = replace(graph, features=graph.features.to_sparse_coo().coalesce())
    old, new = dense(graph.features), dense(add_feature_noise(graph, fraction, seed=2).features)
    assert torch.equal(old.sort(1).values, new.sort(1).values)  # values are distinct: each is kept, in its row
    stayed = int(((old == new) & (old != 0)).sum())
    total = int((old != 0).sum())
    assert stayed == total - round(fraction * total)


def test_columns_are_uniform():
    features = torch.zeros(3000, 5)
    features[:, 1], features[:, 2] = 0.25, 0.75
    graph = make_graph(features, pairs=[(0, 1)], nodes=3000)
    new = add_feature_noise(graph, 1).features
    pairs = torch.stack([(new == 0.25).int().argmax(1), (new == 0.75).int().argmax(1)], 1)
    found, counts = pairs.unique(dim=0, return_counts=True)
    allowed = {(a, b) for a in range(5) for b in range(5) if a != b and a != 1 and b != 2}
    assert set(map(tuple, found.tolist())) == allowed
    expected = 3000 / len(allowed)
    assert (counts - expected).abs().max() < 5 * np.sqrt(expected)


# edges


@pytest.mark.parametrize("fraction", [0.1, 1.0, 5.0, (30 * 29 / 2 - 30) / 30], ids=["few", "as many", "many", "all"])
def test_edges_are_added(fraction):
    graph = make_graph()  # GraphData itself refuses loops, duplicates and single directions
    noisy = add_edge_noise(graph, fraction, seed=2)
    assert torch.equal(noisy.edge_index[:, :60], graph.edge_index)
    assert len(undirected(noisy)) == noisy.edge_index.shape[1] // 2 == 30 + round(30 * fraction)
    empty = replace(graph, edge_index=torch.empty(2, 0, dtype=torch.int64))
    assert add_edge_noise(empty, fraction).edge_index.shape == (2, 0)


def test_new_edges_are_uniform():
    graph = make_graph(pairs=[(0, 1), (2, 4), (28, 29), (5, 6)])
    counts = torch.zeros(30, 30)
    for seed in range(400):
        source, target = add_edge_noise(graph, 2, seed=seed).edge_index[:, 8:16]
        counts[source, target] += 1
    free = torch.ones(30, 30).triu(1).bool()
    free[graph.edge_index[0], graph.edge_index[1]] = False
    expected = 400 * 8 / int(free.sum())
    assert counts.triu(1)[free].sum() == 400 * 8
    assert ((counts[free] - expected) ** 2 / expected).mean() == pytest.approx(1, abs=0.35)
