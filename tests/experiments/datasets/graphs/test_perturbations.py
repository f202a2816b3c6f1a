"""Harder versions of a graph: what changes and what does not, and that noise is uniform."""

from dataclasses import fields, replace

import pytest
import torch

from experiments.datasets.graphs.load import GraphData, add_edge_noise, add_feature_noise, both_directions, limit_labels

PERTURBATIONS = {
    "train_mask": (limit_labels, 2),
    "features": (add_feature_noise, 0.3),
    "edge_index": (add_edge_noise, 0.5),
}


def make_graph(features=None, pairs=None, nodes=30):
    """A ring of nodes in three classes; 12 nodes to train on."""
    index = torch.arange(nodes)
    if features is None:
        features = torch.rand(nodes, 11, generator=torch.Generator().manual_seed(1))
        features = torch.where(features < 0.4, features + 0.01, 0)
    edges = torch.tensor([(i, (i + 1) % nodes) for i in range(nodes)] if pairs is None else pairs).T
    return GraphData(
        name="ring",
        features=features,
        labels=index % 3,
        edge_index=torch.cat([edges, edges.flip(0)], 1),
        train_mask=index < nodes - 18,
        val_mask=(index >= nodes - 18) & (index < nodes - 8),
        test_mask=index >= nodes - 8,
        num_classes=3,
    )


def dense(value):
    return value.to_dense() if isinstance(value, torch.Tensor) else value


def same(first, second):
    return torch.equal(dense(first), dense(second)) if isinstance(first, torch.Tensor) else first == second


@pytest.mark.parametrize("field", PERTURBATIONS)
@pytest.mark.parametrize("sparse", [False, True])
def test_the_seed_decides_on_one_field_and_leaves_the_others_alone(field, sparse):
    perturb, amount = PERTURBATIONS[field]
    graph = make_graph()
    graph = replace(graph, features=graph.features.to_sparse_coo().coalesce()) if sparse else graph
    before = {one.name: getattr(graph, one.name) for one in fields(graph)}
    state = torch.get_rng_state()
    noisy, again, other = (perturb(graph, amount, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    assert [name for name, value in before.items() if not same(value, getattr(noisy, name))] == [field]
    assert noisy.features.is_sparse == sparse
    assert same(getattr(noisy, field), getattr(again, field))
    assert not same(getattr(noisy, field), getattr(other, field))


def test_labels_of_each_class_are_kept():
    graph = make_graph()
    masks = [limit_labels(graph, per_class, seed=1).train_mask for per_class in (1, 3, 4)]
    assert [graph.labels[mask].bincount().tolist() for mask in masks] == [[1] * 3, [3] * 3, [4] * 3]
    assert not (masks[0] & ~masks[1] | masks[1] & ~masks[2] | masks[2] & ~graph.train_mask).any()
    # a class with fewer keeps them all: one node of class 0, none of class 3
    first, *others = (graph.train_mask & (graph.labels == 0)).nonzero().flatten().tolist()
    rare = torch.isin(torch.arange(graph.num_nodes), torch.tensor(others))
    mask = limit_labels(replace(graph, train_mask=graph.train_mask & ~rare, num_classes=4), 3, seed=1).train_mask
    assert graph.labels[mask].bincount(minlength=4).tolist() == [1, 3, 3, 0]
    assert mask[first]


@pytest.mark.parametrize(
    ("perturb", "changes", "amount", "message"),
    [
        (add_feature_noise, {"features": torch.ones(30, 1)}, 0.5, r"=0\.5: row \d+ of the features of 'ring' has no z"),
        (add_edge_noise, {}, 14, "is 420 new ones, but only 405 pairs of nodes have none"),
    ],
)
def test_bad_amounts(perturb, changes, amount, message):
    with pytest.raises(ValueError, match=message):
        perturb(replace(make_graph(), **changes), amount)


@pytest.mark.parametrize("fraction", [0.1, 1.0])
def test_features_move_within_their_rows(fraction):
    graph = make_graph()
    old, new = graph.features, add_feature_noise(graph, fraction, seed=2).features
    assert torch.equal(old.sort(1).values, new.sort(1).values)  # values are distinct: each is kept, in its row
    total = int((old != 0).sum())
    assert int(((old == new) & (old != 0)).sum()) == total - round(fraction * total)


def test_columns_are_uniform():
    features = torch.zeros(3000, 5)
    features[:, 1], features[:, 2] = 0.25, 0.75
    new = add_feature_noise(make_graph(features, pairs=[(0, 1)], nodes=3000), 1).features
    pairs = torch.stack([(new == 0.25).int().argmax(1), (new == 0.75).int().argmax(1)], 1)
    found, counts = pairs.unique(dim=0, return_counts=True)
    allowed = {(a, b) for a in range(5) for b in range(5) if a != b and a != 1 and b != 2}
    assert set(map(tuple, found.tolist())) == allowed
    expected = 3000 / len(allowed)
    assert (counts - expected).abs().max() < 5 * expected**0.5


@pytest.mark.parametrize("fraction", [0.1, 1.0, 5.0, (30 * 29 / 2 - 30) / 30], ids=["few", "as many", "many", "all"])
def test_edges_are_added(fraction):
    graph = make_graph()
    noisy = add_edge_noise(graph, fraction, seed=2)
    # neither loops, nor duplicates, nor single directions
    assert both_directions(noisy.edge_index, 30).shape == noisy.edge_index.shape
    assert torch.equal(noisy.edge_index[:, :60], graph.edge_index)
    assert noisy.edge_index.shape[1] == 60 + 2 * round(30 * fraction)


def test_new_edges_are_uniform():
    graph = make_graph(pairs=[(0, 1), (2, 4), (28, 29), (5, 6)])
    counts = torch.zeros(30, 30)
    for seed in range(200):
        source, target = add_edge_noise(graph, 2, seed=seed).edge_index[:, 8:16]
        counts[source, target] += 1
    free = torch.ones(30, 30).triu(1).bool()
    free[graph.edge_index[0], graph.edge_index[1]] = False
    expected = 200 * 8 / int(free.sum())
    assert counts.triu(1)[free].sum() == 200 * 8
    assert ((counts[free] - expected) ** 2 / expected).mean() == pytest.approx(1, abs=0.35)
