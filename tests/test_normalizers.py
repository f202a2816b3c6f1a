"""Normalizers: what their weights sum to, where they vanish, and what scale does to them; in every layout."""

import pytest
import torch

from pyro_attention import NORMALIZERS, Dense, Softmax
from tests.helpers import DenseForm, EdgesForm, MaskedEdgesForm

every_normalizer = pytest.mark.parametrize("name", list(NORMALIZERS))
every_form = pytest.mark.parametrize(
    "form", [DenseForm(), MaskedEdgesForm(), EdgesForm()], ids=lambda form: type(form).__name__
)
# Query 0 sees two keys, query 1 none, query 2 all but key 2, which no query sees.
MASK = torch.tensor([[1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 0, 1]], dtype=torch.bool)


def normalize(name, form, log_weights, mask=MASK):
    return form.to_dense(NORMALIZERS[name]()(form.scores(log_weights, mask), form.layout(mask)), mask)


@every_form
@every_normalizer
def test_rows_are_simplices(name, form):
    weights = normalize(name, form, torch.randn(5, 2, 3, 4))
    assert (weights[..., MASK] > 0).all()
    assert (weights[..., ~MASK] == 0).all()
    torch.testing.assert_close(weights.sum(-1), MASK.any(-1).float().expand(5, 2, 3))


@every_form
@every_normalizer
def test_common_factor_cancels(name, form):
    log_weights = torch.randn(2, 3, 4)
    torch.testing.assert_close(normalize(name, form, log_weights + 7), normalize(name, form, log_weights))


@every_form
@every_normalizer
def test_masked_log_weights_do_not_matter(name, form):
    log_weights = torch.randn(2, 3, 4)
    other = log_weights.masked_fill(~MASK, 1e4)
    assert torch.equal(normalize(name, form, other), normalize(name, form, log_weights))


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


@every_form
def test_softmax_divides_by_the_sum(form):
    s = torch.rand(2, 3, 4) + 0.1
    expected = s * MASK / (s * MASK).sum(-1, keepdim=True).clamp(min=1e-30)
    torch.testing.assert_close(normalize("softmax", form, s.log()), expected)


@pytest.mark.parametrize("event_dim", [2, 3])
def test_softmax_with_queries_in_a_plate(event_dim):
    log_weights = torch.randn(6, 2, 4)
    weights = Softmax()(log_weights, Dense(MASK[2], event_dim=event_dim))
    torch.testing.assert_close(weights, log_weights.masked_fill(~MASK[2], -torch.inf).softmax(-1))
