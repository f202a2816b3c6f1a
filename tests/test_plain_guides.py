"""Guides that are plain Pyro functions, under stock SVI, are what the library's families and objectives are."""

import copy
from functools import partial

import matplotlib.pyplot as plt
import pyro
import pytest
import torch
from pyro.distributions import Dirichlet as TorchDirichlet
from pyro.distributions import Normal
from pyro.infer import SVI, Predictive
from torch import nn

import pyro_attention as pa
from guides.plain import PLAIN_SCHEMES
from models.attention_regression import AttentionRegression
from pyro_attention.families import weibull as weibull_module
from pyro_attention.families.dirichlet import DirichletPrior, DirichletWeights
from pyro_attention.plots import intervals

ITEMS, KEYS, WIDTH = 6, 4, 3


def make_data(items=ITEMS):
    """Items that read the value of the key that is nearest to them, with noise."""
    generator = torch.Generator().manual_seed(0)
    x, keys = (torch.randn(*shape, generator=generator) for shape in ((items, WIDTH), (items, KEYS, WIDTH)))
    values = torch.randn(items, KEYS, generator=generator)
    relevant = (keys @ x.unsqueeze(-1)).squeeze(-1).argmax(-1)
    y = values.gather(1, relevant.unsqueeze(1)).squeeze(1) + 0.1 * torch.randn(items, generator=generator)
    return (x, keys, values, y), relevant


DATA, _ = make_data()


class Informed(nn.Module):
    """The inference network of guides/plain.py as a module, for Amortized."""

    def __init__(self, plain):
        super().__init__()
        self.log_closeness = nn.Parameter(torch.tensor(0.5).log())
        self.plain = [plain]  # which the model holds

    def forward(self, x, keys, values, y):
        near = self.log_closeness.exp() * (y.unsqueeze(-1) - values).square()
        return (self.plain[0].scores(x, keys) - near).unsqueeze(-2)


def of_the_library(name, plain):
    """The same model, guide and objective from the library, and the guide's own parameter."""
    prior = {"dirichlet": DirichletPrior, "categorical": pa.AlignmentPrior}.get(name, pa.FixedGammaPrior)()
    attention = pa.LatentAttention("attention", prior)

    def model(x, keys, values, y):
        pyro.module("attention_regression", plain)
        with pyro.plate("data", len(x)):
            scores = plain.scores(x, keys).unsqueeze(-2)
            output = attention(scores, values.unsqueeze(-2).unsqueeze(-1), layout=pa.Dense(event_dim=2))
            pyro.sample("y", Normal(output.context.squeeze(-1).squeeze(-1), plain.log_noise.exp()), obs=y)

    family = {
        "weibull": lambda: pa.Weibull(10.0, learnable=True),
        "lognormal": lambda: pa.LogNormal(0.5, learnable=True),
        "dirichlet": lambda: pa.Amortized(Informed(plain), pa.Dirichlet()),
        "categorical": lambda: pa.Amortized(Informed(plain), pa.Categorical()),
    }[name]()
    guide = pa.AttentionGuide(model, family)
    (parameter,) = family.parameters()
    return model, guide, pa.elbo_for(guide, max_plate_nesting=1), lambda: parameter


def of_stock_pyro(name, plain):
    scheme = PLAIN_SCHEMES[name]
    objective = scheme.objective(max_plate_nesting=1)
    parameter = {"weibull": "concentration", "lognormal": "scale"}.get(name, "closeness")
    return plain, partial(scheme.guide, plain), objective, lambda: pyro.param(parameter).unconstrained()


def torch_draws(monkeypatch):
    """Draw as torch does; the library has samplers of its own, which take other numbers of the generator."""
    monkeypatch.setattr(
        weibull_module,
        "log_exponential",
        lambda shape, *, dtype, device: torch.empty(shape, dtype=dtype, device=device).exponential_().log(),
    )
    monkeypatch.setattr(
        DirichletWeights, "draw", lambda self, shape: TorchDirichlet(self.concentration.expand(shape)).rsample().log()
    )


@pytest.mark.parametrize("name", PLAIN_SCHEMES)
def test_a_plain_guide_under_stock_svi_is_the_scheme_of_the_library(name, monkeypatch):
    """The loss and the parameters after three steps of SGD, of which each takes the gradient of the one before."""
    torch_draws(monkeypatch)
    first, losses, after = AttentionRegression(WIDTH, PLAIN_SCHEMES[name].latent), [], []
    for make in (of_stock_pyro, of_the_library):
        pyro.clear_param_store()
        plain = copy.deepcopy(first)
        model, guide, objective, parameter = make(name, plain)
        svi = SVI(model, guide, pyro.optim.SGD({"lr": 0.02}), objective)
        pyro.set_rng_seed(1)
        losses.append([svi.step(*DATA) for _ in range(3)])
        after.append([plain.query.weight, plain.log_noise, parameter()])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    torch.testing.assert_close(after[0], after[1], rtol=2e-4, atol=1e-5)
    assert not torch.equal(after[0][0], first.query.weight)
    assert losses[0][0] != losses[0][1]


def test_the_plain_sum_over_keys_reaches_the_evidence():
    r"""At closeness :math:`1 / (2 \sigma^2)` the categorical guide is the exact posterior."""
    model, scheme = AttentionRegression(WIDTH, "index", noise=0.7), PLAIN_SCHEMES["categorical"]
    pyro.param("closeness", torch.tensor(1 / (2 * 0.7**2)), constraint=pyro.distributions.constraints.positive)
    loss = scheme.objective(max_plate_nesting=1).loss(model, partial(scheme.guide, model), *DATA)
    x, keys, values, y = DATA
    joint = model.scores(x, keys).log_softmax(-1) + Normal(values, 0.7).log_prob(y.unsqueeze(-1))
    assert loss == pytest.approx(-joint.logsumexp(-1).sum().item(), rel=1e-5)


@pytest.mark.parametrize("name", PLAIN_SCHEMES)
def test_a_plain_guide_trains_and_its_alignments_are_drawn(name, tmp_path):
    """One line is another in each case; the picture shows the posterior predictive weights of one item."""
    scheme = PLAIN_SCHEMES[name]
    data, relevant = make_data(200)
    pyro.set_rng_seed(0)
    model = AttentionRegression(WIDTH, scheme.latent, noise=0.1)
    guide = partial(scheme.guide, model)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), scheme.objective(max_plate_nesting=1))
    losses = [svi.step(*data) for _ in range(100)]
    assert losses[-1] < losses[0]
    x, keys, values, _ = data
    draws = Predictive(model, guide=guide, num_samples=100, return_sites=["attention"])(x, keys, values)["attention"]
    weights = model.weights(draws, KEYS)
    assert weights.shape == (100, 200, KEYS)
    torch.testing.assert_close(weights.sum(-1), torch.ones(100, 200))
    assert (weights.mean(0).argmax(-1) == relevant).double().mean() > 0.5  # a quarter by chance
    axes = intervals(weights[:, 0].detach(), [f"{value:.1f}" for value in values[0].tolist()])
    assert len(axes.patches) == KEYS
    assert axes.patches[int(weights[:, 0].mean(0).argmax())].get_height() > 1 / KEYS
    axes.figure.savefig(tmp_path / "alignments.png")
    assert (tmp_path / "alignments.png").stat().st_size > 1000
    plt.close(axes.figure)


def test_an_unknown_latent_is_refused():
    with pytest.raises(ValueError, match="latent is 'keys', expected one of positive, simplex, index"):
        AttentionRegression(2, "keys")
