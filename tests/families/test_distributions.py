"""The distributions over weights and their logarithms: densities, moments, draws, KL, shapes, checks and precision."""

import itertools
import math
import pickle

import mpmath
import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from scipy.special import digamma, gammaln
from torch.distributions import Dirichlet, Normal, kl_divergence

from pyro_attention import Dense, EdgeList, FixedGammaPrior, LatentAttention
from pyro_attention.alignments.base import AlignmentWeights
from pyro_attention.alignments.categorical import CategoricalAlignment
from pyro_attention.alignments.relaxed import RelaxedAlignment
from pyro_attention.families.base import FAMILIES
from pyro_attention.families.dirichlet import DirichletWeights
from pyro_attention.families.gamma import GammaWeights
from pyro_attention.families.gaussian import GaussianWeights
from pyro_attention.families.lognormal import LogNormalWeights
from pyro_attention.families.weibull import WeibullWeights
from pyro_attention.normalizers import Softmax
from tests.helpers import assert_mean, log_mean
from tests.quadrature import log_density, log_posterior, reference_kl, reference_moments

SPREADS = torch.tensor([0.1, 0.5, 1.0, 3.0, 10.0, 100.0], dtype=torch.float64)
LOCATIONS = torch.tensor([[-3.0], [0.5]], dtype=torch.float64)
BUILD = {
    "weibull": WeibullWeights,
    "lognormal": LogNormalWeights,
    "gamma": lambda location, spread, **options: GammaWeights(spread.log(), -location, **options),
    "gaussian": GaussianWeights,
    "dirichlet": lambda location, spread, **options: DirichletWeights(location + spread.log(), **options),
}
POSITIVE = ["weibull", "lognormal", "gamma"]
every_distribution = pytest.mark.parametrize("name", BUILD)
every_positive = pytest.mark.parametrize("name", POSITIVE)
MASK = torch.tensor([[True, True, True, True], [True, False, True, False], [False, True, False, False]])


def double(value):
    return torch.tensor(value, dtype=torch.float64)


def randn(*shape):
    return torch.randn(shape, dtype=torch.float64).requires_grad_()


def textbook(name, location=LOCATIONS, spread=SPREADS):
    """scipy's distribution of log S."""
    location, spread = location.numpy(), spread.numpy()
    return {
        "weibull": lambda: stats.gumbel_l(location, 1 / spread),
        "lognormal": lambda: stats.norm(location, spread),
        "gamma": lambda: stats.loggamma(spread, location),
    }[name]()


# moments, densities and draws of positive weights


def test_entropy_of_narrow_gamma_weights_in_single_precision():
    log_concentration = torch.tensor([2.0, 1e2, 1e5]).log()
    a = log_concentration.double().exp().numpy()
    expected = (gammaln(a) + a - a * digamma(a)).sum()  # SciPy's loggamma loses it before 1.12
    found = GammaWeights(log_concentration, torch.tensor(0.0), shape=torch.Size([1, 1000, 3])).entropy()
    assert found.item() == pytest.approx(1000 * expected, rel=1e-5)


@every_positive
def test_moments_and_density_are_those_of_the_textbook(name):
    d, log_s = BUILD[name](LOCATIONS, SPREADS, shape=torch.Size([1, 2, 6])), textbook(name)
    for moment, value in {"mean": log_s.mean(), "variance": log_s.var()}.items():
        torch.testing.assert_close(getattr(d, moment).expand(2, 6), torch.from_numpy(value).expand(2, 6))
    entropy = sum(reference_moments(name, spread, 0.0)[3] for spread in SPREADS.tolist())  # shifts do not change it
    assert d.entropy().item() == pytest.approx(2 * entropy)
    value = torch.from_numpy(log_s.rvs((7, 1, 2, 6), np.random.default_rng(0)))
    expected = torch.from_numpy(log_s.logpdf(value.numpy()))
    torch.testing.assert_close(d.log_prob(value), expected.sum((-3, -2, -1)))
    narrow = BUILD[name](LOCATIONS, SPREADS[:5], shape=torch.Size([1, 2, 5]))  # E[S] of a lognormal of 100 is no float
    logs = [reference_moments(name, spread, 0.0)[2] for spread in SPREADS[:5].tolist()]
    assert logs == pytest.approx([0.0] * 5, abs=1e-9)  # of the reference, whose mean is one
    draws = d.rsample((20_000,))[:, 0].numpy()
    uniform = log_s.cdf(draws).reshape(-1, 12)
    assert min(stats.kstest(column, "uniform").pvalue for column in uniform.T) > 1e-4
    moderate = BUILD[name](LOCATIONS, double([0.5, 1.0, 1.5]), shape=torch.Size([1, 2, 3]))
    assert_mean((moderate.rsample((100_000,)) - log_mean(moderate)).exp().flatten(1), 1)
    assert log_mean(narrow).shape == (1, 2, 5)


@pytest.mark.parametrize("name", ["weibull", "lognormal", "gaussian"])
def test_draws_are_differentiable(name):
    def sample(location, spread):
        torch.manual_seed(3)
        return BUILD[name](location, spread.exp()).rsample((2,))

    assert torch.autograd.gradcheck(sample, (randn(3, 2, 2, 4), randn(2, 1, 1)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [1e-4, 0.5, 40.0])
def test_gamma_pathwise_gradient(shape, dtype):
    """Its mean is the derivative of the moment: torch's own sampler fails this at small shapes."""
    log_a = torch.full((50_000, 1, 1, 1), shape, dtype=dtype).log().requires_grad_()
    log_rate = torch.zeros((), dtype=dtype, requires_grad=True)
    x = GammaWeights(log_a, log_rate).rsample()
    a = double(shape)
    digamma, trigamma = torch.digamma(a), torch.polygamma(1, a)
    assert_mean(x, digamma)
    gradient, of_rate = torch.autograd.grad(x.sum(), (log_a, log_rate), retain_graph=True)
    assert_mean(gradient, a * trigamma)
    assert of_rate == -50_000
    # in units of the mean, so that no square overflows
    (gradient,) = torch.autograd.grad((x / digamma).square().sum(), log_a)
    assert_mean(gradient, a * (2 * digamma * trigamma + torch.polygamma(2, a)) / digamma**2)


# KL: against quadrature, Monte Carlo and the paper's formula

PRIORS = [("gamma", a, b) for a in (1e-4, 0.3, 7.0) for b in (0.2, 3.0)]
PRIORS += [("lognormal", -2.0, 0.1), ("lognormal", 1.5, 1.0), ("lognormal", 1.5, 100.0)]


def posterior(family, spread, log_mean):
    """Distribution with ``log E[S] = log_mean``, where E[S] of a wide lognormal stays a number."""
    spread, log_mean = double(spread).expand(1, 1, 1), double(log_mean)
    shift = {"weibull": torch.lgamma(1 + 1 / spread), "lognormal": spread**2 / 2, "gamma": spread.log()}[family]
    return BUILD[family](log_mean - shift, spread)


def prior(family, first, second):
    first, second = double(first).expand(1, 1, 1), double(second)
    return GammaWeights(first.log(), second.log()) if family == "gamma" else LogNormalWeights(first, second)


@pytest.mark.parametrize("p", PRIORS, ids=str)
@every_positive
def test_closed_form_matches_quadrature(name, p):
    for spread in (0.1, 1.0, 10.0, 100.0):
        for at in (-4.0, 2.0):
            q = (name, spread, at)
            expected = reference_kl(q, p)
            assert kl_divergence(posterior(*q), prior(*p)).item() == pytest.approx(expected, rel=1e-6, abs=1e-9), q
            assert expected > -1e-9


@pytest.mark.parametrize("p", [("gamma", 0.3, 2.0), ("lognormal", 1.5, 0.7)], ids=str)
@every_positive
def test_closed_form_and_its_gradient_within_a_transform(name, p):
    """Where torch.func takes no autograd functions of the usual form."""

    def loss(location, spread, first, second):
        q = BUILD[name](location, spread.expand(1, 1, 1), layout=Dense(mask=MASK))
        second = second.expand(1, 1, 1)
        first = first.expand(1, 1, 1)
        prior = (
            GammaWeights(first.log(), second.log(), layout=Dense(mask=MASK))
            if p[0] == "gamma"
            else (LogNormalWeights(first, second, layout=Dense(mask=MASK)))
        )
        return kl_divergence(q, prior).sum()

    locations, parameters = randn(3, 3, 4), [double(2.0), *map(double, p[1:])]
    actual = torch.func.vmap(torch.func.grad_and_value(loss, (0, 1, 2, 3)), (0, None, None, None))(
        locations.detach(), *parameters
    )
    for number, location in enumerate(locations):
        inputs = [location, *(x.clone().requires_grad_() for x in parameters)]
        expected = loss(*inputs)
        torch.testing.assert_close(actual[1][number], expected.detach())
        torch.testing.assert_close([x[number] for x in actual[0]], list(torch.autograd.grad(expected, inputs)))


@pytest.mark.parametrize("p", [("gamma", 0.2, 1.0), ("lognormal", -0.5, 0.7)], ids=str)
@pytest.mark.parametrize("q", [("weibull", 0.5), ("lognormal", 1.0), ("gamma", 0.5)], ids=str)
def test_closed_form_matches_monte_carlo(q, p):
    weights = posterior(*q, -1.0)
    x = weights.rsample((100_000,)).flatten().numpy()
    difference = log_posterior(*q, -1.0)(x) - log_density(*p)(x)
    assert_mean(torch.from_numpy(difference), kl_divergence(weights, prior(*p)).item())


def paper(k, scale, a, b):
    """Fan et al. (2020), section 3.2."""
    g = np.euler_gamma
    terms = g * a / k, -a * math.log(scale), math.log(k), b * scale * math.gamma(1 + 1 / k)
    return sum(terms) - g - 1 - a * math.log(b) + math.lgamma(a)


@pytest.mark.parametrize(("k", "scale", "a", "b"), [(2.0, 0.5, 0.3, 4.0), (10.0, 3.0, 5.0, 0.7)])
def test_textbook_pair(k, scale, a, b):
    expected = paper(k, scale, a, b)
    log_q = WeibullWeights(double(scale).log().expand(1, 1, 1), double(k))
    assert kl_divergence(log_q, prior("gamma", a, b)).item() == pytest.approx(expected, abs=1e-12)


# sums over the event: masks, and parameters that are not expanded

EVENT = torch.Size([3, 2, 4, 5])
SHAPES = [EVENT, (2, 1, 1), (3, 2, 1, 5), ()]  # a posterior's parameters, then a prior's: one a head, one a key, one
PAIRS = [(q, p) for q in POSITIVE for p in ("gamma", "lognormal")] + [("gaussian", "gaussian")]
every_pair = pytest.mark.parametrize(("q", "p"), PAIRS)


def layout():
    """Some entries masked; in batch element 1, every key of query 2."""
    mask = torch.rand(3, 1, 4, 5) < 0.7
    mask[1, :, 2] = False
    return Dense(mask)


def kl(q, p, inputs, **options):
    options = {"shape": EVENT, **options}
    made = [BUILD[name](x, (y / 2).exp(), **options) for name, x, y in ((q, *inputs[:2]), (p, *inputs[2:]))]
    return kl_divergence(*made)


@every_pair
def test_kl_is_a_sum_over_unmasked_entries(q, p):
    inputs, masked = [randn(*shape) for shape in SHAPES], layout()
    # heads, queries and keys moved into the batch: one KL an entry
    entries = [value.expand(EVENT)[..., None, None, None] for value in inputs]
    each = kl(q, p, entries, shape=(*EVENT, 1, 1, 1))
    torch.testing.assert_close(kl(q, p, inputs), each.sum((-3, -2, -1)))
    total = (each * masked.mask).sum((-3, -2, -1))
    torch.testing.assert_close(kl(q, p, inputs, layout=masked), total)
    torch.testing.assert_close(kl(q, p, [value.expand(EVENT) for value in inputs], layout=masked), total)
    assert torch.autograd.gradcheck(lambda *x: kl(q, p, x, layout=masked), inputs)
    assert kl(q, p, inputs, layout=Dense(torch.zeros(5, dtype=torch.bool))).tolist() == [0, 0, 0]
    pair = [BUILD[name](x, y.exp(), shape=EVENT) for name, x, y in ((q, *inputs[:2]), (p, *inputs[2:]))]
    torch.testing.assert_close(kl_divergence(*(d.expand((7, 3)) for d in pair)), kl_divergence(*pair).expand(7, 3))
    # one mask for all queries or all keys
    for mask in (torch.tensor([True, False, True, True, True]), torch.tensor([True, False, True, True])[:, None]):
        torch.testing.assert_close(kl(q, p, inputs, layout=Dense(mask)), (each * mask).sum((-3, -2, -1)))


@every_pair
def test_masked_entries_add_nothing(q, p):
    inputs, masked = [randn(*EVENT) for _ in range(4)], layout()
    mask, value = masked.mask.expand(EVENT), kl(q, p, inputs, layout=masked)
    inputs[0].data[~mask] = 1e3  # E[S] is infinite
    assert torch.equal(kl(q, p, inputs, layout=masked), value)
    inputs[0].data[~mask] = 30  # would dominate
    kl(q, p, inputs, layout=masked).sum().backward()
    for each in inputs:
        assert (each.grad[~mask] == 0).all()
        assert each.grad[mask].abs().min() > 0


def test_infinite_parameters_that_entries_share_add_nothing_where_none_counts():
    """A key that no query sees, with one width for all queries; zero times infinity is NaN."""
    mask = torch.ones(4, 4, dtype=torch.bool).tril()
    mask[:, 3] = False
    scale = torch.tensor([1.0, 2.0, 0.5, torch.inf]).requires_grad_()
    q = LogNormalWeights(torch.zeros(1, 4, 4), scale.view(1, 1, 4), layout=Dense(mask))
    entropy = q.entropy()
    each = 0.5 * math.log(2 * math.pi * math.e) + scale[:3].log()
    torch.testing.assert_close(entropy, (each * torch.tensor([4.0, 3.0, 2.0])).sum())
    assert torch.autograd.grad(entropy, scale)[0].isfinite().all()


@every_pair
def test_kl_on_an_edge_list(q, p):
    graph = EdgeList.from_edge_index(torch.tensor([[0, 1, 1], [1, 1, 0]]), num_nodes=2, add_self_loops=True)
    inputs = randn(5, 2), randn(2), randn(5, 1), randn()
    total = kl(q, p, inputs, layout=graph, shape=torch.Size([5, 2]))
    each = kl(q, p, [v.expand(5, 2)[..., None, None, None] for v in inputs], shape=torch.Size([5, 2, 1, 1, 1]))
    torch.testing.assert_close(total, each[[0, 2, 3, 4]].sum())  # edge 1 was a self loop and is replaced


@pytest.mark.parametrize(("q", "p"), [("gaussian", "lognormal"), ("weibull", "gaussian"), ("dirichlet", "gamma")])
def test_kinds_have_no_kl_between_them(q, p):
    made = [BUILD[name](torch.zeros(1, 2, 3), torch.tensor(1.0)) for name in (q, p)]
    with pytest.raises(NotImplementedError, match="Weights and q type"):
        kl_divergence(*made)


def test_weibull_is_no_prior():
    with pytest.raises(NotImplementedError, match="WeibullWeights has no closed-form"):
        kl_divergence(posterior("gamma", 1.0, 0.0), posterior("weibull", 1.0, 0.0))


# Gaussian weights


def test_gaussian_weights_are_torchs():
    mask = torch.tensor([[True, True, False], [True, True, True]])
    loc, scale, other = torch.randn(4, 2, 2, 3), torch.rand(2, 1, 1) + 0.1, torch.randn(2, 1, 3)
    q = GaussianWeights(loc, scale, layout=Dense(mask))
    p = GaussianWeights(other, torch.tensor(0.6), layout=Dense(mask), shape=loc.shape)
    value, normal = q.rsample(), Normal(loc, scale.expand(loc.shape))
    for found, expected, hidden in (
        (q.log_prob(value), normal.log_prob(value), Normal(0.0, 1.0).log_prob(value)),
        (q.entropy(), normal.entropy(), 0),
        (kl_divergence(q, p), kl_divergence(normal, Normal(other.expand(loc.shape), 0.6)), 0),
    ):
        torch.testing.assert_close(found, expected.where(mask, hidden).sum((1, 2, 3)))
    draws = q.rsample((4000,))
    assert_mean(draws[:, 0, :, mask], q.mean[0, :, mask], errors=4.5)
    assert_mean((draws - loc).square()[:, 0, :, mask], q.variance.expand(2, 2, 3)[:, mask], errors=4.5)
    value = torch.tensor([[[-1.0, 3.0, 7.0], [0.5, -2.0, 4.0]]])  # it is the weight
    assert q.weights(value).tolist() == [[[-1.0, 3.0, 0.0], [0.5, -2.0, 4.0]]]


# Dirichlet weights


def scores(*shape, spread=1.5):
    return spread * torch.randn(*(shape or (2, 3, 4)), dtype=torch.float64)


@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "masked"])
def test_dirichlet_weights_are_torchs(mask):
    """Its draws, moments, density, entropy and KL, over the unmasked keys of each row."""
    where, log_a, log_b = Dense(mask), scores(), scores()
    q, p = (DirichletWeights(x, layout=where) for x in (log_a, log_b))
    kept = torch.ones_like(MASK) if mask is None else mask
    rows = list(itertools.product(range(2), range(3)))
    torchs, others = ([Dirichlet(x[h, m, kept[m]].exp()) for h, m in rows] for x in (log_a, log_b))
    torch.testing.assert_close(kl_divergence(q, p), sum(map(kl_divergence, torchs, others)))
    draws = q.rsample((10_000,))
    weights = q.weights(draws, Softmax())
    torch.testing.assert_close(weights, draws.exp() * kept)
    for (h, m), one in zip(rows, torchs, strict=True):
        if kept[m].sum() > 1:
            of_torch = one.sample((10_000,))
            assert_mean(weights[:, h, m, kept[m]], one.mean, errors=4.5)
            assert_mean(weights[:, h, m, kept[m]].square() - of_torch.square(), 0.0, errors=4.5)
            assert_mean(draws[:, h, m, kept[m]], q.mean[h, m, kept[m]], errors=4.5)
            assert_mean((draws - q.mean).square()[:, h, m, kept[m]], q.variance[h, m, kept[m]], errors=4.5)
    # torch's density is with respect to N - 1 of the weights; their log ratios have Jacobian prod W
    value = where.log_softmax(scores())
    expected = sum(
        one.log_prob(value[h, m, kept[m]].exp()) + value[h, m, kept[m]].sum()
        for (h, m), one in zip(rows, torchs, strict=True)
    )
    hidden = Normal(0.0, 1.0).log_prob(value)[:, ~kept].sum()
    torch.testing.assert_close(q.log_prob(value), expected + hidden)
    masked = 2 * (~kept).sum()
    assert_mean(-q.log_prob(draws) - masked * 0.5 * math.log(2 * math.pi), q.entropy())
    inputs = log_a.requires_grad_(), log_b.requires_grad_()

    def terms(a, b):
        q, p = (DirichletWeights(x, layout=where) for x in (a, b))
        return kl_divergence(q, p), q.log_prob(value), q.entropy(), q.weights(q.mean_value, Softmax())

    assert torch.autograd.gradcheck(terms, inputs)


@pytest.mark.parametrize(("a", "b"), list(itertools.product([1e-4, 1.0, 1e4], repeat=2)))
def test_dirichlet_kl_of_tiny_and_large_concentrations(a, b):
    """Against 60 digits; relative to the larger of the two differences that make it up in float64."""
    log_a, log_b = (double(x).log().expand(1, 1, 3) for x in ([a, 2 * a, 0.5 * a], [b, b, 3 * b]))
    with mpmath.workdps(60):
        qs, ps = ([mpmath.mpf(x) for x in c.exp().flatten().tolist()] for c in (log_a, log_b))
        expected = mpmath.loggamma(sum(qs)) - mpmath.loggamma(sum(ps))
        for q, p in zip(qs, ps, strict=True):
            expected += mpmath.loggamma(p) - mpmath.loggamma(q) + (q - p) * (mpmath.psi(0, q) - mpmath.psi(0, sum(qs)))
    for cast, digits in ((torch.Tensor.double, 1e-9), (torch.Tensor.float, 1e-4)):  # where inputs are rounded
        found = kl_divergence(*(DirichletWeights(cast(x)) for x in (log_a, log_b)))
        assert found.item() == pytest.approx(float(expected), rel=digits, abs=digits)
    assert kl_divergence(*[DirichletWeights(log_a)] * 2).item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("concentration", [1e-4, 0.5, 40.0])
def test_dirichlet_pathwise_gradient(concentration):
    """Its mean is the derivative of the moment E[log W]."""
    log_a = torch.full((50_000, 1, 1, 2), concentration).log()
    log_a[..., 1] += 1
    value = DirichletWeights(log_a.requires_grad_()).rsample()
    (gradient,) = torch.autograd.grad(value[..., 0].sum(), log_a)
    one = log_a[0].detach().double().requires_grad_()
    moment = torch.digamma(one.exp())[..., 0] - torch.digamma(one.exp().sum(-1))
    assert_mean(value[..., 0], moment.squeeze(-1).detach()[..., None])
    (expected,) = torch.autograd.grad(moment.sum(), one)
    assert_mean(gradient, expected)


# relaxed alignments


def relaxed(scores, temperature, mask=None):
    return RelaxedAlignment(CategoricalAlignment(scores, layout=Dense(mask, event_dim=2)), temperature=temperature)


@pytest.mark.parametrize("temperature", [0.05, 0.7])
def test_relaxed_draws_are_weights_whose_largest_is_categorical(temperature):
    """Their moments are those of torch's own class, their density and KL the categorical ones."""
    mask = torch.tensor([[True] * 4, [True, True, True, False], [False] * 4])[:, None]
    logits, other = torch.randn(3, 1, 4).double(), torch.randn(3, 1, 4).double()
    q = relaxed(logits, temperature, mask)
    weights = q.rsample((20_000,))
    assert weights.shape == q.shape((20_000,)) == (20_000, 3, 1, 4)
    assert (weights[:, ~mask] == 0).all()
    assert q.support.check(weights).all()
    largest = torch.nn.functional.one_hot(weights.argmax(-1), 4).double()
    probs = logits.masked_fill(~mask, -torch.inf).softmax(-1)
    assert_mean(largest[:, :2][:, mask[:2]], probs[mask])
    of_torch = dist.RelaxedOneHotCategorical(double(temperature), logits=logits[0, 0]).sample((20_000,))
    for moment in (lambda x: x, torch.square):
        assert_mean(moment(weights[:, 0, 0]) - moment(of_torch), 0.0, errors=4.5)
    plain, p = (CategoricalAlignment(x, layout=q.layout) for x in (logits, other))
    torch.testing.assert_close(kl_divergence(q, AlignmentWeights(p)), kl_divergence(plain, p))
    torch.testing.assert_close(q.entropy(), plain.entropy())
    torch.testing.assert_close(q.log_prob(weights[:5])[:, 0], (weights[:5, 0] * probs[0].log()).sum((-2, -1)))
    kl = (probs * (probs / other.masked_fill(~mask, -torch.inf).softmax(-1)).log()).nan_to_num(0).sum((-2, -1))
    torch.testing.assert_close(kl_divergence(plain, p), kl)
    with pytest.raises(ValueError, match="within the support"):
        q.log_prob(torch.full((3, 1, 4), 0.4).double())


@pytest.mark.parametrize("temperature", [0.01, 1.0])
@pytest.mark.parametrize("spread", [1.0, 50.0])
def test_relaxed_gradients_are_finite_and_masked_ones_zero(temperature, spread):
    """Torch's KL has gradients of NaN where keys of -inf are masked; here they are finite numbers."""
    mask = torch.tensor([[True] * 4, [True, True, True, False], [False] * 4])[:, None]
    inputs = [(spread * torch.rand(3, 1, 4)).requires_grad_() for _ in range(2)]
    q, p = relaxed(inputs[0], temperature, mask), AlignmentWeights(relaxed(inputs[1], 1.0, mask).alignment)
    kl, weights = kl_divergence(q, p), q.rsample()
    assert kl[2] == 0
    loss = kl + (weights * torch.randn(4)).sum((-1, -2)) + p.log_prob(weights)
    for gradient in torch.autograd.grad(loss.sum(), inputs):
        assert gradient.isfinite().all()
        assert (gradient[~mask] == 0).all()

    def draw(scores):
        torch.manual_seed(0)
        return relaxed(scores, 0.5, mask).rsample((3,))

    assert torch.autograd.gradcheck(draw, randn(3, 1, 4))


# what all keep


@every_distribution
def test_shapes(name):
    d = BUILD[name](torch.zeros(3, 2, 4, 5), torch.ones(3, 2, 1, 5))
    assert (d.batch_shape, d.event_shape) == ((3,), (2, 4, 5))
    value = d.sample((6, 7))
    assert value.shape == (6, 7, 3, 2, 4, 5)
    assert not value.requires_grad
    assert d.log_prob(value).shape == (6, 7, 3)
    plated = d.expand((8, 3))
    value = plated.rsample()
    assert value.shape == (8, 3, 2, 4, 5)
    assert value[0].ne(value[1]).all()  # draws of their own
    torch.testing.assert_close(plated.log_prob(value), d.log_prob(value))
    torch.testing.assert_close(plated.entropy(), d.entropy().expand(8, 3))
    small = BUILD[name](torch.zeros(5), torch.tensor(1.0), shape=torch.Size([3, 2, 4, 5]))
    assert small.rsample((7,)).shape == (7, 3, 2, 4, 5)
    full = BUILD[name](torch.zeros(3, 2, 4, 5), torch.tensor(1.0))
    torch.testing.assert_close(small.log_prob(value), full.log_prob(value))
    torch.testing.assert_close(small.entropy(), full.entropy())
    with pytest.raises(ValueError, match="must match event_shape"):
        d.log_prob(torch.zeros(1, 1, 3))


@every_distribution
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_computes_in_float32(name, half):
    location, spread = torch.randn(1, 3, 4).to(half), torch.tensor(1.0).to(half)
    d, expected = BUILD[name](location, spread), BUILD[name](location.float(), spread.float())
    values = []
    for each in (d, expected):
        torch.manual_seed(5)
        values.append(each.rsample())
    torch.testing.assert_close(*values)
    assert {x.dtype for x in (*values, d.mean, d.variance, d.entropy(), d.log_prob(values[0]))} == {torch.float32}
    mixed = BUILD[name](location.double(), torch.tensor(1.0)).rsample()
    assert mixed.dtype == torch.float64


@every_distribution
@pytest.mark.parametrize("mask", [MASK, torch.zeros_like(MASK)], ids=["some", "all"])
def test_masked_entries_are_standard_normal(name, mask):
    """Their density integrates to one and is the same for all; in draws they are zero. Copies do alike."""
    d, p = (
        BUILD[name](torch.full((1, 3, 4), at), torch.tensor(1.0), layout=Dense(mask)).expand((7,)) for at in (0, 0.5)
    )
    draws = d.rsample()
    assert (draws[:, 0, ~mask] == 0).all()
    other = draws.clone()
    other[:, 0, ~mask] = hidden = torch.randn(7, (~mask).sum())
    expected = (Normal(0.0, 1.0).log_prob(hidden) - Normal(0.0, 1.0).log_prob(torch.zeros(()))).sum(-1)
    for each in (d, p, pickle.loads(pickle.dumps(d))):
        assert (each.weights(other, Softmax())[:, 0, ~mask] == 0).all()
        torch.testing.assert_close(each.log_prob(other) - each.log_prob(draws), expected)
    if not mask.any():
        torch.testing.assert_close(d.log_prob(draws), Normal(0.0, 1.0).log_prob(draws).sum((-3, -2, -1)))
        assert (d.entropy() == 0).all()


@pytest.mark.parametrize("normalize", [True, False])
def test_scores_of_a_call(normalize):
    """Other ones enter as those of the layer do; a posterior that matches them may know the sum of its means."""
    mask = torch.tensor([[True, True, False], [False, False, False]])
    one, other = torch.randn(2, 1, 2, 3).unbind()
    attention = LatentAttention("attention", FixedGammaPrior(), normalize_scores=normalize)
    replaced, expected = (attention.make_call(each, layout=Dense(mask)) for each in (one, other))
    replaced = replaced.with_scores(other)
    assert torch.equal(replaced.scores, expected.scores)
    assert (replaced.scores[..., 2] == 0).all()
    torch.testing.assert_close(replaced.with_scores(replaced.scores).scores, replaced.scores)  # nor does a second time
    prior = attention.prior(replaced)
    q = FAMILIES["weibull"](3.0).posterior(replaced, prior)
    free = WeibullWeights(q.log_scale, q.concentration, layout=Dense(mask))
    torch.testing.assert_close(kl_divergence(q, prior), kl_divergence(free, prior))


@pytest.mark.parametrize(
    ("q", "p"), [*itertools.product(POSITIVE, ["gamma", "lognormal"]), ("gaussian", "gaussian"), ("dirichlet",) * 2]
)
@pytest.mark.parametrize("masked", [False, True])
def test_kl_of_batches_that_broadcast(q, p, masked):
    """Either of both may be the smaller one, as for the distributions of torch."""
    layout = Dense(MASK if masked else None)
    small, large = torch.randn(1, 3, 4), torch.randn(5, 1, 3, 4)
    for first, second in ((small, large), (large, small), (large[:1], large), (large, large[:1])):
        made = BUILD[q](first, double(0.7), layout=layout), BUILD[p](second, double(1.3), layout=layout)
        wide = (d.expand_as(large) for d in (first, second))
        expected = [
            kind(part, spread, layout=layout)
            for kind, part, spread in zip((BUILD[q], BUILD[p]), wide, (double(0.7), double(1.3)), strict=True)
        ]
        torch.testing.assert_close(kl_divergence(*made), kl_divergence(*expected))
