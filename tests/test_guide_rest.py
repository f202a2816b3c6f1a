"""Latent sites beside attention: ``rest=`` gives them a guide, and objectives are those of both guides together."""

import copy
import functools
import pickle

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.distributions import Delta, constraints
from pyro.infer import SVI, Predictive, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoDelta, AutoDiagonalNormal, AutoGuideList, AutoNormal
from pyro.nn import PyroModule
from pyro.optim import Adam

from pyro_attention import (
    AlignmentELBO,
    AlignmentPrior,
    AttentionELBO,
    AttentionGuide,
    Categorical,
    Dense,
    FixedGammaPrior,
    LatentAttention,
    PriorWarning,
    ScoreFunctionELBO,
    Soft,
    Weibull,
    check_model,
    predict,
    sample_posterior,
)
from tests.toy_models import SelfAttention, Sequences


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


@pytest.fixture
def data():
    return Sequences.random()


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


def value_and_gradients(elbo, model, guide, arguments):
    torch.manual_seed(3)
    with poutine.trace(param_only=True) as tracer:
        loss = elbo.differentiable_loss(model, guide, *arguments)
    params = {name.split(".", 1)[-1]: s["value"].unconstrained() for name, s in tracer.trace.nodes.items()}
    found = torch.autograd.grad(loss, list(params.values()), allow_unused=True, materialize_grads=True)
    return loss, dict(zip(params, found, strict=True))


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
    assert guide._drawn is None


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


@pytest.mark.parametrize("learning", ["svi", "module"])
@pytest.mark.parametrize("rest", ["AutoNormal", "AutoGuideList"])
def test_parameters_of_rest_train(rest, learning, data):
    model = Shifted()
    guide = AttentionGuide(model, Weibull(5.0, learnable=True), rest=RESTS[rest](model))
    if learning == "svi":
        svi = SVI(model, guide, Adam({"lr": 0.05}), AttentionELBO())
        svi.step(data.x, data.y)
        before = {name: value.detach().clone() for name, value in pyro.get_param_store().items()}
        assert sum("rest" in name for name in before) == 6 - 2 * (rest == "AutoGuideList")
        svi.step(data.x, data.y)
        after = dict(pyro.get_param_store().items())
    else:
        loss = AttentionELBO()(model, guide)
        loss(data.x, data.y)  # makes the parameters
        before = {name: value.detach().clone() for name, value in loss.named_parameters()}
        assert sum(name.startswith("guide.rest") for name in before) == 6 - 2 * (rest == "AutoGuideList")
        optimizer = torch.optim.Adam(loss.parameters(), lr=0.05)
        loss(data.x, data.y).backward()
        optimizer.step()
        after = dict(loss.named_parameters())
    frozen = [name for name, value in before.items() if value.equal(after[name]) and "network.layers.1" not in name]
    assert not frozen


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


def test_sites_that_keep_their_prior_are_hidden_from_rest(data):
    model = Shifted()
    guide = AttentionGuide(model, Weibull(5.0), rest=AutoNormal, keep_prior=["effect", "no*"])
    elbo = AttentionELBO()
    elbo.loss(model, guide, data.x, data.y)
    assert set(elbo.kl_record) == {"shift", "shift_unconstrained", "layers.0"}
    forgotten = AttentionGuide(model, Weibull(5.0), rest=AutoNormal(poutine.block(model, expose=["shift"])))
    with pytest.warns(PriorWarning, match="drawn from their prior: 'noise', 'effect'"):
        elbo.loss(model, forgotten, data.x, data.y)
    assert any("'noise', 'effect'" in text for text in check_model(model, forgotten, data.x, data.y).problems)
    assert check_model(model, AttentionGuide(model, Weibull(5.0), rest=AutoNormal), data.x, data.y, svi=True).ok


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


def test_posterior_samples_and_predictions(data):
    model = Shifted()
    guide = AttentionGuide(model, Weibull(5.0), rest=AutoNormal)
    for chunk_size in (1, 4):
        samples = sample_posterior(guide, data.x, num_samples=9, chunk_size=chunk_size, seed=0)
        assert {name: value.shape for name, value in samples.items()} == {"layers.0": (9, 6, 2, 5, 5)}
        prediction = predict(guide, data.x, num_samples=9, chunk_size=chunk_size, seed=0)
        assert prediction.mean.shape == (6,)
        assert (prediction.variance > 0).all()
    values = guide(data.x)
    assert {*OTHERS, "layers.0", "y"} <= set(values)
    stock = Predictive(model, guide=guide, num_samples=3)(data.x)
    assert stock["effect"].shape == (3, 6)


@pytest.mark.parametrize("used", [False, True])
def test_guides_with_a_rest_copy(used, data):
    model = Shifted()
    guide = AttentionGuide(model, Weibull(5.0), rest=written if not used else AutoNormal)
    guide(data.x, data.y)
    twin = copy.deepcopy(guide)
    for seed in (0, 1):
        torch.manual_seed(seed)
        first = guide(data.x)
        torch.manual_seed(seed)
        second = twin(data.x)
        torch.testing.assert_close(first["effect"], second["effect"])
    assert "_drawn" not in vars(pickle.loads(pickle.dumps(twin)))


@pytest.mark.filterwarnings("ignore:Found ")
@pytest.mark.parametrize(
    ("rest", "message"),
    [
        (lambda x, y=None: pyro.sample("layers.0", Delta(torch.zeros(()))), "attention site 'layers.0' is in rest too"),
        (lambda x, y=None: pyro.sample("y", Delta(torch.zeros(()))), "site 'y' is observed in the model"),
        (
            lambda x, y=None: pyro.sample("shift", Delta(torch.zeros(())), obs=torch.zeros(())),
            "site 'shift' is observed in the guide",
        ),
        (
            lambda x, y=None: pyro.sample("other", Delta(torch.zeros(()))),
            "rest has the site 'other', expected a latent",
        ),
    ],
    ids=["attention", "observed", "observed_in_guide", "unknown"],
)
def test_a_rest_that_does_not_fit(rest, message, data):
    model = Shifted()
    guide = AttentionGuide(model, Weibull(5.0), rest=rest, keep_prior=OTHERS)
    for run in (guide, guide.run):
        with pytest.raises(ValueError, match=message):
            run(data.x, data.y)


def test_another_minibatch_in_rest(data):
    """A plate with a subsample of its own needs create_plates, which stock Pyro does not say."""
    network = SelfAttention(layers=1, size=20)

    def model(x, y):
        with pyro.plate("batch", 20, subsample=torch.arange(6)):
            pyro.sample("effect", dist.Normal(0.0, 1.0))
        with poutine.block(hide=["batch"]):
            network(x, y)

    guide = AttentionGuide(model, Weibull(), rest=AutoNormal)
    with pytest.raises(ValueError, match=r"plate 'batch' has a subsample of its own in the model.*create_plates="):
        guide(data.x, data.y)

    def plates(x, y):
        return pyro.plate("batch", 20, subsample=torch.arange(6), dim=-1)

    guide = AttentionGuide(model, Weibull(), rest=functools.partial(AutoNormal, create_plates=plates))
    assert guide(data.x, data.y)["effect"].shape == (6,)


def test_rest_is_callable():
    with pytest.raises(TypeError, match="rest is 'AutoNormal', expected a guide, or a class of guides"):
        AttentionGuide(SelfAttention(), Weibull(), rest="AutoNormal")


def test_a_subclass_inside_a_plate_knows_its_outer_plates(data):
    """Pyro's own call is used: a family may make its parameters without the dimension of the particles."""
    seen = []

    class Own(AttentionGuide):
        def get_posterior(self, name, prior):
            seen.append(self._outer_plates)
            return super().get_posterior(name, prior)

    guide = Own(SelfAttention(), Weibull())
    with pyro.plate("particles", 3, dim=-2):
        assert guide.run(data.x, data.y).output.shape == (3, 6)
    assert set(seen) == {("particles",)}


def test_a_run_leaves_nothing_behind(data):
    guide = AttentionGuide(SelfAttention(), Weibull())
    run = guide.run(data.x)
    assert run.trace.nodes["layers.0"]["infer"]["prior"].kind == Weibull.kind
    assert run.output.shape == (6,)
    assert not hasattr(guide, "trace")
    with pytest.raises(TypeError):
        guide.run()
    assert not hasattr(guide, "trace")
    assert isinstance(guide.model, SelfAttention)


def test_the_nesting_of_plates_is_guessed(data):
    model = Shifted()
    guide, elbo = (
        AttentionGuide(model, Weibull(), rest=AutoNormal),
        AttentionELBO(num_particles=3, vectorize_particles=True),
    )
    assert elbo.loss(model, guide, data.x, data.y) > 0
    assert elbo.max_plate_nesting == 2
