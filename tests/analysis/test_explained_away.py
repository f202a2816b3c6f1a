"""Mass of keys, its histogram, and the mixing weights of hybrid attention."""

import math

import pytest
import torch

from pyro_attention import Dense, DoublyNormalized, Hybrid, MultiheadAttention, Softmax
from pyro_attention.analysis import explained_away, hybrid_weights
from tests.helpers import DenseForm, EdgesForm, MaskedEdgesForm

# Key 2 is seen by no query, query 1 sees no key.
MASK = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [1, 1, 0, 1]], dtype=torch.bool)


@pytest.mark.parametrize("form", [DenseForm(), MaskedEdgesForm(), EdgesForm()], ids=lambda form: type(form).__name__)
def test_layouts(form):
    weights = Softmax()(torch.randn(5, 2, 3, 4), Dense(MASK))
    found = explained_away(form.scores(weights, MASK), layout=form.layout(MASK), epsilon=0.5)
    mass = weights.sum(-2)
    torch.testing.assert_close(found.mass[..., [0, 1, 3]], mass[..., [0, 1, 3]])
    assert found.mass[..., 2].isnan().all()
    expected = (mass < 0.5)[..., [0, 1, 3]].float().mean((0, 2))
    torch.testing.assert_close(found.fraction, expected)


def test_softmax_explains_away_and_doubly_normalised_attention_does_not():
    """One head attends to a single key, the other evenly; 100 keys, as the boxes of the paper's figure 1."""
    scores = torch.zeros(2, 100, 100)
    scores[0, :, 0] = 50
    found = [explained_away(normalizer(scores, Dense())) for normalizer in (Softmax(), DoublyNormalized())]
    assert found[0].epsilon == 1e-8
    torch.testing.assert_close(found[0].fraction, torch.tensor([0.99, 0.0]))
    assert (found[1].fraction == 0).all()
    assert found[1].mass.log().min() > -math.log(100) - 1e-6


def test_histogram_counts_every_key_once():
    mass = torch.tensor([[0.0, 1e-9, 1e-7, 0.5, 2.0], [1.0, 1.0, 1.0, 1.0, math.nan]])
    weights = (mass.nan_to_num(0) / 2).unsqueeze(-2).expand(2, 2, 5)  # two queries attend alike
    mask = torch.ones(2, 2, 5, dtype=torch.bool)
    mask[1, :, 4] = False
    found = explained_away(weights, layout=Dense(mask), epsilon=1e-8)
    torch.testing.assert_close(found.mass, mass, equal_nan=True)
    histogram = found.histogram(bins=4)
    assert histogram.edges[[0, -1]].tolist() == pytest.approx([math.log(1e-8), math.log(2)])
    assert histogram.explained_away.tolist() == [2, 0]
    assert histogram.counts.tolist() == [[1, 0, 0, 2], [0, 0, 0, 4]]


@pytest.mark.parametrize(
    ("weights", "options", "fraction", "counted", "gone"),
    [
        (Softmax()(torch.arange(720.0).sin().view(3, 4, 2, 5, 6), Dense()), {}, 0.0, 3 * 4 * 6, 0),
        (torch.zeros(1, 2, 3), {}, 1.0, 0, 3),
        (torch.zeros(1, 2, 3), {"layout": Dense(torch.tensor(False))}, math.nan, 0, 0),
    ],
    ids=["samples and batches", "nothing else", "no keys"],
)
def test_histogram_and_fraction(weights, options, fraction, counted, gone):
    found, heads = explained_away(weights, **options), weights.size(-3)
    histogram = found.histogram()
    assert found.fraction.tolist() == pytest.approx([fraction] * heads, nan_ok=True)
    assert histogram.counts.shape == (heads, 50)
    assert histogram.counts.sum(-1).tolist() == [counted] * heads
    assert histogram.explained_away.tolist() == [gone] * heads


@pytest.mark.parametrize(
    ("weights", "options", "error", "message"),
    [
        (torch.zeros(1, 2, 3, dtype=torch.int64), {}, TypeError, "weights have dtype torch.int64, expected a floating"),
        ([[1.0]], {}, TypeError, "weights have type list"),
        (torch.full((1, 2, 3), -1.0), {}, ValueError, "expected normalised weights, not log weights"),
        (torch.full((1, 2, 3), math.nan), {}, ValueError, r"outside \[0, 1\] or NaN"),
        (torch.full((1, 2, 3), 5.0), {}, ValueError, "expected normalised weights"),
        (torch.zeros(1, 2, 3), {"epsilon": 0.0}, ValueError, "epsilon is 0.0, expected a positive number"),
        (torch.zeros(2, 3), {}, ValueError, "fewer than 3"),
        (torch.zeros(1, 2, 3), {"layout": Dense(MASK)}, ValueError, "does not broadcast"),
        (torch.zeros(1, 2, 3), {"layout": Dense(event_dim=2)}, ValueError, "nothing runs over queries"),
        (torch.ones(1, 1, 1), {}, ValueError, "bins is 0, expected at least 1"),
    ],
)
def test_wrong_input(weights, options, error, message):
    with pytest.raises(error, match=message):
        explained_away(weights, **options).histogram(bins=0)


def test_hybrid_weights_of_all_layers():
    layers = torch.nn.ModuleList(
        [
            MultiheadAttention(4, 2, name="encoder.0", normalizer=Hybrid(2, initial=0.1)),
            MultiheadAttention(4, 2, name="encoder.1", normalizer=Hybrid(initial=0.7)),
            MultiheadAttention(4, 2, name="decoder.0"),
        ]
    )
    found = hybrid_weights(layers)
    assert {name: weights.tolist() for name, weights in found.items()} == {
        "encoder.0": pytest.approx([0.1, 0.1]),
        "encoder.1": pytest.approx([0.7]),
    }
    assert not any(weights.requires_grad for weights in found.values())
    assert hybrid_weights(layers[2]) == {}
