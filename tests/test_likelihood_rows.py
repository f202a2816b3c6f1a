"""A TokenLikelihood that is computed at some rows alone."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pyro_attention import TokenLikelihood
from tests.test_likelihoods import CLOSE, VOCABULARY, layer, random_features


@pytest.mark.parametrize("shape", [(4, 2, 3), (3,), (2, 1)], ids=str)
@pytest.mark.parametrize("expand", [False, True])
def test_some_rows_alone(shape, expand):
    """As under a mask; features and tokens broadcast."""
    output, tokens, rows = layer(), torch.randint(VOCABULARY, (2, 3)), torch.rand(shape) > 0.5
    likelihood = TokenLikelihood(random_features(4, 1, 3), output.weight, output.bias).expand([4, 2, 3])
    some = likelihood.where(rows)
    some = some.expand([5, 4, 2, 3]) if expand else some
    expected = likelihood.log_prob(tokens).where(rows, 0)
    found = some.log_prob(tokens)
    torch.testing.assert_close(found, expected.expand_as(found), **CLOSE)
    inputs = likelihood.features, output.weight, output.bias
    gradients = [torch.autograd.grad(value.sum(), inputs) for value in (found / (5 if expand else 1), expected)]
    torch.testing.assert_close(*gradients, **CLOSE)


def test_no_row_at_all():
    output = layer()
    likelihood = TokenLikelihood(random_features(2), output.weight).where(torch.zeros(2, dtype=torch.bool))
    assert likelihood.log_prob(torch.tensor([1, 2])).tolist() == [0, 0]
    with pytest.raises(ValueError, match=r"rows have shape \(3,\), .* the batch shape \(2,\)"):
        likelihood.where(torch.ones(3, dtype=torch.bool))


@pytest.mark.parametrize("wanted", [True, False])
def test_a_single_row(wanted):
    likelihood, token = TokenLikelihood(torch.randn(layer().in_features), layer().weight), torch.tensor(1)
    expected = likelihood.log_prob(token) if wanted else torch.tensor(0.0)
    found = likelihood.where(torch.tensor(wanted)).log_prob(token)
    torch.testing.assert_close(found, expected.to(found.dtype))


@pytest.mark.parametrize("summed", [True, False])
def test_a_row_of_features_for_many_tokens_is_computed_once(summed):
    """Words that are read from the context alone: rows of logits for the source words, not for every pair of words."""
    output, (target, source) = layer(), (6, 4)
    likelihood = TokenLikelihood(random_features(source, 1), output.weight, output.bias).expand([source, target])
    tokens, rows = torch.randint(VOCABULARY, (target,)), torch.rand(source, target) > 0.2
    some = likelihood.where(rows)
    if summed:
        some = some.summed_over(-2, torch.zeros(source, target), evidence=True)
    with FlopCounterMode(display=False) as counter:
        found = some.log_prob(tokens)
    torch.testing.assert_close(found, likelihood.log_prob(tokens).where(rows, 0), **CLOSE)
    assert counter.get_total_flops() == 2 * source * output.weight.numel()
