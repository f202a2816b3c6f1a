"""Contextual priors as the paper prints them, alpha = Psi and mu = Psi, beside those of its released code."""

import math

import pytest
import torch
from torch.distributions import Gamma, LogNormal, kl_divergence

from guides.schemes import build_scheme
from pyro_attention import AttentionGuide, ContextualGammaPrior, LatentAttention, Weibull
from pyro_attention import LogNormal as LogNormalFamily
from pyro_attention.families.key_network import KeyNetwork
from pyro_attention.families.lognormal import ContextualLogNormalPrior
from tests.helpers import log_mean, posterior_and_prior
from tests.quadrature import reference_kl

SCORES, KEYS = (
    torch.tensor([[[0.3, -1.0, 0.8]]]).log_softmax(-1),
    torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(0)),
)


def distributions(prior, family):
    attention = LatentAttention("attention", prior)
    guide = AttentionGuide(lambda scores, keys: attention(scores, keys, keys=keys).context, family)
    return posterior_and_prior(guide, SCORES, KEYS)


def psi(prior):
    """The network's weights of the keys, by the prior of the code with rate 1, whose mean they are."""
    plain = ContextualGammaPrior(4)
    plain.network.load_state_dict(prior.network.state_dict())
    return log_mean(distributions(plain, Weibull(3.0))[1]).exp().flatten().detach()


def test_gamma_has_the_shape_psi_and_the_rate():
    prior = ContextualGammaPrior(4, rate=2.5, as_printed=True)
    q, p = distributions(prior, Weibull(3.0))
    weights = psi(prior)
    assert weights.sum().item() == pytest.approx(1, abs=1e-6)
    value = torch.randn(5, 1, 1, 3)
    reference = Gamma(weights, 2.5)
    torch.testing.assert_close(p.log_prob(value).flatten(), (reference.log_prob(value.exp()) + value).sum(-1).flatten())
    expected = sum(
        reference_kl(("weibull", 3.0, score), ("gamma", shape, 2.5))
        for score, shape in zip(SCORES.flatten().tolist(), weights.tolist(), strict=True)
    )
    assert kl_divergence(q, p).item() == pytest.approx(expected, rel=1e-5)


def test_lognormal_has_the_location_psi():
    prior = ContextualLogNormalPrior(4, scale=0.7, as_printed=True)
    q, p = distributions(prior, LogNormalFamily(0.2))
    weights = psi(prior)
    reference, posterior = LogNormal(weights, 0.7), LogNormal(SCORES.flatten() - 0.02, 0.2)
    assert kl_divergence(q, p).item() == pytest.approx(kl_divergence(posterior, reference).sum().item(), rel=1e-5)


@pytest.mark.parametrize("guide", ["weibull", "gamma", "lognormal"])
def test_schemes_have_them_by_name(guide):
    made = {name: build_scheme(guide, prior=name).prior(4, 1) for name in ("contextual", "contextual_as_printed")}
    assert {name: prior.as_printed for name, prior in made.items()} == {
        "contextual": False, "contextual_as_printed": True,
    }  # fmt: skip
    assert repr(made["contextual_as_printed"]) != repr(made["contextual"])


def test_gaussian_weights_have_none():
    with pytest.raises(ValueError, match="contextual_as_printed, which the paper has for weibull, lognormal and gamma"):
        build_scheme("gaussian", prior="contextual_as_printed")
    assert build_scheme("gaussian", prior="contextual").prior(4, 1) is not None


@pytest.mark.parametrize(("key_dim", "hidden_dim"), [(20, 500), (500, 20)])
def test_the_network_of_keys_starts_with_he_normal_weights(key_dim, hidden_dim):
    """Standard deviation sqrt(2 / inputs); that of n normal numbers is known to 1 / sqrt(2 n) of itself."""
    network = KeyNetwork(key_dim, 4, hidden_dim=hidden_dim)
    for weight, inputs in ((network.hidden_weight, key_dim), (network.output_weight, hidden_dim)):
        error = 1 / math.sqrt(2 * weight.numel())
        assert weight.std().item() == pytest.approx(math.sqrt(2 / inputs), rel=min(4 * error, 0.2))
    assert not network.hidden_bias.any()
