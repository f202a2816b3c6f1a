"""AttentionGuide: families swap without touching the model, patterns, parameters, pickling and errors."""

import copy
import itertools

import pyro
import pytest
import torch
from pyro.distributions import Delta, HalfNormal
from pyro.infer import SVI
from pyro.optim import Adam

from pyro_attention import (
    AlignmentPrior,
    Amortised,
    AttentionELBO,
    AttentionGuide,
    Categorical,
    Dense,
    FixedGammaPrior,
    FixedLogNormalPrior,
    Gamma,
    Gaussian,
    LatentAttention,
    LogNormal,
    Soft,
    Weibull,
    sample_posterior,
)
from pyro_attention.families.gamma import GammaWeights
from pyro_attention.families.lognormal import LogNormalWeights
from pyro_attention.families.weibull import WeibullWeights
from tests.toy_models import FreeScores, SelfAttention, Sequences, attention_values

SITES = ("layers.0", "layers.1")
FAMILIES = {Soft(): Delta, Weibull(5.0): WeibullWeights, LogNormal(0.4): LogNormalWeights, Gamma(3.0): GammaWeights}


@pytest.fixture
def data():
    return Sequences.random()


def step(model, guide, data):
    """One step of SVI."""
    SVI(model, guide, Adam({"lr": 0.05}), AttentionELBO()).step(data.x, data.y)


def draw(guide, data, seed=0):
    """Values of the attention sites."""
    torch.manual_seed(seed)
    values = guide(data.x)
    return torch.stack([values[name] for name in SITES])


@pytest.mark.parametrize(
    ("families", "posteriors"),
    [*(({"*": family}, (kind, kind)) for family, kind in FAMILIES.items()),
     ({"layers.0": Soft(), "layers.1": Weibull(5.0)}, (Delta, WeibullWeights))],
    ids=str,
)  # fmt: skip
def test_families_swap_without_touching_the_model(families, posteriors, data):
    model = SelfAttention()
    before = copy.deepcopy(model.state_dict())
    guide, other = AttentionGuide(model, families), AttentionGuide(model, Weibull(2.0))
    sites = attention_values(guide, data.x, data.y)
    assert {name: type(fn) for name, (fn, _) in sites.items()} == dict(zip(SITES, posteriors, strict=True))
    values = draw(guide, data)
    torch.testing.assert_close(values, draw(guide, data), rtol=0, atol=0)
    assert draw(guide, data, seed=1).equal(values) == (posteriors == (Delta, Delta))
    assert not values.equal(draw(other, data))
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())
    # back to the prior once no guide is active
    trace = pyro.poutine.trace(model).get_trace(data.x)
    assert all(isinstance(trace.nodes[name]["fn"], GammaWeights) for name in SITES)


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(FAMILIES, 2)), ids=str)
def test_families_draw_different_values(one, other, data):
    model = SelfAttention()
    assert not draw(AttentionGuide(model, one), data).equal(draw(AttentionGuide(model, other), data))


def test_call_returns_every_sample_site(data):
    values = AttentionGuide(SelfAttention(), Weibull())(data.x)
    assert set(values) == {*SITES, "y"}
    assert values["layers.1"].shape == (6, 2, 5, 5)


def test_run_returns_what_the_model_returns(data):
    model = SelfAttention()
    guide = AttentionGuide(model, Soft())
    torch.testing.assert_close(
        guide.run(data.x, padding=data.padding).output, guide.run(data.x, None, data.padding).output
    )
    assert guide.run(data.x).output.shape == (6,)


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["layers.0", "layers.1"], [0, 1]),
        (["layers.0", "layers.*"], [0, 1]),
        (["*.1", "*"], [1, 0]),
        (["layers.[!0]", "layers.?"], [1, 0]),
        (["*"], [0, 0]),
    ],
    ids=str,
)
def test_first_matching_pattern_counts(patterns, expected, data):
    concentrations = [2.0, 30.0]
    families = {pattern: Weibull(k) for pattern, k in zip(patterns, concentrations, strict=False)}
    sites = attention_values(AttentionGuide(SelfAttention(), families), data.x)
    for name, index in zip(SITES, expected, strict=True):
        assert sites[name][0].concentration.item() == pytest.approx(concentrations[index])


def learnable_cases():
    shared = Weibull(5.0, learnable=True)
    return {
        "one": (Weibull(5.0, learnable=True), 1),
        "one_per_layer": ({"layers.0": Weibull(5.0, learnable=True), "*": LogNormal(0.5, learnable=True)}, 2),
        "shared": ({"layers.0": shared, "layers.1": shared}, 1),
        "one_learnable": ({"layers.0": Weibull(5.0), "layers.1": Gamma(torch.tensor([2.0, 5.0]), learnable=True)}, 1),
        "fixed": (Weibull(5.0), 0),
    }


@pytest.mark.parametrize("case", learnable_cases())
def test_parameters_register_once_and_train_under_svi(case, data):
    families, count = learnable_cases()[case]
    model = SelfAttention()
    guide = AttentionGuide(model, families)
    before = copy.deepcopy(guide.families.state_dict())
    step(model, guide, data)
    named = [name for name in pyro.get_param_store() if "families" in name]
    assert len(named) == count
    assert len(pyro.get_param_store()) == len(list(model.parameters())) + count
    learnable = dict(guide.families.named_parameters())
    for name, value in guide.families.state_dict().items():
        trained = any(value.data_ptr() == parameter.data_ptr() for parameter in learnable.values())
        assert trained != value.equal(before[name]), name


@pytest.mark.parametrize("case", learnable_cases())
def test_parameters_register_once_and_train_as_a_module(case, data):
    families, count = learnable_cases()[case]
    model = SelfAttention()
    loss = AttentionELBO()(model, AttentionGuide(model, families))
    names = [name for name, _ in loss.named_parameters() if "families" in name]
    assert len(names) == count
    assert len(list(loss.parameters())) == len(list(model.parameters())) + count
    optimizer = torch.optim.Adam(loss.parameters(), lr=0.05)
    before = {name: loss.get_parameter(name).detach().clone() for name in names}
    loss(data.x, data.y).backward()
    optimizer.step()
    assert all((loss.get_parameter(name) != before[name]).all() for name in names)


@pytest.mark.parametrize(
    ("make", "name", "remedy"),
    [
        *((family, "concentration", "pass its value and learnable=True") for family in (Weibull, Gamma)),
        *((family, "scale", "pass its value and learnable=True") for family in (LogNormal, Gaussian)),
        *((FixedLogNormalPrior, name, "a subclass of Prior") for name in ("loc", "scale")),
    ],
)
def test_numbers_that_would_not_train(make, name, remedy):
    """They were taken, and fixed without a word."""
    with pytest.raises(TypeError, match=f"{name} requires a gradient, which would not reach it, .*{remedy}"):
        make(**{name: torch.nn.Parameter(torch.tensor(5.0))})


def test_an_inference_network_behind_a_random_layer(data):
    """It scores the second layer once for all samples, whose scores have their dimension there."""
    model = SelfAttention(prior=lambda *_: FixedGammaPrior())
    network = Scores(6, 2, 5, 5)
    families = {"layers.0": Weibull(2.0), "layers.1": Amortised(network, Weibull(5.0))}
    kls = []
    for vectorize in (False, True):
        elbo = AttentionELBO(num_particles=3, vectorize_particles=vectorize)
        elbo.loss(model, AttentionGuide(model, families), data.x, data.y)
        kls.append(elbo.kl_record["layers.1"])
    torch.testing.assert_close(*kls)
    soft = AttentionGuide(model, {**families, "layers.1": Amortised(network, Soft())})
    weights = sample_posterior(soft, data.x, num_samples=7, chunk_size=3)
    torch.testing.assert_close(weights["layers.1"], network().softmax(-1).expand(7, 6, 2, 5, 5))
    assert not weights["layers.0"][5].equal(weights["layers.0"][6])
    for shape in ((2, 5, 5), (6, 5, 5)):
        with pytest.raises(ValueError, match="expected the layer's"):
            AttentionGuide(model, {**families, "layers.1": Amortised(Scores(*shape), Soft())})(data.x)
        with pytest.raises(ValueError, match="expected the layer's"):
            AttentionGuide(model, {**families, "layers.0": Amortised(Scores(*shape), Soft())})(data.x)


class Scores(torch.nn.Module):
    """An inference network of free scores."""

    def __init__(self, *shape):
        super().__init__()
        self.scores = torch.nn.Parameter(torch.randn(shape))

    def forward(self, *_):
        return self.scores


@pytest.mark.parametrize(
    ("families", "error", "message"),
    [
        ({}, ValueError, "families is empty"),
        ("weibull", TypeError, "expected a"),
        (Weibull, TypeError, "expected a"),
        ({"*": "weibull"}, TypeError, r"families\['\*'\] is 'weibull', expected a Family"),
        ({"*": Weibull}, TypeError, "expected a Family such as"),
        ({"layers.0": Weibull(), "layers.1": None}, TypeError, r"families\['layers.1'\]"),
    ],
    ids=str,
)
def test_wrong_families(families, error, message):
    with pytest.raises(error, match=message):
        AttentionGuide(SelfAttention(), families)


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["layers.0"], "attention site 'layers.1' matches none of the patterns 'layers.0'"),
        (["Layers.*"], "attention site 'layers.0' matches none"),
        (["*", "decoder.*"], r"no attention site matches 'decoder.\*'; the model's sites.* 'layers.0', 'layers.1'"),
        (["*", "layers.0"], "no attention site matches 'layers.0'"),  # shadowed by the first
    ],
    ids=str,
)
def test_patterns_that_do_not_fit_the_model(patterns, message, data):
    guide = AttentionGuide(SelfAttention(), {pattern: Weibull() for pattern in patterns})
    for run in (guide, guide.run, lambda x: AttentionELBO().loss(guide.model, guide, x, data.y)):
        with pytest.raises(ValueError, match=message):
            run(data.x)


def test_model_without_attention():
    def model():
        pyro.sample("z", HalfNormal(1.0))

    with pytest.raises(ValueError, match="no attention site"):
        AttentionGuide(model, Weibull())()


class OtherWeights(GammaWeights):
    kind = "something else"


class OtherPrior(FixedGammaPrior):
    def forward(self, scores, keys, layout):
        return OtherWeights(self.log_concentration, self.log_rate, layout=layout, shape=scores.shape)


def test_family_of_another_kind():
    model = FreeScores(OtherPrior())
    message = (
        "site 'attention': Weibull fits priors of kind 'positive weights', but its prior OtherWeights is of kind "
        "'something else'"
    )
    with pytest.raises(ValueError, match=message):
        AttentionGuide(model, Weibull())()


@pytest.mark.parametrize(
    ("family", "prior", "named"),
    [
        (Weibull(), AlignmentPrior(), "families for this prior: .*Soft, .* AlignmentELBO takes Marginal"),
        (Categorical(), FixedGammaPrior(), "priors for Categorical: AlignmentPrior, .* AlignmentELBO takes Marginal"),
    ],
    ids=str,
)
def test_the_error_of_another_kind_names_what_fits(family, prior, named):
    layer = LatentAttention("attention", prior)
    guide = AttentionGuide(lambda: layer(torch.zeros(1, 4), torch.ones(1, 4, 2), layout=Dense(event_dim=2)), family)
    with pytest.raises(ValueError, match=named):
        guide()


@pytest.mark.parametrize("make", [Weibull, LogNormal, FixedGammaPrior])
def test_a_list_of_parameters(make):
    with pytest.raises(TypeError, match=r"(concentration|scale) is \[1.0, 2.0\], expected a positive number"):
        make([1.0, 2.0])


def test_guide_recovers_from_an_error(data):
    """A call that fails leaves nothing behind for the next one."""
    layer = LatentAttention("attention", FixedGammaPrior())
    guide = AttentionGuide(lambda scores: layer(scores, torch.ones(1, 4, 2)).context, Soft())
    with pytest.raises(ValueError, match="batch shape"):
        guide(torch.zeros(3, 1, 2, 4))
    assert set(guide(torch.zeros(1, 2, 4))) == {"attention"}
