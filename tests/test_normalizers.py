"""Normalizers: what their weights sum to, where they vanish, and what scale does to them; in every layout."""

import pytest
import torch

from pyro_attention import Dense, DoublyNormalized, FixedGammaPrior, Hybrid, LatentAttention
from pyro_attention.normalizers import NORMALIZERS, Softmax
from pyro_attention.over_queries import Sinkhorn
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
    """Common factors and masked log weights do not matter, nor does the size of the log weights."""
    log_weights = torch.randn(5, 2, 3, 4)
    weights = normalize(name, form, log_weights)
    assert (weights[..., MASK] > 0).all()
    assert (weights[..., ~MASK] == 0).all()
    torch.testing.assert_close(weights.sum(-1), MASK.any(-1).float().expand(5, 2, 3))
    torch.testing.assert_close(normalize(name, form, log_weights + 7), weights)
    assert torch.equal(normalize(name, form, log_weights.masked_fill(~MASK, 1e4)), weights)
    extreme = (1000 * log_weights).requires_grad_()
    weights = normalize(name, form, extreme)
    assert all(x.isfinite().all() for x in (weights, *torch.autograd.grad(weights.square().sum(), extreme)))
    log_weights = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: normalize(name, form, x), log_weights)


@every_form
def test_division_by_the_sums(form):
    """Written out for all of them."""
    s, normalized = (torch.rand(2, 3, 4) + 0.1) * MASK, {}

    def divide(s, dim):
        return s / s.sum(dim, keepdim=True).clamp(min=1e-30)

    normalized["softmax"] = divide(s, -1)
    normalized["doubly_normalized"] = divide(divide(s, -2), -1)
    normalized["sinkhorn"] = s
    for _ in range(5):
        normalized["sinkhorn"] = divide(divide(normalized["sinkhorn"], -2), -1)
    normalized["hybrid"] = (normalized["softmax"] + normalized["doubly_normalized"]) / 2
    for name, expected in normalized.items():
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


@every_form
def test_the_shift_of_hybrid_scores_makes_rows_sum_to_one_on_average(form):
    scores = form.scores(torch.randn(2, 3, 4), MASK)
    shares = form.to_dense(Hybrid().normalize_scores(scores, form.layout(MASK)).exp(), MASK) * MASK
    torch.testing.assert_close(shares.sum((-2, -1)), MASK.any(-1).sum().float().expand(2))


@every_normalizer
def test_half_precision_and_padding(name):
    """Computed in single precision; padded sequences get the weights that each gets alone."""
    log_weights, normalizer = torch.randn(2, 3, 4).bfloat16(), make_normalizer(name)
    weights = make_normalizer(name).bfloat16()(log_weights, Dense(MASK))
    torch.testing.assert_close(weights, normalizer(log_weights.float(), Dense(MASK)))
    log_weights, queries, keys = torch.randn(3, 2, 5, 6), torch.tensor([5, 2, 3]), torch.tensor([4, 6, 1])
    mask = (torch.arange(5) < queries[:, None])[:, None, :, None] & (torch.arange(6) < keys[:, None])[:, None, None]
    weights = normalizer(log_weights, Dense(mask))
    for one, m, n, padded in zip(log_weights, queries, keys, weights, strict=True):
        torch.testing.assert_close(padded[:, :m, :n], normalizer(one[:, :m, :n], Dense()))


@every_form
def test_hybrid_mixes_head_by_head(form):
    log_weights, hybrid = torch.randn(2, 3, 4, dtype=torch.float64), Hybrid(heads=2).double()
    layout, logit = form.layout(MASK), torch.tensor([0.2, 0.9]).double().logit().requires_grad_()

    def mix(logit):
        call = form.scores(log_weights, MASK), layout
        return form.to_dense(torch.func.functional_call(hybrid, {"logit": logit}, call), MASK)

    plain, doubly = (normalize(name, form, log_weights) for name in ("softmax", "doubly_normalized"))
    for head, share in enumerate((0.2, 0.9)):
        torch.testing.assert_close(mix(logit)[head], share * doubly[head] + (1 - share) * plain[head])
    assert torch.autograd.gradcheck(mix, logit)
    torch.testing.assert_close(Hybrid(heads=2, initial=0.1).mixing_weights, torch.tensor([0.1, 0.1]))
    assert Hybrid(initial=0.1)(torch.randn(4, 3, 3), Dense()).shape == (4, 3, 3)  # one for all heads


def attend(normalizer, layout):
    layer = LatentAttention("a", FixedGammaPrior(), normalizer=normalizer)
    return layer(torch.zeros(2, 3, 4), torch.zeros(2, 4, 5), layout=layout)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Hybrid(heads=0), "heads is 0, expected at least 1"),
        (lambda: Hybrid(initial=1.0), "initial is 1.0, expected a number between 0 and 1, both excluded"),
        (lambda: Hybrid(heads=3)(torch.zeros(2, 3, 4), Dense()), r"has 3 mixing .* 2 heads; pass Hybrid\(heads=2\)"),
        (lambda: Sinkhorn(0), "iterations is 0, expected at least 1"),
        (lambda: attend(Hybrid(), Dense(event_dim=2)), "site 'a': Hybrid .* with event_dim=2 these lie in a plate"),
        (lambda: attend(DoublyNormalized(), Dense(causal=True)), "would leak the future to the earlier ones"),
        (lambda: DoublyNormalized()(torch.zeros(2, 4), Dense(event_dim=2)), "event_dim is 2, so nothing runs over qu"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
