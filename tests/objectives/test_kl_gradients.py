"""Both estimators of the KL have the same expected gradient: by scores, keys and the family's own parameter."""

import functools

import pytest
import torch

from pyro_attention import (
    AttentionELBO,
    AttentionGuide,
    ContextualGammaPrior,
    ContextualLogNormalPrior,
    Gamma,
    LogNormal,
    Softmax,
    Weibull,
)
from pyro_attention.families.gaussian import ContextualGaussianPrior, Gaussian
from tests.helpers import DenseForm, Problem, Regression, assert_mean

DRAWS = 4000
PAIRS = {
    "weibull-gamma": (lambda spread: Weibull(1 / spread, learnable=True), ContextualGammaPrior),
    "weibull-lognormal": (lambda spread: Weibull(1 / spread, learnable=True), ContextualLogNormalPrior),
    "lognormal-lognormal": (lambda spread: LogNormal(spread, learnable=True), ContextualLogNormalPrior),
    "gamma-gamma": (lambda spread: Gamma(1 / spread, learnable=True), ContextualGammaPrior),
    "gaussian-gaussian": (lambda spread: Gaussian(spread, learnable=True), ContextualGaussianPrior),
}


def gradients(kl, pair):
    """Gradients of the loss, ``[draws, coordinates]``: the heads are independent draws at equal parameters.

    Raw scores, so that nothing cancels in their sum; keys reach the loss through the values too.
    """
    make_family, make_prior = PAIRS[pair]
    torch.manual_seed(0)
    one = Problem.random(heads=1, width=2)
    scores, values, targets = (part.detach().repeat(DRAWS, 1, 1) for part in (one.scores, one.values, one.targets))
    problem = Problem(scores.requires_grad_(), values.requires_grad_(), targets, one.mask)
    family = make_family(torch.full((DRAWS,), 0.4))
    model = Regression(DenseForm(), make_prior(2, 1), Softmax(), normalize_scores=False)
    torch.manual_seed(1)
    loss = AttentionELBO(kl=kl).differentiable_loss(model, AttentionGuide(model, family), problem)
    parts = torch.autograd.grad(loss, [problem.scores, problem.values, family.log_value])
    return torch.cat([part.reshape(DRAWS, -1) for part in parts], 1)


@functools.cache
def both(pair):
    """By both estimators with the same draws, in the coordinates where they differ."""
    closed, sampled = (gradients(kl, pair) for kl in ("closed_form", "sampled"))
    varies = (sampled - closed).std(0) > 1e-4
    torch.testing.assert_close(sampled[:, ~varies], closed[:, ~varies], atol=1e-3, rtol=1e-3)
    return closed[:, varies], sampled[:, varies]


@pytest.mark.parametrize("pair", PAIRS)
def test_mean_gradients_agree(pair):
    closed, sampled = both(pair)
    assert closed.size(1) > 10
    assert_mean(sampled - closed, 0.0, errors=4.5)  # a maximum over many coordinates


@pytest.mark.parametrize("pair", PAIRS)
def test_a_wrong_estimator_would_be_noticed(pair):
    """One that is a tenth too large."""
    closed, sampled = both(pair)
    with pytest.raises(AssertionError, match="standard errors"):
        assert_mean(1.1 * sampled - closed, 0.0, errors=4.5)


@pytest.mark.parametrize("pair", PAIRS)
def test_the_sampled_one_is_noisier(pair):
    closed, sampled = both(pair)
    assert sampled.var(0).sum() > closed.var(0).sum()
