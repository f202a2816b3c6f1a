"""A model with latent sites beside attention, and guides of every kind for them."""

import functools

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.distributions import constraints
from pyro.infer.autoguide import AutoDelta, AutoDiagonalNormal, AutoGuideList, AutoNormal
from pyro.nn import PyroModule

from tests.toy_models import SelfAttention


class Shifted(PyroModule):
    """Self-attention whose output has a global shift, a global noise scale and one effect for each sequence."""

    def __init__(self, size=6, subsample=None):
        super().__init__()
        self.network, self.size, self.subsample, self.calls = SelfAttention(layers=1), size, subsample, 0

    def forward(self, x, y=None):
        self.calls += 1
        layer = self.network.layers[0]
        shift = pyro.sample("shift", dist.Normal(0.0, 2.0))
        noise = pyro.sample("noise", dist.HalfNormal(1.0))
        with pyro.plate("sequences", self.size, subsample_size=self.subsample) as index:
            effect = pyro.sample("effect", dist.Normal(shift, 0.5))
            x = x[index]
            mean = self.network.out(layer(x, x, x)[0].mean(-2)).squeeze(-1) + effect
            pyro.sample("y", dist.Normal(mean, 0.1 + noise), obs=None if y is None else y[index])
        return mean


OTHERS = ["effect", "noise", "shift"]


def autoguide_list(model):
    guide = AutoGuideList(model)
    guide.append(AutoDiagonalNormal(poutine.block(model, expose=["shift", "noise"])))
    guide.append(AutoNormal(poutine.block(model, expose=["effect"])))
    return guide


def written(x, y=None):
    scale = pyro.param("scale", torch.tensor(0.3), constraint=constraints.positive)
    shift = pyro.sample("shift", dist.Normal(pyro.param("loc", torch.tensor(0.1)), scale))
    rate = pyro.param("rate", torch.tensor(2.0), constraint=constraints.positive)
    pyro.sample("noise", dist.Delta(rate, log_density=torch.tensor(0.0)))
    with pyro.plate("sequences", 6):
        pyro.sample("effect", dist.Normal(pyro.param("effects", torch.zeros(6)) + shift, scale))


RESTS = {
    "AutoNormal": lambda model: AutoNormal,
    "AutoDelta": lambda model: AutoDelta,
    "AutoDiagonalNormal": lambda model: AutoDiagonalNormal,
    "partial": lambda model: functools.partial(AutoNormal, init_scale=0.5),
    "AutoGuideList": autoguide_list,
    "written": lambda model: written,
}


every_rest = pytest.mark.parametrize("rest", RESTS)


def value_and_gradients(elbo, model, guide, arguments):
    torch.manual_seed(3)
    with poutine.trace(param_only=True) as tracer:
        loss = elbo.differentiable_loss(model, guide, *arguments)
    params = {name.split(".", 1)[-1]: s["value"].unconstrained() for name, s in tracer.trace.nodes.items()}
    found = torch.autograd.grad(loss, list(params.values()), allow_unused=True, materialize_grads=True)
    return loss, dict(zip(params, found, strict=True))
