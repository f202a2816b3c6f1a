"""Intervals of the weights of a graph's edges, and keys that no query attends to."""

import math

import pytest
import torch

from pyro_attention import AttentionGuide, Dense, DoublyNormalized, GraphAttention, Weibull, sample_posterior
from pyro_attention.analysis import edge_intervals, key_mass
from pyro_attention.normalizers import Softmax
from tests.helpers import DenseForm, EdgesForm, MaskedEdgesForm
from tests.toy_models import GraphData

EDGES = torch.tensor([[0, 1, 2, 1], [1, 1, 1, 0]])  # node 1 has three in-edges, one of them a self loop
ROWS = torch.tensor([[0.5], [0.3], [0.2], [1.0]])


def samples(add_self_loops, edge_index, *, num_samples=40):
    """Posterior weights of a layer."""
    data = GraphData.random()
    layer = GraphAttention(5, 3, heads=2, add_self_loops=add_self_loops)
    guide = AttentionGuide(lambda x: layer(x, edge_index), Weibull(3.0))
    return sample_posterior(guide, data.features, num_samples=num_samples, seed=0)["graph_attention"]


@pytest.mark.parametrize("add_self_loops", [True, False])
def test_rows_are_labeled(add_self_loops):
    data = GraphData.random()
    weights = samples(add_self_loops, data.edge_index)
    found = edge_intervals(weights, data.edge_index, level=0.8)
    edges, nodes = data.edge_index.size(1), len(data.features)
    assert torch.equal(torch.stack([found.source, found.target])[:, :edges], data.edge_index)
    assert found.added.tolist() == [False] * edges + [True] * nodes * add_self_loops
    assert found.source[found.added].equal(found.target[found.added])
    assert found.source[found.added].tolist() == list(range(nodes * add_self_loops))
    torch.testing.assert_close(found.mean, weights.mean(0))
    ends = weights.quantile(torch.tensor([0.1, 0.9]), dim=0)
    torch.testing.assert_close(torch.stack([found.low, found.high]), ends)
    torch.testing.assert_close(found.width, ends[1] - ends[0])
    # a self loop of the input is replaced by the added one
    replaced = data.edge_index[0] == data.edge_index[1]
    assert replaced.any()
    assert (found.mean[:edges][replaced] == 0).all() == add_self_loops


# Key 2 is seen by no query, query 1 sees no key.
MASK = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [1, 1, 0, 1]], dtype=torch.bool)


@pytest.mark.parametrize("form", [DenseForm(), MaskedEdgesForm(), EdgesForm()], ids=lambda form: type(form).__name__)
def test_layouts(form):
    weights = Softmax()(torch.randn(5, 2, 3, 4), Dense(MASK))
    mass = key_mass(form.scores(weights, MASK), layout=form.layout(MASK))
    torch.testing.assert_close(mass[..., [0, 1, 3]], weights.sum(-2)[..., [0, 1, 3]])
    assert mass[..., 2].isnan().all()


def test_softmax_explains_away_and_doubly_normalized_attention_does_not():
    """One head attends to a single key, the other evenly; 100 keys, as the boxes of the paper's figure 1."""
    scores = torch.zeros(2, 100, 100)
    scores[0, :, 0] = 50
    soft, doubly = (key_mass(normalizer(scores, Dense())) for normalizer in (Softmax(), DoublyNormalized()))
    torch.testing.assert_close((soft < 1e-8).float().mean(-1), torch.tensor([0.99, 0.0]))
    assert doubly.log().min() > -math.log(100) - 1e-6


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: edge_intervals(ROWS.expand(2, 4, 1).log(), EDGES), "leave out log_weights=True"),
        (lambda: edge_intervals(ROWS.expand(2, 4, 1), EDGES.flip(0)), r"in-edges of node 0 sum to 0\.5, expected 1"),
        (lambda: edge_intervals(ROWS.expand(2, 4, 1), EDGES[:, :3]), "samples hold 4 edges, edge_index 3 between 3"),
        (lambda: key_mass(torch.full((1, 2, 3), -1.0)), "expected normalized weights, not log weights"),
        (lambda: key_mass(torch.zeros(1, 2, 3), layout=Dense(event_dim=2)), "nothing runs over queries"),
    ],
)
def test_wrong_weights(call, message):
    with pytest.raises(ValueError, match=message):
        call()
