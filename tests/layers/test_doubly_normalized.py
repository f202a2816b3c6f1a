"""Attention that does not explain away: its theory, and the layers and models that use it."""

import pyro
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.gat import GAT
from pyro_attention import (
    AlignmentPrior,
    AttentionELBO,
    AttentionGuide,
    ContextualGammaPrior,
    ContextualLogNormalPrior,
    Dense,
    DirichletPrior,
    DoublyNormalized,
    EdgeList,
    FixedGammaPrior,
    GraphAttention,
    Hybrid,
    LatentAttention,
    MultiheadAttention,
    Sinkhorn,
    Soft,
    Softmax,
    Weibull,
    sample_posterior,
)
from pyro_attention.analysis import explained_away, hybrid_weights
from pyro_attention.families.gaussian import ContextualGaussianPrior, FixedGaussianPrior
from tests.helpers import DenseForm, EdgesForm, MaskedEdgesForm

WIDTH, HEADS = 8, 2
every_form = pytest.mark.parametrize(
    "form", [DenseForm(), MaskedEdgesForm(), EdgesForm()], ids=lambda form: type(form).__name__
)


@every_form
@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(
    queries=st.integers(1, 6), keys=st.integers(1, 6), scale=st.sampled_from([0.1, 3.0, 100.0]),
    density=st.sampled_from([0.3, 1.0]), seed=st.integers(0, 10_000),
)  # fmt: skip
def test_theorem_2(form, queries, keys, scale, density, seed):
    """The weights of every key that somebody sees sum to at least 1 / number of keys.

    More tightly, over the most keys that one of its queries sees: a weight is at least A_ij over these, as no A exceeds
    one, and the A_ij of a key sum to one.
    """
    generator = torch.Generator().manual_seed(seed)
    log_weights = scale * torch.randn(3, queries, keys, generator=generator, dtype=torch.float64)
    mask = torch.rand(queries, keys, generator=generator) < density
    layout, visible = form.layout(mask), mask.any(0)
    mass = explained_away(DoublyNormalized()(form.scores(log_weights, mask), layout), layout=layout).mass.nan_to_num(0)
    most = (mask * mask.sum(-1, keepdim=True)).amax(0).double()
    assert (mass[:, visible] >= (1 - 1e-12) / most[visible]).all()
    assert (mass[:, ~visible] == 0).all()


def test_softmax_explains_keys_away():
    """The same scores, where every query prefers one key."""
    log_weights = torch.zeros(1, 5, 5).index_fill(-1, torch.tensor([0]), 50.0)
    assert Softmax()(log_weights, Dense()).sum(-2).min() < 1e-8
    assert DoublyNormalized()(log_weights, Dense()).sum(-2).min() > 0.99


@pytest.mark.parametrize("iterations", [1, 2, 7])
def test_sinkhorn_rescales_columns_and_rows_in_turn(iterations):
    """The updates (10) of two scaling vectors."""
    s = torch.rand(2, 4, 5, dtype=torch.float64) + 0.1
    u = torch.ones(2, 4, 1, dtype=torch.float64)
    for _ in range(iterations):
        v = 1 / (s * u).sum(-2, keepdim=True)
        u = 1 / (s * v).sum(-1, keepdim=True)
    torch.testing.assert_close(Sinkhorn(iterations)(s.log(), Dense()), u * s * v)
    if iterations == 1:
        torch.testing.assert_close(DoublyNormalized()(s.log(), Dense()), u * s * v)


@pytest.mark.parametrize(("queries", "keys"), [(4, 4), (3, 5), (5, 3)])
def test_many_sweeps_are_doubly_stochastic(queries, keys):
    """With as many queries as keys; else every key gets queries / keys."""
    weights = Sinkhorn(300)(torch.randn(2, queries, keys, dtype=torch.float64), Dense())
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, queries, dtype=torch.float64))
    torch.testing.assert_close(weights.sum(-2), torch.full((2, keys), queries / keys, dtype=torch.float64))


@every_form
@pytest.mark.parametrize("prior", [ContextualGammaPrior, ContextualLogNormalPrior])
@pytest.mark.parametrize("normalizer", [DoublyNormalized(), Sinkhorn(3), Softmax()], ids=str)
def test_the_mean_of_a_contextual_prior_cancels(normalizer, prior, form):
    """Psi of a key is the same for all queries, so normalising over these leaves uniform weights; not so a softmax."""
    mask = torch.tensor([True, True, False, True]).repeat(3, 1)
    mask[1] = False  # a padded query
    layout, prior, uniform = form.layout(mask), prior(WIDTH), mask / 3
    scores = form.scores(torch.zeros(HEADS, 3, 4), mask)
    for keys in 3 * torch.randn(2, HEADS, 4, WIDTH):
        p = prior(scores, form.nodes(keys), layout)
        for value in (p.mean, p.log_expected_weight):
            weights = form.to_dense(normalizer(value.expand(p.shape()), layout), mask)
            if normalizer.over_queries:
                torch.testing.assert_close(weights, uniform.expand_as(weights))
            else:
                assert ((weights - uniform)[:, [0, 2]].abs().amax(-1) > 0.05).all()


def self_attention(layer, x, padding=None, **arguments):
    """A model of one self-attention layer, each sequence in a plate."""

    def model():
        with pyro.plate("batch", x.size(0)):
            return layer.attend(x, x, x, padding, query_padding_mask=padding, **arguments)

    return model


@pytest.mark.parametrize("normalizer", [DoublyNormalized(), Hybrid(HEADS), Sinkhorn(3), Softmax()], ids=str)
def test_multihead_attention_sees_no_padding(normalizer):
    """A batch of padded sequences is each sequence alone: context, weights and KL."""
    layer, x = MultiheadAttention(WIDTH, HEADS, normalizer=normalizer), torch.randn(3, 5, WIDTH)
    lengths = torch.tensor([5, 2, 3])
    output = AttentionGuide(self_attention(layer, x, torch.arange(5) >= lengths[:, None]), Soft()).run().output
    elbo, kl = AttentionELBO(), torch.zeros(())
    for i, length in enumerate(lengths):
        model = self_attention(layer, x[i : i + 1, :length])
        alone = AttentionGuide(model, Soft()).run().output
        torch.testing.assert_close(output.context[i, :length], alone.context[0])
        torch.testing.assert_close(output.weights[i, :, :length, :length], alone.weights[0])
        assert (output.weights[i, :, length:] == 0).all()
        elbo.loss(model, AttentionGuide(model, Weibull()))
        kl = kl + elbo.kl_record["attention"]
    model = self_attention(layer, x, torch.arange(5) >= lengths[:, None])
    elbo.loss(model, AttentionGuide(model, Weibull()))
    torch.testing.assert_close(elbo.kl_record["attention"], kl)


def test_graph_attention_of_two_graphs_is_that_of_each():
    layer = GraphAttention(3, WIDTH, HEADS, normalizer=DoublyNormalized())
    x, edges = torch.randn(5, 3), torch.tensor([[0, 1, 1, 3, 4], [1, 0, 2, 4, 3]])
    both = AttentionGuide(lambda: layer.attend(x, edges), Soft()).run().output
    first = AttentionGuide(lambda: layer.attend(x[:3], edges[:, :3]), Soft()).run().output
    torch.testing.assert_close(both.context[:3], first.context)
    torch.testing.assert_close(both.weights[:3], first.weights)


@pytest.mark.parametrize("family", [Soft(), Weibull()], ids=str)
def test_graph_network_trains_its_mixing_weights(family):
    model = GAT(5, 3, heads=2, output_heads=1, dropout=0.0, normalizer=lambda heads: Hybrid(heads, initial=0.1))
    graph = EdgeList.from_edge_index(torch.tensor([[0, 1, 2], [1, 2, 0]]), num_nodes=3, add_self_loops=True)
    before = hybrid_weights(model)
    assert {name: weights.tolist() for name, weights in before.items()} == {
        "layers.0": pytest.approx([0.1, 0.1]),
        "layers.1": pytest.approx([0.1]),
    }
    loss = AttentionELBO()(model, AttentionGuide(model, family))
    optimiser = torch.optim.Adam(loss.parameters(), lr=0.1)
    loss(torch.randn(3, 5), graph, torch.tensor([0, 1, 2])).backward()
    optimiser.step()
    assert all((weights != before[name]).all() for name, weights in hybrid_weights(loss).items())


def test_posterior_samples_are_doubly_normalised():
    attention = LatentAttention("attention", FixedGammaPrior(), normalizer=DoublyNormalized())
    guide = AttentionGuide(lambda scores, values: attention(scores, values).context, Weibull(2.0))
    scores, values = 20 * torch.randn(1, 4, 6), torch.randn(1, 6, 3)
    draws = sample_posterior(guide, scores, values, num_samples=50)["attention"]
    assert draws.std(0).max() > 0.01
    assert (draws.sum(-2) >= 0.999 / 6).all()


x = torch.randn(2, 4, WIDTH)
padding = torch.arange(4) >= torch.tensor([[4], [3]])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"is_causal": True}, ValueError, "site 'decoder': Hybrid .* would leak the future"),
        ({"key_padding_mask": padding}, ValueError, "site 'decoder': Hybrid .* pass query_padding_mask="),
        ({"key_padding_mask": torch.zeros(2, 4)}, ValueError, "site 'decoder': Hybrid .* pass query_padding_mask="),
        ({"query_padding_mask": padding.int()}, TypeError, "query_padding_mask is of type torch.int32"),
        ({"query_padding_mask": padding[:, 1:]}, ValueError, r"query_padding_mask has shape \(2, 3\), expected \(2, 4"),
    ],
)
def test_wrong_calls(arguments, error, message):
    layer = MultiheadAttention(WIDTH, HEADS, name="decoder", normalizer=Hybrid(HEADS))
    with pytest.raises(error, match=message), pyro.plate("batch", 2):
        layer(x, x, x, **arguments)


def test_queries_in_a_plate_are_refused():
    layer = LatentAttention("decoder", FixedGammaPrior(), normalizer=DoublyNormalized())
    with pytest.raises(ValueError, match=r"site 'decoder': DoublyNormalized normalises .* lie in a plate"):
        layer(torch.zeros(1, 4), torch.zeros(1, 4, WIDTH), layout=Dense(event_dim=2))


@pytest.mark.parametrize("normalizer", [DoublyNormalized(), Hybrid(), Sinkhorn()], ids=str)
@pytest.mark.parametrize(
    ("prior", "reason"),
    [
        (AlignmentPrior(), "under AlignmentPrior"),
        (DirichletPrior(), "under DirichletPrior"),
        (FixedGaussianPrior(), "under FixedGaussianPrior"),
        (ContextualGaussianPrior(WIDTH), "under ContextualGaussianPrior"),
    ],
    ids=["alignment", "dirichlet", "gaussian", "contextual gaussian"],
)
def test_priors_over_keys_alone(prior, reason, normalizer):
    kind = type(normalizer).__name__
    with pytest.raises(ValueError, match=rf"'decoder': {kind} normalises over queries, .* {reason}.*; use Softmax\(\)"):
        LatentAttention("decoder", prior, normalizer=normalizer)
    LatentAttention("decoder", prior, normalizer=Softmax())


def test_what_is_no_normalizer():
    with pytest.raises(TypeError, match=r"normalizer is 'softmax', expected a Normalizer such as Softmax\(\)"):
        MultiheadAttention(WIDTH, HEADS, normalizer="softmax")
