"""The project's card, as it was asked for: a model with ``pyro.sample`` sites, a guide a family, stock SVI and ELBOs.

A model is a plain function. A guide is a plain function of ``guides/``. Another guide is another line. Nothing but Pyro
trains them, and their alignments are drawn as a picture.
"""

from functools import partial

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Predictive, TraceEnum_ELBO, TraceMeanField_ELBO
from torch import nn
from torch.nn.functional import one_hot

import guides.plain as guides
from pyro_attention.plots import intervals

ITEMS, KEYS, WIDTH, NOISE = 200, 4, 3, 0.1


class Network(nn.Module):
    """Scores of the keys: all that the model and its guides share."""

    def __init__(self):
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)

    def scores(self, x, keys):
        return (keys @ self.query(x).unsqueeze(-1)).squeeze(-1)


# The models, p(y, attention | x): they name no guide and no family.


def soft_weights(network, x, keys, values, y=None):
    """Positive numbers, divided by their sum (Bayesian Attention Modules)."""
    pyro.module("network", network)
    with pyro.plate("data", len(x)):
        positive = pyro.sample("attention", dist.Gamma(1.0, 1.0).expand([len(x), KEYS]).to_event(1))
        weights = positive / positive.sum(-1, keepdim=True)
        return pyro.sample("y", dist.Normal((weights * values).sum(-1), NOISE), obs=y)


def relaxed_alignment(network, x, keys, values, y=None):
    """A point on the simplex (Latent Alignment and Variational Attention, relaxed)."""
    pyro.module("network", network)
    with pyro.plate("data", len(x)):
        weights = pyro.sample("attention", dist.Dirichlet(network.scores(x, keys).exp()))
        return pyro.sample("y", dist.Normal((weights * values).sum(-1), NOISE), obs=y)


def hard_alignment(network, x, keys, values, y=None):
    """One key (Latent Alignment and Variational Attention, categorical)."""
    pyro.module("network", network)
    with pyro.plate("data", len(x)):
        key = pyro.sample("attention", dist.Categorical(logits=network.scores(x, keys)))
        weights = one_hot(key, KEYS).to(values.dtype)
        return pyro.sample("y", dist.Normal((weights * values).sum(-1), NOISE), obs=y)


# The card: each line is a swap.

CARD = {
    "weibull": (soft_weights, guides.weibull, TraceMeanField_ELBO),
    "lognormal": (soft_weights, guides.lognormal, TraceMeanField_ELBO),
    "dirichlet": (relaxed_alignment, guides.dirichlet, TraceMeanField_ELBO),
    "categorical": (hard_alignment, guides.categorical, TraceEnum_ELBO),
}


def make_data():
    """Items that read the value of the key that is nearest to them."""
    torch.manual_seed(0)
    x, keys, values = torch.randn(ITEMS, WIDTH), torch.randn(ITEMS, KEYS, WIDTH), torch.randn(ITEMS, KEYS)
    nearest = (keys @ x.unsqueeze(-1)).squeeze(-1).argmax(-1)
    y = values.gather(1, nearest.unsqueeze(1)).squeeze(1) + NOISE * torch.randn(ITEMS)
    return (x, keys, values, y), nearest


@pytest.fixture(autouse=True)
def fresh():
    pyro.clear_param_store()
    pyro.set_rng_seed(0)


def trained(name, steps=100):
    model, guide, objective = CARD[name]
    data, _ = make_data()
    network = Network()
    model, guide = partial(model, network), partial(guide, network)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), loss=objective(max_plate_nesting=1))
    return model, guide, [svi.step(*data) for _ in range(steps)]


def as_weights(name, attention):
    """Weights ``[S, B, N]`` of values of the site."""
    if name == "categorical":
        return one_hot(attention, KEYS).float()
    return attention / attention.sum(-1, keepdim=True)


@pytest.mark.parametrize("name", CARD)
def test_it_trains_and_its_alignments_find_the_key_that_was_read(name):
    model, guide, losses = trained(name)
    assert losses[-1] < 0.7 * losses[0]
    (x, keys, values, _), nearest = make_data()
    # posterior predictive: y is not known
    draws = Predictive(model, guide=guide, num_samples=100)(x, keys, values)
    weights = as_weights(name, draws["attention"].detach())
    assert weights.shape == (100, ITEMS, KEYS)
    assert draws["y"].shape == (100, ITEMS)
    assert (weights.mean(0).argmax(-1) == nearest).double().mean() > 0.6  # a quarter by chance


@pytest.mark.parametrize("name", CARD)
def test_the_loss_is_what_the_papers_write(name):
    r"""One draw of :math:`\log p(y \mid W)`, less the closed-form KL; for a key, the sum over all keys."""
    model, guide, objective = CARD[name]
    data, _ = make_data()
    _, _, values, y = data
    network = Network()
    model, guide = partial(model, network), partial(guide, network)
    pyro.set_rng_seed(7)
    loss = objective(max_plate_nesting=1).loss(model, guide, *data)
    pyro.set_rng_seed(7)
    q = poutine.trace(guide).get_trace(*data).nodes["attention"]
    with torch.no_grad():
        prior = poutine.trace(model).get_trace(*data).nodes["attention"]["fn"]
        if name == "categorical":
            log_f = dist.Normal(values, NOISE).log_prob(y.unsqueeze(-1))
            log_q, log_p = q["fn"].logits, prior.logits
            expected = -(log_q.exp() * (log_f + log_p - log_q)).sum()
        else:
            weights = as_weights(name, q["value"])
            log_f = dist.Normal((weights * values).sum(-1), NOISE).log_prob(y)
            expected = -(log_f - torch.distributions.kl_divergence(q["fn"], prior)).sum()
    assert loss == pytest.approx(expected.item(), rel=1e-5)


def test_the_guide_is_all_that_a_swap_changes():
    """Two lines of the card have the same parameters but those of the guide."""
    parameters = {}
    for name in ("weibull", "lognormal"):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        trained(name, steps=3)
        parameters[name] = set(pyro.get_param_store().keys())
    assert parameters["weibull"] - parameters["lognormal"] == {"concentration"}
    assert parameters["lognormal"] - parameters["weibull"] == {"scale"}
    assert "network$$$query.weight" in parameters["weibull"] & parameters["lognormal"]


def test_the_alignments_are_drawn_as_a_picture(tmp_path):
    """A row of bars a guide: the weights with which the first item would read its keys."""
    (x, keys, values, _), _ = make_data()
    figure, panels = plt.subplots(1, len(CARD), figsize=(10, 2.5), sharey=True)
    labels = [f"{value:.1f}" for value in values[0].tolist()]
    for axes, name in zip(panels, CARD, strict=True):
        pyro.clear_param_store()
        model, guide, _ = trained(name)
        draws = Predictive(model, guide=guide, num_samples=100)(x[:1], keys[:1], values[:1])["attention"]
        weights = as_weights(name, draws.detach())[:, 0]
        intervals(weights, labels, axes=axes)
        axes.set_title(name)
        heights = torch.tensor([bar.get_height() for bar in axes.patches], dtype=weights.dtype)
        torch.testing.assert_close(heights, weights.mean(0), rtol=1e-4, atol=1e-6)
    figure.savefig(tmp_path / "alignments.png")
    plt.close(figure)
    assert plt.imread(tmp_path / "alignments.png").std() > 0.05  # something is drawn
