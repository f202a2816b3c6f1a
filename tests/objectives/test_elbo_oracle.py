"""AttentionELBO on models and guides of all kinds, without attention: it equals stock Pyro, draw for draw."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import (
    AutoDelta,
    AutoDiagonalNormal,
    AutoGuideList,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)
from pyro.optim import Adam

from pyro_attention import AttentionELBO
from tests.objectives.written_models import (
    MODELS,
    VECTORIZED,
    WRITTEN,
    normal,
    one_site,
    one_site_guide,
    plates,
    plates_guide,
)

AUTOGUIDES = [AutoNormal, AutoDiagonalNormal, AutoMultivariateNormal, AutoLowRankMultivariateNormal, AutoDelta]


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
    for seed in (1, 2):
        mine = value_and_gradients(AttentionELBO(**options), model, make_guide(), seed)
        options_of_stock = {key: value for key, value in options.items() if key != "kl"}
        theirs = value_and_gradients(stock(**options_of_stock), model, make_guide(), seed)
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
        assert any(gradient.abs().max() > 0 for gradient in mine[1].values())


PARTICLES = {
    "one": {},
    "looped": {"num_particles": 3},
    "vectorized": {"num_particles": 3, "vectorize_particles": True, "max_plate_nesting": 2},
}


@pytest.mark.parametrize(
    ("case", "particles"),
    [(case, name) for case in WRITTEN for name in PARTICLES if name != "vectorized" or case in VECTORIZED],
)
def test_written_guides(case, particles):
    model, guide = WRITTEN[case]
    # stock TraceMeanField_ELBO leaves out the density of a point mass
    stock = Trace_ELBO if case == "auxiliary" else TraceMeanField_ELBO
    assert_equal(model, lambda: guide, stock, **PARTICLES[particles])


@pytest.mark.parametrize("case", WRITTEN)
def test_sampled_kl(case):
    """Where it is asked for, every KL is the one that Pyro samples."""
    model, guide = WRITTEN[case]
    assert_equal(model, lambda: guide, Trace_ELBO, kl="sampled")


def autoguide_cases():
    """Without what stock Pyro cannot do: subsampling in joint autoguides."""
    for case in MODELS:
        for autoguide in AUTOGUIDES:
            if case == "subsampling" and autoguide not in (AutoNormal, AutoDelta):
                continue
            yield case, autoguide, "one"
            yield case, autoguide, "looped"
            if case in VECTORIZED:
                yield case, autoguide, "vectorized"


@pytest.mark.parametrize(("case", "autoguide", "particles"), list(autoguide_cases()))
def test_autoguides(case, autoguide, particles):
    """Stock TraceMeanField_ELBO leaves out the Jacobian of constrained sites; Trace_ELBO has it."""
    model = MODELS[case]
    assert_equal(model, lambda: autoguide(model), Trace_ELBO, **PARTICLES[particles])


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")], ids=str)
def test_lists_of_autoguides(order):
    def model():
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        b = pyro.sample("b", dist.HalfNormal(1.0))
        pyro.sample("x", dist.Normal(a, 0.1 + b), obs=torch.tensor(0.7))

    def make():
        guide = AutoGuideList(model)
        kinds = {"a": AutoDiagonalNormal, "b": AutoNormal}
        for name in order:
            guide.append(kinds[name](poutine.block(model, expose=[name])))
        return guide

    assert_equal(model, make, Trace_ELBO)


@pytest.mark.parametrize("autoguide", [AutoNormal, AutoDiagonalNormal, AutoMultivariateNormal])
def test_an_autoguide_finds_the_posterior(autoguide):
    """Of one_site it is Normal(1/2, sqrt 1/2): without the entropy of the auxiliary site it would be a point."""
    guide = autoguide(one_site)
    elbo = AttentionELBO(num_particles=50, vectorize_particles=True, max_plate_nesting=0)
    svi = SVI(one_site, guide, pyro.optim.ClippedAdam({"lr": 0.1, "lrd": 0.98}), elbo)
    for _ in range(150):
        svi.step()
    with pyro.plate("draws", 4000, dim=-1):
        draws = guide()["z"].detach()
    assert draws.mean().item() == pytest.approx(0.5, abs=0.06)
    assert draws.std().item() == pytest.approx(0.5**0.5, abs=0.06)


def test_exact_value_of_a_conjugate_model():
    """With the exact posterior the ELBO is the log evidence."""

    def guide():
        pyro.sample("z", dist.Normal(torch.tensor(0.5), 0.5**0.5))

    def expected_log_likelihood():
        return -0.5 * math.log(2 * math.pi) - 0.5 * (0.25 + 0.5)

    kl = 0.5 * (0.5 + 0.25 - 1 - math.log(0.5))
    evidence = dist.Normal(0.0, 2**0.5).log_prob(torch.tensor(1.0)).item()
    assert expected_log_likelihood() - kl == pytest.approx(evidence)
    elbo = AttentionELBO()
    losses = torch.tensor([elbo.loss(one_site, guide) for _ in range(400)])
    assert abs(losses.mean() + evidence) < 4 * losses.std() / 20
    assert elbo.kl_record["z"].item() == pytest.approx(kl)


def test_minibatches_of_guide_and_model_are_the_same():
    """The gradient at every minibatch is that of its own item alone, and their mean that of all items."""
    data = torch.tensor([1.0, -4.0])

    def model():
        with pyro.plate("data", 2, subsample_size=1) as index:
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("x", dist.Normal(z, 1.0), obs=data[index])

    def guide():
        loc = pyro.param("loc", torch.zeros(2))
        with pyro.plate("data", 2, subsample_size=1) as index:
            pyro.sample("z", dist.Normal(loc[index], 1e-4))

    seen = {}
    for seed in range(8):
        _, gradients = value_and_gradients(AttentionELBO(), model, guide, seed)
        (index,) = gradients["loc"].nonzero().flatten().tolist()
        # each item counts twice; d/dloc of (loc^2 + (x - loc)^2) / 2 at 0 is -x
        assert gradients["loc"][index].item() == pytest.approx(-2 * data[index].item(), abs=1e-2)
        seen[index] = gradients["loc"]
    assert set(seen) == {0, 1}
    torch.testing.assert_close(sum(seen.values()) / 2, -data, atol=1e-2, rtol=0)


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
    message = r"mean field restriction on the guide: .* in the order \['b', 'a'\], .* in the order \['a', 'b'\]"
    with pytest.warns(UserWarning, match=message):
        AttentionELBO().differentiable_loss(chain, correlated("b", "a"))
    # a sampled KL is right in any order
    assert_equal(chain, lambda: correlated("b", "a"), Trace_ELBO, kl="sampled")


@pytest.mark.parametrize("kl", ["closed_form", "sampled"])
def test_sites_without_a_closed_form(kl):
    def model():
        z = pyro.sample("z", dist.StudentT(5.0))
        pyro.sample("x", dist.Normal(z, 1.0), obs=torch.tensor(1.0))

    if kl == "sampled":
        assert_equal(model, lambda: one_site_guide, TraceMeanField_ELBO, kl="sampled")
    else:
        with pytest.raises(ValueError, match=r"site 'z': KL\(Normal \|\| StudentT\) has no closed form.*kl='sampled'"):
            AttentionELBO().loss(model, one_site_guide)


@pytest.mark.parametrize(("what", "value"), [("scale", 2.0), ("mask", False)])
def test_handlers_around_the_model_alone(what, value):
    """Stock TraceMeanField_ELBO ignores them silently."""
    model = getattr(poutine, what)(one_site, value)
    with pytest.raises(ValueError, match=rf"site 'z': its {what} is .* in the guide and {value} in the model"):
        AttentionELBO().loss(model, one_site_guide)
    assert_equal(model, lambda: one_site_guide, Trace_ELBO, kl="sampled")


def more_than_the_model():
    one_site_guide()
    pyro.sample("other", normal("other"))


@pytest.mark.filterwarnings("ignore:Found ")
@pytest.mark.parametrize(
    ("guide", "weight", "message"),
    [
        (more_than_the_model, 1, "site 'other' is in the guide alone; .* mark it by infer="),
        (lambda: None, 0, "site 'z' is in the model alone"),
        (lambda: None, 1, "site 'z' is in the model alone"),
    ],
    ids=["guide", "model without a KL", "model"],
)
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


def test_svi_steps_equal_those_of_stock_pyro():
    finals = []
    for elbo in (AttentionELBO(), TraceMeanField_ELBO()):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        svi = SVI(plates, plates_guide, Adam({"lr": 0.05}), elbo)
        losses = [svi.step() for _ in range(10)]
        params = {name: value.detach().clone() for name, value in pyro.get_param_store().items()}
        finals.append((torch.tensor(losses), params))
    torch.testing.assert_close(*finals, rtol=1e-4, atol=1e-5)
