"""AttentionELBO on models and guides of all kinds, without attention: it equals stock Pyro, draw for draw."""

import functools
import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.distributions import constraints
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoDelta, AutoMultivariateNormal, AutoNormal

from pyro_attention import AttentionELBO

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


def with_arguments(model, guide, *arguments):
    return functools.partial(model, *arguments), functools.partial(guide, *arguments)


SOME = torch.tensor([True, False, True])
WRITTEN = {
    "one_site": (one_site, one_site_guide),
    "nested_plates": (plates, plates_guide),
    "subsampling": (subsampled, subsampled_guide),
    "mask": with_arguments(handlers, handlers_guide, SOME, 1.0),
    "scale": with_arguments(handlers, handlers_guide, True, 0.3),
    "masked_false": with_arguments(masked_distribution, masked_distribution_guide, False),
    "masked_tensor": with_arguments(masked_distribution, masked_distribution_guide, SOME),
    "events": (events, events_guide),
    "auxiliary": (one_site, auxiliary_guide),
}
# the events of the other models have no place for a plate of particles
VECTORIZED = ("nested_plates", "subsampling", "mask", "scale", "auxiliary")
PARTICLES = {
    "looped": {"num_particles": 3},
    "vectorized": {"num_particles": 3, "vectorize_particles": True, "max_plate_nesting": 2},
}


def value_and_gradients(elbo, model, guide, seed=1):
    """Loss and the gradient of every param site; first calls of an autoguide make its parameters."""
    pyro.set_rng_seed(0)
    pyro.clear_param_store()
    guide()
    pyro.set_rng_seed(seed)
    with poutine.trace(param_only=True) as tracer:
        loss = elbo.differentiable_loss(model, guide)
    params = {name: site["value"].unconstrained() for name, site in tracer.trace.nodes.items()}
    found = torch.autograd.grad(loss, list(params.values()), allow_unused=True, materialize_grads=True)
    return loss.detach(), dict(zip(params, found, strict=True))


def assert_equal(model, make_guide, stock, **options):
    mine = value_and_gradients(AttentionELBO(**options), model, make_guide())
    theirs = value_and_gradients(stock(**{k: v for k, v in options.items() if k != "kl"}), model, make_guide())
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    assert any(gradient.abs().max() > 0 for gradient in mine[1].values())


@pytest.mark.parametrize(
    ("case", "particles"),
    [(case, name) for case in WRITTEN for name in PARTICLES if name != "vectorized" or case in VECTORIZED],
)
def test_written_guides(case, particles):
    """Where it is asked for, every KL is the one that Pyro samples."""
    model, guide = WRITTEN[case]
    # stock TraceMeanField_ELBO leaves out the density of a point mass
    stock = Trace_ELBO if case == "auxiliary" else TraceMeanField_ELBO
    assert_equal(model, lambda: guide, stock, **PARTICLES[particles])
    assert_equal(model, lambda: guide, Trace_ELBO, kl="sampled")


@pytest.mark.parametrize("particles", PARTICLES)
@pytest.mark.parametrize(
    ("model", "autoguide"),
    [
        *(
            (model, autoguide)
            for model in (plates, events)
            for autoguide in (AutoNormal, AutoMultivariateNormal, AutoDelta)
        ),
        (subsampled, AutoNormal),  # the joint ones of stock Pyro cannot subsample
    ],
)
def test_autoguides(model, autoguide, particles):
    """Stock TraceMeanField_ELBO leaves out the Jacobian of constrained sites; Trace_ELBO has it."""
    if model is events and particles == "vectorized":
        particles = "looped"
    assert_equal(model, lambda: autoguide(model), Trace_ELBO, **PARTICLES[particles])


def correlated(first, second):
    """Two sites, drawn in an order that may be the model's or not; the second depends on the first."""

    def guide():
        value = pyro.sample(first, normal(first))
        weight = pyro.param("weight", torch.tensor(0.5))
        pyro.sample(second, dist.Normal(weight * value, 1.0))

    return guide


def chain():
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    b = pyro.sample("b", dist.Normal(a, 1.0))
    pyro.sample("x", dist.Normal(b, 1.0), obs=torch.tensor(1.0))


def test_the_order_of_the_sites_is_checked():
    AttentionELBO().differentiable_loss(chain, correlated("a", "b"))
    with pytest.warns(UserWarning, match="mean field restriction on the guide"):
        AttentionELBO().differentiable_loss(chain, correlated("b", "a"))
    # a sampled KL is right in any order
    assert_equal(chain, lambda: correlated("b", "a"), Trace_ELBO, kl="sampled")


def more_than_the_model():
    one_site_guide()
    pyro.sample("other", normal("other"))


@pytest.mark.filterwarnings("ignore:Found ")
@pytest.mark.parametrize(
    ("guide", "message"),
    [
        (more_than_the_model, "site 'other' is in the guide alone; mark it by infer="),
        (lambda: None, "site 'z' is in the model alone"),
    ],
    ids=["guide", "model"],
)
@pytest.mark.parametrize("weight", [0, 1])
def test_sites_of_one_side_alone(guide, weight, message):
    with pytest.raises(ValueError, match=message):
        AttentionELBO(kl_weight=weight).loss(one_site, guide)


@pytest.mark.parametrize("weight", [0, 0.5])
def test_the_kl_weight_scales_auxiliary_sites_too(weight):
    losses = [
        value_and_gradients(AttentionELBO(kl_weight=w), one_site, AutoNormal(one_site))[0] for w in (0, 1, weight)
    ]
    torch.testing.assert_close(losses[2], (1 - weight) * losses[0] + weight * losses[1])
    elbo = AttentionELBO()
    value, _ = value_and_gradients(elbo, one_site, AutoNormal(one_site))
    assert set(elbo.kl_record) == {"z", "z_unconstrained"}
    torch.testing.assert_close(value - losses[0], sum(elbo.kl_record.values()))
