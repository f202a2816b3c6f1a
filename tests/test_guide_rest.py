"""Latent sites beside attention: ``rest=`` gives them a guide, and objectives are those of both guides together."""

import copy
import functools
import pickle

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.distributions import Delta
from pyro.infer import SVI, Predictive
from pyro.infer.autoguide import AutoNormal
from pyro.optim import Adam

from pyro_attention import AttentionELBO, AttentionGuide, Weibull, check_model, predict, sample_posterior
from pyro_attention.blocked import BlockedMultiheadAttention
from pyro_attention.check import PriorWarning
from tests.rest_guides import OTHERS, RESTS, Shifted, written
from tests.toy_models import SelfAttention, Sequences


@pytest.fixture
def data():
    return Sequences.random()


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
    guide, light = AttentionGuide(model, Weibull(5.0), rest=AutoNormal), AttentionELBO(kl_weight=1e-4)
    assert check_model(model, guide, data.x, data.y, elbo=light, svi=True).ok


@pytest.mark.parametrize("chunk_size", [1, 4])
def test_posterior_samples_and_predictions(chunk_size, data):
    model = Shifted()
    guide = AttentionGuide(model, Weibull(5.0), rest=AutoNormal)
    options = {"num_samples": 9, "chunk_size": chunk_size, "seed": 0}
    samples = sample_posterior(guide, data.x, **options)
    assert {name: value.shape for name, value in samples.items()} == {"layers.0": (9, 6, 2, 5, 5)}
    prediction = predict(guide, data.x, **options)
    assert prediction.mean.shape == (6,)
    assert (prediction.variance > 0).all()
    assert {*OTHERS, "layers.0", "y"} <= set(guide(data.x))
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


def test_an_autoguide_beside_blocked_attention(data):
    """Its first pass runs the model without the guide, and a blocked prior cannot be drawn from."""
    layer = BlockedMultiheadAttention(4, 2)

    def model(x, y=None):
        shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
        with pyro.plate("batch", len(x)):
            mean = layer(x, x, x, need_weights=False)[0].mean((-1, -2)) + shift
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    guide = AttentionGuide(model, Weibull(), rest=AutoNormal)
    assert AttentionELBO().loss(model, guide, data.x, data.y) > 0
    assert {"attention", "shift"} <= guide(data.x, data.y).keys()


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
