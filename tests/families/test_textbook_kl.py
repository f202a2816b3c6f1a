"""The KL of torch's own distributions, against quadrature, and under a stock ELBO."""

import itertools
import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import TraceMeanField_ELBO

import pyro_attention  # noqa: F401  # importing it registers the KL
from tests.quadrature import reference_kl

SPREADS = (0.7, 5.0)


def posterior(family, spread, log_mean, make=torch.distributions):
    spread, log_mean = (torch.tensor(number, dtype=torch.float64) for number in (spread, log_mean))
    if family == "weibull":
        return make.Weibull((log_mean - torch.lgamma(1 + 1 / spread)).exp(), spread)
    if family == "lognormal":
        return make.LogNormal(log_mean - spread**2 / 2, spread)
    return make.Gamma(spread, spread * (-log_mean).exp())


def prior(family, first, second, make=torch.distributions):
    first, second = (torch.tensor(number, dtype=torch.float64) for number in (first, second))
    return (make.Gamma if family == "gamma" else make.LogNormal)(first, second)


PAIRS = list(itertools.product(("weibull", "lognormal", "gamma"), ("gamma", "lognormal")))


@pytest.mark.parametrize(("q", "p"), PAIRS)
def test_it_is_that_of_quadrature(q, p):
    for spread, log_mean, (first, second) in itertools.product(SPREADS, (-1.3, 0.8), ((0.4, 0.9), (2.5, 1.7))):
        found = torch.distributions.kl_divergence(posterior(q, spread, log_mean), prior(p, first, second))
        assert found.item() == pytest.approx(reference_kl((q, spread, log_mean), (p, first, second)), rel=1e-8)


@pytest.mark.parametrize(("q", "p"), PAIRS)
def test_a_plain_program_has_the_closed_form_under_a_stock_elbo(q, p):
    """Without a likelihood the loss is the KL, whatever is drawn; masks, events and plates are Pyro's."""
    mask = torch.tensor([[True, True, False], [True, False, True]])
    kl = reference_kl((q, 5.0, -1.3), (p, 2.5, 1.7))

    def sample(distribution):
        with pyro.plate("rows", 2):
            pyro.sample("weights", distribution.expand([2, 3]).mask(mask).to_event(1))

    loss = TraceMeanField_ELBO().loss(
        lambda: sample(prior(p, 2.5, 1.7, dist)), lambda: sample(posterior(q, 5.0, -1.3, dist))
    )
    assert math.isclose(loss, 4 * kl, rel_tol=1e-8)


@pytest.mark.parametrize(("q", "p"), PAIRS)
def test_it_trains(q, p):
    free = torch.tensor([1.5, 0.3], dtype=torch.float64, requires_grad=True)

    def kl(parameters):
        first = {"weibull": dist.Weibull, "lognormal": dist.LogNormal, "gamma": dist.Gamma}[q](*parameters)
        return torch.distributions.kl_divergence(first, prior(p, 2.5, 1.7))

    assert torch.autograd.gradcheck(kl, free)
