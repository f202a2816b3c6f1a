"""Exact inference beside the guide: what Hamiltonian Monte Carlo samples, and how far the guide is from it."""

import pyro
import pytest
import torch
from pyro.distributions import Normal
from pyro.infer import MCMC, NUTS
from scipy import stats
from torch import nn

from pyro_attention import AttentionGuide, Dense, FixedGammaPrior, LatentAttention, Weibull, sample_posterior
from pyro_attention.families.dirichlet import DirichletPrior
from pyro_attention.families.gaussian import FixedGaussianPrior
from pyro_attention.families.lognormal import FixedLogNormalPrior


class OneQuery(nn.Module):
    """One query with keys of values 0 and 1, all the same to the scores; only y says which it attends to."""

    def __init__(self, prior, layout=None, keys=2):
        super().__init__()
        self.attention, self.layout = LatentAttention("attention", prior), layout
        self.values = torch.arange(float(keys)).view(1, keys, 1)

    def forward(self, y):
        output = self.attention(torch.zeros(1, 1, len(self.values[0])), self.values, layout=self.layout)
        pyro.sample("y", Normal(output.context.squeeze(), 0.2), obs=y)
        return output.weights


def run_nuts(model, *args, num_samples, warmup_steps):
    torch.manual_seed(0)
    mcmc = MCMC(NUTS(model), num_samples=num_samples, warmup_steps=warmup_steps, disable_progbar=True)
    mcmc.run(*args)
    return mcmc


@pytest.mark.slow
def test_the_guide_is_not_the_exact_posterior():
    """Weights of two keys whose log S are independent normal: quadrature over their difference."""
    model, y = OneQuery(FixedLogNormalPrior()), torch.tensor(1.0)
    difference = torch.linspace(-12, 12, 4001, dtype=torch.float64)
    weight = difference.sigmoid()  # of the key with value 1
    log_density = Normal(0.0, 2**0.5).log_prob(difference) + Normal(weight, 0.2).log_prob(y)
    exact = (weight * log_density.softmax(0)).sum().item()

    mcmc = run_nuts(model, y, num_samples=300, warmup_steps=100)
    draws = model.attention.normalizer(mcmc.get_samples()["attention"], Dense())[:, 0, 0, 1].double()
    size = mcmc.diagnostics()["attention"]["n_eff"].min().item()
    assert abs(draws.mean() - exact) < 4 * draws.std() / min(size, len(draws)) ** 0.5

    guide = AttentionGuide(model, Weibull(2.0))
    by_guide = sample_posterior(guide, y, num_samples=2000, seed=0)["attention"][:, 0, 0, 1]
    assert abs(by_guide.mean() - 0.5) < 4 * by_guide.std() / len(by_guide) ** 0.5  # it has not seen y
    assert exact > 0.7


@pytest.mark.slow
@pytest.mark.parametrize("prior", [FixedGammaPrior, FixedLogNormalPrior, FixedGaussianPrior])
def test_masked_entries_do_not_drift(prior):
    """Under a flat density they would wander off without end."""
    layout = Dense(torch.tensor([True, True, False, False]))
    model = OneQuery(prior(), layout, keys=4)
    draws = run_nuts(model, torch.tensor(0.5), num_samples=150, warmup_steps=50).get_samples()["attention"]
    hidden = draws[:, 0, 0, 2:].flatten()
    assert hidden.abs().max() < 6
    assert stats.kstest(hidden.numpy()[::3], "norm").pvalue > 1e-3


def test_a_dirichlet_site_is_refused():
    """Its values lie on the simplex, onto which nothing maps; a density over all real numbers would be improper."""
    with pytest.raises(NotImplementedError, match="LogSimplex"):
        run_nuts(OneQuery(DirichletPrior()), torch.tensor(0.5), num_samples=1, warmup_steps=1)
