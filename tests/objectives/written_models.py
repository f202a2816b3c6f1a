"""Models and guides of all kinds, without attention."""

import functools
import math

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.distributions import constraints

DATA = torch.tensor([[1.0, -0.5, 2.0], [0.3, 0.8, -1.5]])


def normal(name, shape=(), loc=0.2, scale=0.7):
    """A trainable Normal of its own for a site of a guide."""
    return dist.Normal(
        pyro.param(f"{name}_loc", torch.full(shape, loc)),
        pyro.param(f"{name}_scale", torch.full(shape, scale), constraint=constraints.positive),
    )


def one_site():
    z = pyro.sample("z", dist.Normal(0.0, 1.0))
    pyro.sample("x", dist.Normal(z, 1.0), obs=torch.tensor(1.0))


def one_site_guide():
    pyro.sample("z", normal("z"))


def plates():
    a = pyro.sample("a", dist.Normal(0.0, 2.0))
    with pyro.plate("columns", 3, dim=-1):
        b = pyro.sample("b", dist.Normal(a, 1.0))
        with pyro.plate("rows", 2, dim=-2):
            c = pyro.sample("c", dist.Normal(b, 1.0))
            pyro.sample("x", dist.Normal(c, 0.5), obs=DATA)


def plates_guide():
    pyro.sample("a", normal("a"))
    with pyro.plate("columns", 3, dim=-1):
        pyro.sample("b", normal("b", (3,)))
        with pyro.plate("rows", 2, dim=-2):
            pyro.sample("c", normal("c", (2, 3)))


def subsampled():
    a = pyro.sample("a", dist.Normal(0.0, 2.0))
    with pyro.plate("data", 3, subsample_size=2) as index:
        z = pyro.sample("z", dist.Normal(a, 1.0))
        pyro.sample("x", dist.Normal(z, 0.5), obs=DATA[0, index])


def subsampled_guide():
    pyro.sample("a", normal("a"))
    loc = pyro.param("loc", torch.zeros(3))
    with pyro.plate("data", 3, subsample_size=2) as index:
        pyro.sample("z", dist.Normal(loc[index], 0.7))


def handlers(mask, scale):
    with pyro.plate("data", 3), poutine.mask(mask=mask), poutine.scale(scale=scale):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("x", dist.Normal(z, 0.5), obs=DATA[0])


def handlers_guide(mask, scale):
    with pyro.plate("data", 3), poutine.mask(mask=mask), poutine.scale(scale=scale):
        pyro.sample("z", normal("z", (3,)))


def masked_distribution(mask):
    z = pyro.sample("z", dist.Normal(torch.zeros(3), 1.0).mask(mask).to_event(1))
    free = pyro.sample("free", dist.Normal(0.0, 1.0).mask(mask if isinstance(mask, bool) else True))
    pyro.sample("x", dist.Normal(z + free, 0.5).mask(mask).to_event(1), obs=DATA[0])
    pyro.sample("y", dist.Normal(free, 0.5), obs=torch.tensor(0.3))


def masked_distribution_guide(mask):
    pyro.sample("z", normal("z", (3,)).mask(mask).to_event(1))
    pyro.sample("free", normal("free").mask(mask if isinstance(mask, bool) else True))


def events():
    z = pyro.sample("z", dist.Normal(torch.zeros(2, 3), 1.0).to_event(2))
    with pyro.plate("data", 2):
        s = pyro.sample("s", dist.Gamma(2.0, 3.0))
        pyro.sample("x", dist.Normal(z, 1 + s[:, None]).to_event(1), obs=DATA)


def events_guide():
    pyro.sample("z", normal("z", (2, 3)).to_event(2))
    rate = pyro.param("rate", torch.ones(2), constraint=constraints.positive)
    with pyro.plate("data", 2):
        pyro.sample("s", dist.Gamma(3.0, rate))


def auxiliary_guide():
    """The guide of ``one_site`` with an auxiliary site of its own."""
    u = pyro.sample("u", normal("u"), infer={"is_auxiliary": True})
    pyro.sample("z", dist.Delta(2 * u, log_density=torch.tensor(-math.log(2.0))))


WRITTEN = {
    "one_site": (one_site, one_site_guide),
    "nested_plates": (plates, plates_guide),
    "subsampling": (subsampled, subsampled_guide),
    "mask": (
        functools.partial(handlers, torch.tensor([True, False, True]), 1.0),
        functools.partial(handlers_guide, torch.tensor([True, False, True]), 1.0),
    ),
    "mask_true": (functools.partial(handlers, True, 1.0), functools.partial(handlers_guide, True, 1.0)),
    "scale": (functools.partial(handlers, True, 0.3), functools.partial(handlers_guide, True, 0.3)),
    "masked_false": tuple(functools.partial(f, False) for f in (masked_distribution, masked_distribution_guide)),
    "masked_true": tuple(functools.partial(f, True) for f in (masked_distribution, masked_distribution_guide)),
    "masked_tensor": tuple(
        functools.partial(f, torch.tensor([False, True, True]))
        for f in (masked_distribution, masked_distribution_guide)
    ),
    "events": (events, events_guide),
    "auxiliary": (one_site, auxiliary_guide),
}


MODELS = {"one_site": one_site, "nested_plates": plates, "subsampling": subsampled, "constrained": events}


# The events of the other models have no place for a plate of particles.
VECTORIZED = ("one_site", "nested_plates", "subsampling", "mask", "mask_true", "scale", "auxiliary")
