"""Normalizers: what their weights sum to, where they vanish, and what scale does to them; in every layout."""

import pytest
import torch

from pyro_attention import Dense, DoublyNormalized, Hybrid, Sinkhorn, Softmax
from pyro_attention.normalizers import NORMALIZERS
from tests.helpers import DenseForm, EdgesForm, MaskedEdgesForm, make_normalizer

every_normalizer = pytest.mark.parametrize("name", list(NORMALIZERS))
every_form = pytest.mark.parametrize(
    "form", [DenseForm(), MaskedEdgesForm(), EdgesForm()], ids=lambda form: type(form).__name__
)
# Query 0 sees two keys, query 1 none, query 2 all but key 2, which no query sees.
MASK = torch.tensor([[1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 0, 1]], dtype=torch.bool)


def normalize(name, form, log_weights, mask=MASK):
    normalizer = make_normalizer(name, heads=log_weights.size(-3))
    return form.to_dense(normalizer(form.scores(log_weights, mask), form.layout(mask)), mask)


@every_form
@every_normalizer
def test_rows_are_simplices(name, form):
    weights = normalize(name, form, torch.randn(5, 2, 3, 4))
    assert (weights[..., MASK] > 0).all()
    assert (weights[..., ~MASK] == 0).all()
    torch.testing.assert_close(weights.sum(-1), MASK.any(-1).float().expand(5, 2, 3))


@every_form
@every_normalizer
def test_common_factors_and_masked_log_weights_do_not_matter(name, form):
    log_weights = torch.randn(2, 3, 4)
    weights = normalize(name, form, log_weights)
    torch.testing.assert_close(normalize(name, form, log_weights + 7), weights)
    assert torch.equal(normalize(name, form, log_weights.masked_fill(~MASK, 1e4)), weights)


@every_form
@every_normalizer
def test_gradient(name, form):
    log_weights = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: normalize(name, form, x), log_weights)


@every_form
@every_normalizer
def test_extreme_log_weights(name, form):
    log_weights = (1000 * torch.randn(2, 3, 4)).requires_grad_()
    weights = normalize(name, form, log_weights)
    (gradient,) = torch.autograd.grad(weights.square().sum(), log_weights)
    assert weights.isfinite().all()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("name", ["softmax", "doubly_normalized"])
@every_form
def test_division_by_the_sums(form, name):
    s = (torch.rand(2, 3, 4) + 0.1) * MASK
    expected = s if name == "softmax" else s / s.sum(-2, keepdim=True).clamp(min=1e-30)
    expected = expected / expected.sum(-1, keepdim=True).clamp(min=1e-30)
    torch.testing.assert_close(normalize(name, form, s.log().clamp(min=-100)), expected)


@pytest.mark.parametrize("event_dim", [2, 3])
def test_softmax_with_queries_in_a_plate(event_dim):
    log_weights = torch.randn(6, 2, 4)
    weights = Softmax()(log_weights, Dense(MASK[2], event_dim=event_dim))
    torch.testing.assert_close(weights, log_weights.masked_fill(~MASK[2], -torch.inf).softmax(-1))


@every_form
@every_normalizer
def test_normalized_scores_have_the_same_weights(name, form):
    scores, normalizer = form.scores(10 * torch.randn(2, 3, 4), MASK), make_normalizer(name)
    layout = form.layout(MASK)
    normalized = normalizer.normalize_scores(scores, layout)
    torch.testing.assert_close(normalizer(normalized, layout), normalizer(scores, layout))
    expected = form.to_dense(normalized.exp(), MASK)[..., MASK]
    assert (expected <= 2.001).all()  # bounded by the number of queries with a key


@every_normalizer
def test_half_precision_is_computed_in_single(name):
    log_weights = torch.randn(2, 3, 4).bfloat16()
    weights = make_normalizer(name).bfloat16()(log_weights, Dense(MASK))
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights.sum(-1), MASK.any(-1).float().expand(2, 3))
    torch.testing.assert_close(weights, make_normalizer(name)(log_weights.float(), Dense(MASK)))


@every_normalizer
def test_padding_does_not_matter(name):
    """Sequences of different lengths, padded, get the weights that each gets alone."""
    log_weights, normalizer = torch.randn(3, 2, 5, 6), make_normalizer(name)
    queries, keys = torch.tensor([5, 2, 3]), torch.tensor([4, 6, 1])
    mask = (torch.arange(5) < queries[:, None])[:, None, :, None] & (torch.arange(6) < keys[:, None])[:, None, None]
    weights = normalizer(log_weights, Dense(mask))
    for one, m, n, padded in zip(log_weights, queries, keys, weights, strict=True):
        torch.testing.assert_close(padded[:, :m, :n], normalizer(one[:, :m, :n], Dense()))


@every_form
def test_hybrid_mixes_head_by_head(form):
    log_weights, hybrid = torch.randn(2, 3, 4), Hybrid(heads=2)
    with torch.no_grad():
        hybrid.logit.copy_(torch.tensor([0.2, 0.9]).logit())
    torch.testing.assert_close(hybrid.mixing_weights, torch.tensor([0.2, 0.9]))
    weights = form.to_dense(hybrid(form.scores(log_weights, MASK), form.layout(MASK)), MASK)
    plain, doubly = (normalize(name, form, log_weights) for name in ("softmax", "doubly_normalized"))
    for head, share in enumerate((0.2, 0.9)):
        torch.testing.assert_close(weights[head], share * doubly[head] + (1 - share) * plain[head])


@every_form
def test_gradient_of_the_mixing_weights(form):
    log_weights = form.scores(torch.randn(2, 3, 4, dtype=torch.float64), MASK)

    def mix(logit):
        hybrid = Hybrid(heads=2).double()
        return torch.func.functional_call(hybrid, {"logit": logit}, (log_weights, form.layout(MASK)))

    logit = torch.tensor([-1.0, 0.5], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(mix, logit)


def test_one_mixing_weight_for_all_heads():
    hybrid = Hybrid(initial=0.1)
    assert hybrid(torch.randn(4, 3, 3), Dense()).shape == (4, 3, 3)
    assert repr(hybrid).startswith("Hybrid(\n  mixing_weights=[0.1]")


@every_normalizer
def test_queries_in_a_plate(name):
    call = make_normalizer(name), torch.randn(6, 2, 4), Dense(event_dim=2)
    if not NORMALIZERS[name].over_queries:
        call[0](*call[1:])
        return
    with pytest.raises(ValueError, match="event_dim is 2, so nothing runs over queries"):
        call[0](*call[1:])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Hybrid(heads=0), "heads is 0, expected at least 1"),
        (lambda: Hybrid(initial=1.0), "initial is 1.0, expected a number between 0 and 1, both excluded"),
        (lambda: Hybrid(heads=3)(torch.zeros(2, 3, 4), Dense()), r"has 3 mixing .* 2 heads; pass Hybrid\(heads=2\)"),
        (lambda: Sinkhorn(0), "iterations is 0, expected at least 1"),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def ones(queries, keys):
    return torch.ones(queries, keys, dtype=torch.bool)


def pad(mask, *lengths):
    """Sequences of these lengths: neither queries nor keys behind them, ``[B, 1, M, N]``."""
    real = torch.arange(mask.size(-1)) < torch.tensor(lengths)[:, None]
    return (mask & real[:, :, None] & real[:, None])[:, None]


FUTURE = ones(4, 4).triu(1)
BLOCKS = torch.block_diag(*[torch.ones(2, 2)] * 3).bool()


every_over_queries = pytest.mark.parametrize(
    "normalizer", [DoublyNormalized(), Hybrid(), Sinkhorn()], ids=lambda n: type(n).__name__
)


@every_over_queries
def test_causal_attention_is_refused_where_it_says_so(normalizer):
    normalizer.check(Dense(), site="decoder")
    Softmax().check(Dense(causal=True), site="decoder")
    with pytest.raises(ValueError, match=r"site 'decoder': .* would leak the future to the earlier ones; use Softmax"):
        normalizer.check(Dense(causal=True), site="decoder")
