"""Moments, densities and draws of the distributions over log weights; their shapes, checks, dtypes and copies."""

import copy
import math
import pickle

import pytest
import torch
from scipy import stats
from torch.distributions import Gamma, LogNormal, TransformedDistribution, Weibull
from torch.distributions.transforms import ExpTransform

from pyro_attention import Dense, EdgeList, FixedGammaPrior, LatentAttention
from pyro_attention.families.base import FAMILIES
from pyro_attention.families.dirichlet import DirichletWeights
from pyro_attention.families.gamma import GammaWeights
from pyro_attention.families.gaussian import GaussianWeights
from pyro_attention.families.lognormal import LogNormalWeights
from pyro_attention.families.weibull import WeibullWeights
from tests.helpers import assert_mean
from tests.quadrature import reference_moments

SPREADS = torch.tensor([0.1, 0.5, 1.0, 3.0, 10.0, 100.0], dtype=torch.float64)
LOCATIONS = torch.tensor([[-3.0], [0.5]], dtype=torch.float64)
NAMES = ["weibull", "lognormal", "gamma"]
every_family = pytest.mark.parametrize("name", NAMES)


def build(name, location=LOCATIONS, spread=SPREADS, **options):
    """Event (heads, queries, keys) = (1, 2, 6) by default."""
    options = {"shape": torch.Size([1, 2, 6]), **options} if location is LOCATIONS else options
    if name == "gamma":
        return GammaWeights(spread.log(), -location, **options)
    return {"weibull": WeibullWeights, "lognormal": LogNormalWeights}[name](location, spread, **options)


def scipy_log(name, location=LOCATIONS, spread=SPREADS):
    """The distribution of log S, and that of S."""
    location, spread = location.numpy(), spread.numpy()
    if name == "weibull":
        return stats.gumbel_l(location, 1 / spread), stats.weibull_min(spread, scale=math.e**location)
    if name == "lognormal":
        return stats.norm(location, spread), stats.lognorm(spread, scale=math.e**location)
    return stats.loggamma(spread, location), stats.gamma(spread, scale=math.e**location)


@every_family
def test_moments_match_textbook(name):
    d, log_s = build(name), scipy_log(name)[0]
    expected = {"mean": log_s.mean(), "variance": log_s.var(), "stddev": log_s.std()}
    for moment, value in expected.items():
        torch.testing.assert_close(getattr(d, moment).expand(2, 6), torch.from_numpy(value).expand(2, 6))
    narrow = SPREADS[:5]  # the mean of a lognormal of scale 100 is no float
    expected = torch.from_numpy(scipy_log(name, spread=narrow)[1].mean()).log()
    torch.testing.assert_close(build(name, spread=narrow, shape=(1, 2, 5)).log_expected_weight, expected)


@every_family
def test_entropy_matches_quadrature(name):
    d = build(name)
    expected = torch.tensor([reference_moments(name, k, 0.0)[3] for k in SPREADS.tolist()], dtype=torch.float64)
    torch.testing.assert_close(d.entropy_per_weight.expand(2, 6), expected.expand(2, 6))  # shifts do not change it
    torch.testing.assert_close(d.entropy(), 2 * expected.sum())


@every_family
def test_moments_match_draws(name):
    d = build(name, spread=torch.tensor([0.3, 0.5, 1.0, 1.5, 2.0, 1.8], dtype=torch.float64))
    x = d.rsample((200_000,)).flatten(1)
    mean, variance, log_expected, entropy = (
        moment.expand(2, 6).flatten() for moment in (d.mean, d.variance, d.log_expected_weight, d.entropy_per_weight)
    )
    assert_mean(x, mean)
    assert_mean((x - mean) ** 2, variance)
    assert_mean((x - log_expected).exp(), 1)
    assert_mean(-d.log_density(x.unflatten(1, (1, 2, 6))).flatten(1), entropy)


@every_family
def test_draws_follow_the_distribution(name):
    x = build(name).rsample((20_000,))[:, 0].numpy()
    uniform = scipy_log(name)[0].cdf(x).reshape(-1, 12)
    assert min(stats.kstest(column, "uniform").pvalue for column in uniform.T) > 1e-4


@every_family
def test_log_prob_is_that_of_log_s(name):
    d, value = build(name), torch.randn(3, 1, 2, 6, dtype=torch.float64)
    expected = torch.from_numpy(scipy_log(name)[0].logpdf(value.numpy()))
    torch.testing.assert_close(d.log_density(value), expected)
    torch.testing.assert_close(d.log_prob(value), expected.sum((-3, -2, -1)))
    # through the Jacobian of the logarithm
    of_s = {"weibull": Weibull, "lognormal": LogNormal, "gamma": Gamma}[name](
        *{"weibull": (LOCATIONS.exp(), SPREADS), "lognormal": (LOCATIONS, SPREADS)}.get(
            name, (SPREADS, (-LOCATIONS).exp())
        )
    )
    torch.testing.assert_close(d.log_density(value), TransformedDistribution(of_s, ExpTransform().inv).log_prob(value))
    mask = torch.rand(2, 6) < 0.5
    masked = build(name, layout=Dense(mask))
    standard = torch.distributions.Normal(torch.zeros_like(value), 1.0)  # what masked entries are
    torch.testing.assert_close(masked.log_prob(value), expected.where(mask, standard.log_prob(value)).sum((-3, -2, -1)))
    torch.testing.assert_close(masked.entropy(), (d.entropy_per_weight.expand(1, 2, 6) * mask).sum())


@pytest.mark.parametrize("name", ["weibull", "lognormal"])
def test_draws_are_differentiable(name):
    def sample(location, spread):
        torch.manual_seed(3)
        return build(name, location, spread.exp()).rsample((2,))

    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 2, 2, 4), (2, 1, 1))]
    assert torch.autograd.gradcheck(sample, inputs)


def test_gamma_draws_are_differentiable_in_the_rate():
    def sample(log_rate):
        torch.manual_seed(3)
        return GammaWeights(log_concentration, log_rate).rsample((2,))

    log_concentration = torch.randn(2, 1, 1, dtype=torch.float64)
    assert torch.autograd.gradcheck(sample, torch.randn(3, 2, 2, 4, dtype=torch.float64, requires_grad=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [1e-4, 0.03, 0.5, 2.0, 40.0])
def test_gamma_pathwise_gradient(shape, dtype):
    """Its mean is the derivative of the moment: torch's own sampler fails this at small shapes."""
    log_a = torch.full((100_000, 1, 1, 1), shape, dtype=dtype).log().requires_grad_()
    x = GammaWeights(log_a, torch.zeros((), dtype=dtype)).rsample()
    a = torch.tensor(shape, dtype=torch.float64)
    digamma, trigamma = torch.digamma(a), torch.polygamma(1, a)
    assert_mean(x, digamma)
    (gradient,) = torch.autograd.grad(x.sum(), log_a, retain_graph=True)
    assert_mean(gradient, a * trigamma)
    # in units of the mean, so that no square overflows
    (gradient,) = torch.autograd.grad((x / digamma).square().sum(), log_a, retain_graph=True)
    assert_mean(gradient, a * (2 * digamma * trigamma + torch.polygamma(2, a)) / digamma**2)
    (gradient,) = torch.autograd.grad(x.exp().sum(), log_a)
    if shape > 0.01:  # a moment of rare events otherwise
        assert_mean(gradient, a)


@every_family
def test_shapes(name):
    d = build(name, torch.zeros(3, 2, 4, 5), torch.ones(3, 2, 1, 5))
    assert (d.batch_shape, d.event_shape) == ((3,), (2, 4, 5))
    assert d.has_rsample
    assert d.rsample().shape == (3, 2, 4, 5)
    assert d.sample((6, 7)).shape == (6, 7, 3, 2, 4, 5)
    assert d.log_prob(d.sample((6, 7))).shape == (6, 7, 3)
    assert d.entropy().shape == (3,)
    assert not d.sample().requires_grad

    plated = d.expand((8, 3))
    assert (plated.batch_shape, plated.event_shape) == ((8, 3), (2, 4, 5))
    value = plated.rsample()
    assert value.shape == (8, 3, 2, 4, 5)
    assert value[0].ne(value[1]).all()  # draws of their own
    torch.testing.assert_close(plated.log_prob(value), d.log_prob(value))
    torch.testing.assert_close(plated.entropy(), d.entropy().expand(8, 3))
    assert d.batch_shape == (3,)
    with pytest.raises(ValueError, match="cannot expand"):
        d.expand((4,))


@every_family
def test_unexpanded_shape(name):
    d = build(name, torch.tensor(0.0), torch.tensor(1.0), shape=torch.Size([3, 2, 4, 5]))
    value = d.rsample((7,))
    assert value.shape == (7, 3, 2, 4, 5)
    full = build(name, torch.zeros(3, 2, 4, 5), torch.tensor(1.0))
    torch.testing.assert_close(d.log_prob(value), full.log_prob(value))
    torch.testing.assert_close(d.entropy(), full.entropy())


@every_family
def test_edge_list_event(name):
    graph = EdgeList.from_edge_index(torch.tensor([[0, 1], [1, 1]]), num_nodes=2)
    d = build(name, torch.zeros(3, 2, 4), torch.tensor(1.0), layout=graph)
    assert (d.batch_shape, d.event_shape) == ((3,), (2, 4))
    torch.testing.assert_close(d.weights(d.rsample()).sum(-2), torch.ones(3, 4))  # both edges end in node 1


@every_family
def test_too_few_dimensions(name):
    with pytest.raises(ValueError, match=r"have fewer dimensions than the 3 event"):
        build(name, torch.zeros(4, 5), torch.tensor(1.0))


@pytest.mark.parametrize("name", ["weibull", "lognormal"])
@pytest.mark.parametrize("spread", [0.0, -1.0, math.nan, math.inf])
def test_spread_must_be_positive(name, spread):
    with pytest.raises(ValueError, match=f"has an entry {spread}, expected positive"):
        build(name, torch.zeros(1, 1, 2), torch.tensor([1.0, spread]), validate_args=True)
    build(name, torch.zeros(1, 1, 2), torch.tensor([1.0, spread]), validate_args=False)


@every_family
def test_value_is_checked(name):
    d = build(name, torch.zeros(1, 1, 2), torch.tensor(1.0), validate_args=True)
    with pytest.raises(ValueError, match="within the support"):
        d.log_prob(torch.tensor([[[0.0, math.nan]]]))
    with pytest.raises(ValueError, match="must match event_shape"):
        d.log_prob(torch.zeros(1, 1, 3))


@every_family
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_computes_in_float32(name, half):
    location, spread = torch.randn(1, 3, 4).to(half), torch.tensor(2.0).to(half)
    d, expected = build(name, location, spread), build(name, location.float(), spread.float())
    torch.manual_seed(5)
    value = d.rsample()
    torch.manual_seed(5)
    assert value.dtype == torch.float32
    # a gamma's log_concentration is the logarithm of 2 in half precision
    tolerance = {"atol": 0.05, "rtol": 0.01} if name == "gamma" else {}
    torch.testing.assert_close(value, expected.rsample(), **tolerance)
    for moment in ("mean", "variance", "log_expected_weight", "entropy_per_weight"):
        assert getattr(d, moment).dtype == torch.float32
    assert d.log_prob(value).dtype == torch.float32


@every_family
def test_mixed_precision_promotes(name):
    location = torch.randn(1, 3, 4, dtype=torch.float64)
    for spread in (torch.tensor(2.0), torch.tensor([1.0, 2.0, 3.0, 4.0])):
        d, expected = build(name, location, spread), build(name, location, spread.double())
        value = d.rsample()
        assert value.dtype == torch.float64
        torch.testing.assert_close(d.log_prob(value), expected.log_prob(value), atol=1e-5, rtol=1e-5)


@every_family
@pytest.mark.parametrize("clone", [copy.deepcopy, lambda d: pickle.loads(pickle.dumps(d))], ids=["deepcopy", "pickle"])
@pytest.mark.parametrize("edges", [False, True], ids=["dense", "edges"])
def test_copies(name, clone, edges):
    graph = EdgeList.from_edge_index(torch.tensor([[0, 1], [1, 1]]), num_nodes=2, add_self_loops=True)
    layout = graph if edges else Dense(torch.tensor([True, False, True, True]))
    location = torch.randn(4, 3) if edges else torch.randn(2, 3, 4)
    d = build(name, location, torch.tensor(2.0), layout=layout).expand((5,))
    twin, value = clone(d), d.rsample()
    assert twin.shape() == d.shape()
    assert torch.equal(twin.log_prob(value), d.log_prob(value))
    assert torch.equal(twin.weights(value), d.weights(value))


def test_scores_are_asked_for():
    prior = FixedGammaPrior()(torch.zeros(1, 2, 3), None, Dense())
    with pytest.raises(ValueError, match="sample it through LatentAttention"):
        _ = prior.scores
    scores = torch.ones(1, 2, 3)
    assert prior.proposing(scores).expand((5,)).scores is scores
    with pytest.raises(ValueError, match="carries no scores"):  # a copy got them
        _ = prior.scores


@pytest.mark.parametrize("normalize", [True, False])
def test_other_scores_enter_as_the_layers_do(normalize):
    mask = torch.tensor([True, True, False])
    scores, other = torch.randn(2, 1, 2, 3).unbind()
    attention = LatentAttention("attention", FixedGammaPrior(), normalize_scores=normalize)
    replaced, expected = (attention.propose(each, None, Dense(mask)) for each in (scores, other))
    replaced = replaced.with_scores(other)
    assert torch.equal(replaced.scores, expected.scores)
    assert (replaced.scores[..., 2] == 0).all()
    assert FAMILIES["weibull"]().posterior(replaced).expected_total == (2 if normalize else None)
    torch.testing.assert_close(replaced.with_scores(replaced.scores).scores, replaced.scores)  # nor does a second time


PARAMETERS = {
    WeibullWeights: {"log_scale": 0.0, "concentration": 1.0},
    LogNormalWeights: {"loc": 0.0, "scale": 1.0},
    GammaWeights: {"log_concentration": 0.0, "log_rate": 0.0},
    GaussianWeights: {"loc": 0.0, "scale": 1.0},
    DirichletWeights: {"log_concentration": 0.0},
}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("distribution", "name"), [(d, name) for d, names in PARAMETERS.items() for name in names], ids=str
)
def test_parameters_must_be_finite(distribution, name, bad):
    good = {key: torch.full((1, 2, 3), value) for key, value in PARAMETERS[distribution].items()}
    wrong = {**good, name: good[name].index_fill(-1, torch.tensor([1]), bad)}
    with pytest.raises(
        ValueError,
        match=rf"{distribution.__name__}: {name}.*{'an entry' if name in distribution.positive else '2 of 6'}",
    ):
        distribution(**wrong, validate_args=True)
    distribution(**wrong, validate_args=False)
    distribution(**good, validate_args=True)


@pytest.mark.parametrize("distribution", PARAMETERS)
def test_masked_entries_are_standard_normal(distribution):
    """Their density integrates to one and is the same for all; in draws they are zero."""
    mask = torch.tensor([[True, False, True], [False, False, False]])
    d, p = (
        distribution(
            **{name: torch.full((1, 2, 3), value + shift) for name, value in PARAMETERS[distribution].items()},
            layout=Dense(mask),
        )
        for shift in (0.0, 0.5)
    )
    draws = d.rsample((7,))
    assert (draws[:, 0, ~mask] == 0).all()
    other = draws.clone()
    other[:, 0, ~mask] = hidden = torch.randn(7, 4)
    for value in (draws, other):
        assert (d.weights(value)[:, 0, ~mask] == 0).all()
    standard = torch.distributions.Normal(0.0, 1.0)
    expected = (standard.log_prob(hidden) - standard.log_prob(torch.zeros(()))).sum(-1)
    for each in (d, p):
        torch.testing.assert_close(each.log_prob(other) - each.log_prob(draws), expected)
    unmasked = Dense(torch.zeros(2, 3, dtype=torch.bool))
    alone = distribution(
        **{name: torch.full((1, 2, 3), value) for name, value in PARAMETERS[distribution].items()}, layout=unmasked
    )
    torch.testing.assert_close(alone.log_prob(draws), standard.log_prob(draws).sum((-3, -2, -1)))
    assert alone.entropy() == 0
