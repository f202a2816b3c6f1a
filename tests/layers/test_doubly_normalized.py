"""Attention that does not explain away: its theory, and the layers and models that use it."""

import pyro
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_attention import (
    AttentionCall,
    AttentionELBO,
    AttentionGuide,
    ContextualGammaPrior,
    Dense,
    DoublyNormalized,
    FixedGammaPrior,
    Hybrid,
    LatentAttention,
    MultiheadAttention,
    Soft,
    Weibull,
)
from pyro_attention.analysis import key_mass
from pyro_attention.families.dirichlet import DirichletPrior
from pyro_attention.families.lognormal import ContextualLogNormalPrior
from pyro_attention.normalizers import Softmax
from pyro_attention.over_queries import Sinkhorn
from tests.helpers import DenseForm, EdgesForm, MaskedEdgesForm

WIDTH, HEADS = 8, 2
every_form = pytest.mark.parametrize(
    "form", [DenseForm(), MaskedEdgesForm(), EdgesForm()], ids=lambda form: type(form).__name__
)


@every_form
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
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
    mass = key_mass(DoublyNormalized()(form.scores(log_weights, mask), layout), layout=layout).nan_to_num(0)
    most = (mask * mask.sum(-1, keepdim=True)).amax(0).double()
    assert (mass[:, visible] >= (1 - 1e-12) / most[visible]).all()
    assert (mass[:, ~visible] == 0).all()


@pytest.mark.parametrize(("queries", "keys"), [(4, 4), (3, 5)])
def test_sinkhorn_rescales_columns_and_rows_in_turn(queries, keys):
    """The updates (10) of two scaling vectors; in the limit every key gets queries / keys."""
    s = torch.rand(2, queries, keys, dtype=torch.float64) + 0.1
    u = torch.ones(2, queries, 1, dtype=torch.float64)
    for iterations in range(1, 4):
        v = 1 / (s * u).sum(-2, keepdim=True)
        u = 1 / (s * v).sum(-1, keepdim=True)
        torch.testing.assert_close(Sinkhorn(iterations)(s.log(), Dense()), u * s * v)
        if iterations == 1:
            torch.testing.assert_close(DoublyNormalized()(s.log(), Dense()), u * s * v)
    weights = Sinkhorn(300)(s.log(), Dense())
    torch.testing.assert_close(weights.sum(-2), torch.full((2, keys), queries / keys, dtype=torch.float64))


@pytest.mark.parametrize(
    ("form", "prior"), [(DenseForm(), ContextualGammaPrior), (EdgesForm(), ContextualLogNormalPrior)]
)
@pytest.mark.parametrize("normalizer", [DoublyNormalized(), Sinkhorn(3), Softmax()], ids=str)
def test_the_mean_of_a_contextual_prior_cancels(normalizer, prior, form):
    """Psi of a key is the same for all queries, so normalising over these leaves uniform weights; not so a softmax."""
    mask = torch.tensor([True, True, False, True]).repeat(3, 1)
    mask[1] = False  # a padded query
    layout, uniform = form.layout(mask), mask / 3
    scores, keys = form.scores(torch.zeros(HEADS, 3, 4), mask), form.nodes(3 * torch.randn(HEADS, 4, WIDTH))
    p = prior(WIDTH)(AttentionCall(scores=scores, keys=keys, layout=layout))
    weights = form.to_dense(normalizer(p.log_expected_weight.expand(p.shape()), layout), mask)
    if normalizer.over_queries:
        torch.testing.assert_close(weights, uniform.expand_as(weights))
    else:
        assert ((weights - uniform)[:, [0, 2]].abs().amax(-1) > 0.05).all()


@pytest.mark.parametrize("normalizer", [DoublyNormalized(), Hybrid(HEADS), Sinkhorn(3), Softmax()], ids=str)
def test_multihead_attention_sees_no_padding(normalizer):
    """A batch of padded sequences is each sequence alone: context, weights and KL."""
    layer, x = MultiheadAttention(WIDTH, HEADS, normalizer=normalizer), torch.randn(3, 5, WIDTH)
    lengths = torch.tensor([5, 2, 3])
    padding = torch.arange(5) >= lengths[:, None]

    def run(rows, length, padding=None):
        """What a batch gives under Soft(), and its KL under Weibull."""

        def model():
            with pyro.plate("batch", len(x[rows])):
                return layer.attend(*3 * (x[rows, :length],), padding, query_padding_mask=padding)

        elbo = AttentionELBO()
        elbo.loss(model, AttentionGuide(model, Weibull()))
        return AttentionGuide(model, Soft()).run().output, elbo.kl_record["attention"]

    output, kl = run(slice(None), 5, padding)
    for i, length in enumerate(lengths):
        alone, part = run(slice(i, i + 1), length)
        torch.testing.assert_close(output.context[i, :length], alone.context[0])
        torch.testing.assert_close(output.weights[i, :, :length, :length], alone.weights[0])
        assert (output.weights[i, :, length:] == 0).all()
        kl = kl - part
    assert kl.item() == pytest.approx(0, abs=1e-3)


x = torch.randn(2, 4, WIDTH)
padding = torch.arange(4) >= torch.tensor([[4], [3]])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"is_causal": True}, "site 'decoder': Hybrid .* would leak the future"),
        ({"key_padding_mask": padding}, "site 'decoder': Hybrid .* pass query_padding_mask="),
        ({"query_padding_mask": padding[:, 1:]}, r"query_padding_mask has shape \(2, 3\), expected \(2, 4"),
    ],
)
def test_wrong_calls(arguments, message):
    layer = MultiheadAttention(WIDTH, HEADS, name="decoder", normalizer=Hybrid(HEADS))
    with pytest.raises(ValueError, match=message), pyro.plate("batch", 2):
        layer(x, x, x, **arguments)


def test_what_does_not_go_with_it():
    layer = LatentAttention("decoder", FixedGammaPrior(), normalizer=DoublyNormalized())
    with pytest.raises(ValueError, match=r"site 'decoder': DoublyNormalized normalizes .* lie in a plate"):
        layer(torch.zeros(1, 4), torch.zeros(1, 4, WIDTH), layout=Dense(event_dim=2))
    with pytest.raises(ValueError, match=r"'decoder': Hybrid normalizes over queries, .*; use Softmax\(\)"):
        LatentAttention("decoder", DirichletPrior(), normalizer=Hybrid())
    with pytest.raises(TypeError, match=r"normalizer is 'softmax', expected a Normalizer such as Softmax\(\)"):
        MultiheadAttention(WIDTH, HEADS, normalizer="softmax")
