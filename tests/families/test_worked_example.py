"""A new posterior family, complete in one file, passes the contract that the library's own families keep."""

import importlib
import sys

import pytest
import torch
from torch.distributions import kl_divergence

from pyro_attention import AttentionCall, Dense, FixedGammaPrior
from pyro_attention.families.base import FAMILIES
from tests.families.test_contract import AttentionContract, KindContract
from tests.helpers import FAMILY_ARGUMENTS, POSITIVE_PRIORS, EdgesForm, assert_mean, log_mean

EXAMPLE, NAME = "tests.families.inverse_gamma", "inverse_gamma"


@pytest.fixture(autouse=True)
def example(monkeypatch):
    """The example's module, imported for this test alone: the registry forgets the family after it."""
    monkeypatch.delitem(sys.modules, EXAMPLE, raising=False)
    monkeypatch.setitem(FAMILY_ARGUMENTS, NAME, lambda k: {"concentration": k})  # the row of the contract table
    return importlib.import_module(EXAMPLE)


class TestDense(AttentionContract):
    cases = tuple((NAME, prior, "softmax") for prior in POSITIVE_PRIORS)


class TestEdges(AttentionContract):
    form = EdgesForm()
    cases = ((NAME, "gamma_contextual", "softmax"), (NAME, "gamma_contextual", "hybrid"))


class TestKinds(KindContract):
    pairs = ((NAME, "gamma_contextual"),)


def test_it_is_found_by_its_name(example):
    assert FAMILIES[NAME] is example.InverseGamma
    assert repr(FAMILIES[NAME](2.0)) == "InverseGamma(concentration=2.0)"


def test_moments(example):
    shape_a, log_scale = torch.tensor(3.0).expand(1, 1, 1), torch.tensor(0.5)
    q = example.InverseGammaWeights(shape_a, log_scale)
    draws = q.rsample((100_000,)).flatten()
    assert_mean(draws, q.mean.item())
    assert_mean(draws.exp(), log_mean(q).exp().item())
    assert_mean((draws - q.mean.item()).square(), q.variance.item())
    assert_mean(-q.log_prob(draws.view(-1, 1, 1, 1)), q.entropy().item())
    p = FixedGammaPrior()(AttentionCall(scores=torch.zeros(1, 1, 1), layout=Dense()))
    assert_mean(q.log_prob(draws.view(-1, 1, 1, 1)) - p.log_prob(draws.view(-1, 1, 1, 1)), kl_divergence(q, p).item())
