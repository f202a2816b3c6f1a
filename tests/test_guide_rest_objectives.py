"""Objectives of attention and of the sites beside it together: those of stock Pyro, draw for draw."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.distributions import Delta
from pyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal

from pyro_attention import (
    AlignmentELBO,
    AlignmentPrior,
    AttentionELBO,
    AttentionGuide,
    Categorical,
    Dense,
    FixedGammaPrior,
    LatentAttention,
    ScoreFunctionELBO,
    Soft,
    Weibull,
)
from tests.rest_guides import OTHERS, RESTS, Shifted, autoguide_list, every_rest, value_and_gradients, written
from tests.toy_models import Sequences


@pytest.fixture
def data():
    return Sequences.random()


every_number_of_particles = pytest.mark.parametrize(
    "particles",
    [{}, {"num_particles": 2}, {"num_particles": 2, "vectorize_particles": True, "max_plate_nesting": 1}],
    ids=["one", "looped", "vectorized"],
)


class Both:
    """The oracle: a guide of stock Pyro in which the same rest comes before a hand-written posterior of attention."""

    def __init__(self, guide):
        self.guide = guide

    def __call__(self, *args, **kwargs):
        rest = poutine.trace(self.guide.rest).get_trace(*args, **kwargs)
        with poutine.block():
            attention = AttentionGuide(poutine.replay(self.guide.model, rest), Weibull(5.0))
            trace = attention.run(*args, **kwargs).trace
        # its plate is that of rest, which a stock guide cannot enter again
        pyro.sample("layers.0", Given(trace.nodes["layers.0"]["fn"], trace.nodes["layers.0"]["value"]))


class Given(dist.TorchDistribution):
    """A posterior that has drawn its value already."""

    has_rsample = True
    arg_constraints = {}  # noqa: RUF012

    def __init__(self, base, value):
        self.base, self.value = base, value
        super().__init__(base.batch_shape, base.event_shape, validate_args=False)

    def expand(self, batch_shape, _instance=None):
        assert batch_shape == self.batch_shape
        return self

    def rsample(self, sample_shape=()):
        return self.value

    def log_prob(self, value):
        return self.base.log_prob(value)


@every_rest
def test_equals_two_guides_of_stock_pyro(rest, data):
    """Draw for draw: the sampled ELBO in one pass is stock Pyro's of a guide that draws rest, then attention."""
    model = Shifted()
    guide = AttentionGuide(model, Weibull(5.0), rest=RESTS[rest](model))
    with poutine.trace(param_only=True):
        guide(data.x, data.y)
    mine, gradients = value_and_gradients(AttentionELBO(kl="sampled"), model, guide, (data.x, data.y))
    with pyro.validation_enabled(False):
        theirs, expected = value_and_gradients(Trace_ELBO(), model, Both(guide), (data.x, data.y))
    torch.testing.assert_close(mine, theirs)
    assert gradients.keys() >= expected.keys()
    assert any(gradient.abs().max() > 1e-3 for name, gradient in expected.items() if "out" not in name)
    for name, gradient in expected.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-3, atol=1e-3, msg=lambda m: f"{name}: {m}")  # noqa: B023


@every_rest
def test_stock_elbos_agree(rest, data):
    """They take both traces from the guide, too."""
    model = Shifted()
    guide = AttentionGuide(model, Weibull(5.0), rest=RESTS[rest](model))
    guide(data.x, data.y)
    mine, gradients = value_and_gradients(AttentionELBO(kl="sampled"), model, guide, (data.x, data.y))
    theirs, expected = value_and_gradients(Trace_ELBO(), model, guide, (data.x, data.y))
    torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(gradients, expected, rtol=1e-3, atol=1e-3)


def test_closed_forms_are_used_where_there_are(data):
    model = Shifted()
    guide, elbo = AttentionGuide(model, Weibull(5.0), rest=written), AttentionELBO()
    torch.manual_seed(0)
    loss = elbo.loss(model, guide, data.x, data.y)
    kl = torch.distributions.kl_divergence(dist.Normal(0.1, 0.3), dist.Normal(0.0, 2.0))
    torch.testing.assert_close(elbo.kl_record["shift"], kl)
    assert set(elbo.kl_record) == {*OTHERS, "layers.0"}
    # the effect's prior has the same shift as its posterior
    effect = torch.distributions.kl_divergence(dist.Normal(0.0, 0.3), dist.Normal(0.0, 0.5))
    torch.testing.assert_close(elbo.kl_record["effect"], 6 * effect)
    torch.manual_seed(0)
    stock = TraceMeanField_ELBO().loss(model, guide, data.x, data.y)
    assert loss == pytest.approx(stock, rel=1e-5)


@every_number_of_particles
@every_rest
def test_the_network_runs_once_a_step(rest, particles, data):
    model = Shifted()
    guide, elbo = AttentionGuide(model, Weibull(5.0), rest=RESTS[rest](model)), AttentionELBO(**particles)
    elbo.loss(model, guide, data.x, data.y)  # autoguides look at the model once
    model.calls = 0
    loss = elbo.differentiable_loss(model, guide, data.x, data.y)
    loss.backward()
    assert model.calls == (2 if elbo.num_particles == 2 and not elbo.vectorize_particles else 1)
    assert all(name in elbo.kl_record for name in ("shift", "layers.0"))
    assert not hasattr(guide, "trace")
    assert not guide._drawn.nodes


def test_vectorized_particles_are_the_mean_of_looped_ones(data):
    model = Shifted()
    guide = AttentionGuide(model, Soft(), rest=AutoNormal)
    guide(data.x, data.y)
    looped, vectorized = (
        AttentionELBO(num_particles=n, vectorize_particles=n > 1, max_plate_nesting=1) for n in (1, 400)
    )
    losses = torch.tensor([looped.loss(model, guide, data.x, data.y) for _ in range(200)])
    error = losses.std() * (1 / 200 + 1 / 400) ** 0.5
    assert abs(losses.mean() - vectorized.loss(model, guide, data.x, data.y)) < 4 * error


@pytest.mark.parametrize("around", ["scale", "mask"])
def test_handlers_around_the_guide_reach_all_sites(around, data):
    model = Shifted()
    guide, arguments = AttentionGuide(model, Weibull(5.0), rest=AutoNormal), (data.x, data.y)
    guide(*arguments)
    elbo = AttentionELBO()
    loss, _ = value_and_gradients(elbo, model, guide, arguments)
    if around == "scale":
        found, _ = value_and_gradients(elbo, model, poutine.scale(guide, 3.0), arguments)
        torch.testing.assert_close(found, 3 * loss)
    else:
        torch.manual_seed(3)
        assert elbo.loss(model, poutine.mask(guide, mask=False), *arguments) == 0


@pytest.mark.parametrize("rest", ["AutoNormal", "AutoGuideList"])
def test_minibatches_are_shared(rest, data):
    """Guide and model see the same sequences, so that only their effects get a gradient."""
    model = Shifted(subsample=2)
    make = {"AutoNormal": AutoNormal, "AutoGuideList": autoguide_list(model)}[rest]
    guide = AttentionGuide(model, Weibull(5.0), rest=make)
    guide(data.x, data.y)
    seen, outputs = set(), {}
    handle = model.network.out.register_forward_hook(lambda module, inputs, output: outputs.update(out=output))
    for seed in range(4):
        torch.manual_seed(seed)
        with poutine.trace(param_only=True) as tracer:
            loss = AttentionELBO().differentiable_loss(model, guide, data.x, data.y)
        (name,) = [name for name in tracer.trace.nodes if name.endswith("locs.effect")]
        (gradient,) = torch.autograd.grad(loss, tracer.trace.nodes[name]["value"].unconstrained())
        index = gradient.nonzero().flatten().tolist()
        assert len(index) == 2
        assert outputs["out"].size(0) == 2
        seen.update(index)
    handle.remove()
    assert len(seen) > 2


def test_svi_finds_the_posterior_beside_attention():
    """A conjugate shift beside soft attention: posterior Normal(1/2, sqrt 1/2)."""
    layer = LatentAttention("attention", FixedGammaPrior())

    def model():
        shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
        one = layer(torch.zeros(1, 2, 2), torch.ones(1, 2, 1)).context.mean()
        pyro.sample("x", dist.Normal(shift * one, 1.0), obs=torch.tensor(1.0))

    guide = AttentionGuide(model, Soft(), rest=AutoNormal)
    elbo = AttentionELBO(num_particles=50, vectorize_particles=True, max_plate_nesting=0)
    svi = SVI(model, guide, pyro.optim.ClippedAdam({"lr": 0.1, "lrd": 0.98}), elbo)
    for _ in range(150):
        svi.step()
    with pyro.plate("draws", 4000, dim=-1):
        draws = guide()["shift"].detach()
    assert draws.mean().item() == pytest.approx(0.5, abs=0.06)
    assert draws.std().item() == pytest.approx(0.5**0.5, abs=0.06)


def test_enumeration_beside_rest():
    """The alignment is summed out exactly, for the values that rest draws."""
    layer = LatentAttention("alignment", AlignmentPrior())
    y = torch.tensor([0.3, -1.0])

    def model():
        shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
        with pyro.plate("queries", 2):
            values = torch.tensor([0.0, 1.0, 3.0]).view(1, 3, 1)
            mean = layer(torch.zeros(2, 1, 3), values, layout=Dense(event_dim=2)).context.squeeze(-1).squeeze(-1)
            pyro.sample("y", dist.Normal(mean + shift, 1.0), obs=y)

    at = 0.4
    guide = AttentionGuide(model, Categorical(), rest=lambda: pyro.sample("shift", Delta(torch.tensor(at))))
    means = torch.tensor([0.0, 1.0, 3.0]) + at
    expected = dist.Normal(means, 1.0).log_prob(y[:, None]).mean(1).sum()
    expected = expected + dist.Normal(0.0, 1.0).log_prob(torch.tensor(at))
    assert -AlignmentELBO(max_plate_nesting=1).loss(model, guide) == pytest.approx(expected.item(), rel=1e-5)
    drawn = AttentionGuide(model, Categorical(enumerate=False), rest=guide.rest)
    losses = torch.tensor([ScoreFunctionELBO().loss(model, drawn) for _ in range(400)])
    assert abs(losses.mean() + expected) < 4 * losses.std() / 20
