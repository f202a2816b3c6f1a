"""Dirichlet weights against torch's own class, Monte Carlo and gradcheck; masks, extremes, shapes and copies."""

import copy
import itertools
import math
import pickle

import mpmath
import pytest
import torch
from torch.distributions import Dirichlet, kl_divergence

from pyro_attention import Dense, EdgeList
from pyro_attention.families.dirichlet import DirichletWeights
from pyro_attention.families.gamma import GammaWeights
from pyro_attention.families.weibull import WeibullWeights
from tests.helpers import assert_mean

HEADS, QUERIES, KEYS = 2, 3, 4
MASK = torch.tensor([[True, True, True, True], [True, False, True, False], [False, True, False, False]])
EXTREMES = [1e-4, 1e-2, 1.0, 1e2, 1e4]


def scores(*shape, spread=1.5):
    return spread * torch.randn(*(shape or (HEADS, QUERIES, KEYS)), dtype=torch.float64)


def rows(log_concentration, mask=MASK):
    """Torch's distribution of every row with keys, over its unmasked keys."""
    pairs = log_concentration.flatten(0, -2), mask.expand(log_concentration.shape).flatten(0, -2)
    return [Dirichlet(row[kept].exp()) for row, kept in zip(*pairs, strict=True)]


def kl(log_a, log_b, **options):
    return kl_divergence(DirichletWeights(log_a, **options), DirichletWeights(log_b, **options))


# moments, density and draws


def test_moments_match_draws_of_torch():
    log_a = scores()
    d = DirichletWeights(log_a)
    draws = Dirichlet(log_a.exp()).sample((20_000,))
    assert_mean(draws, d.mean_weights, errors=4.5)
    many = log_a + 2  # whose logarithms torch draws faithfully
    d, logs = DirichletWeights(many), Dirichlet(many.exp()).sample((20_000,)).log()
    assert_mean(logs, d.mean, errors=4.5)
    assert_mean((logs - d.mean).square(), d.variance, errors=4.5)


def test_draws_match_the_moments():
    d = DirichletWeights(scores(), layout=Dense(MASK))
    draws, kept = d.rsample((20_000,)), MASK.expand(HEADS, QUERIES, KEYS)
    torch.testing.assert_close(d.weights(draws), draws.exp() * MASK)
    varies = kept & (MASK.sum(-1, keepdim=True) > 1)
    assert_mean(draws.exp()[:, varies], d.mean_weights[varies], errors=4.5)
    assert_mean(draws[:, varies], d.mean[varies], errors=4.5)
    assert_mean((draws - d.mean).square()[:, varies], d.variance[varies], errors=4.5)
    assert (draws[:, kept & ~varies].abs() < 1e-12).all()  # a single key
    masked = HEADS * (~MASK.expand(QUERIES, KEYS)).sum()
    # the density of a standard normal at zero, for every masked entry
    assert_mean(-d.log_prob(draws) - masked * 0.5 * math.log(2 * math.pi), d.entropy())


def test_expected_weights_are_the_mean_of_torch():
    log_a = scores()
    d = DirichletWeights(log_a)
    torch.testing.assert_close(d.mean_weights, Dirichlet(log_a.exp()).mean)
    torch.testing.assert_close(d.mean_value, Dirichlet(log_a.exp()).mean.log())


def test_density_is_that_of_the_log_ratios():
    """Torch's density is with respect to N - 1 of the weights; their log ratios have Jacobian prod W."""
    log_a, value = scores(), scores().log_softmax(-1)
    expected = Dirichlet(log_a.exp()).log_prob(value.exp()) + value.sum(-1)
    torch.testing.assert_close(DirichletWeights(log_a).log_prob(value), expected.sum())
    # that Jacobian, by automatic differentiation
    one = value[0, 0]
    ratios = (one[:-1] - one[-1]).requires_grad_()
    jacobian = torch.autograd.functional.jacobian(lambda r: torch.cat([r, r.new_zeros(1)]).softmax(-1)[:-1], ratios)
    torch.testing.assert_close(jacobian.det().log(), one.sum())


@pytest.mark.parametrize("concentrations", list(itertools.product([0.05, 1.0, 30.0], repeat=2)))
def test_entropy_of_two_keys_matches_quadrature(concentrations):
    log_a = torch.tensor(concentrations, dtype=torch.float64).log()
    ratio = torch.linspace(-600, 600, 120_001, dtype=torch.float64)
    logs = torch.stack([torch.nn.functional.logsigmoid(x) for x in (ratio, -ratio)], -1)[:, None, None]
    d = DirichletWeights(log_a.expand(1, 1, 2))
    log_density = d.log_prob(logs)
    step = (ratio[1] - ratio[0]).item()
    assert (log_density.exp().sum() * step).item() == pytest.approx(1, abs=1e-9)
    torch.testing.assert_close(d.entropy(), -(log_density.exp() * log_density).sum() * step)


@pytest.mark.parametrize("concentration", [1e-4, 0.03, 0.5, 40.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_pathwise_gradient(concentration, dtype):
    """Its mean is the derivative of the moment E[log W]."""
    log_a = torch.full((100_000, 1, 1, 2), concentration, dtype=dtype).log()
    log_a[..., 1] += 1
    log_a.requires_grad_()
    d = DirichletWeights(log_a)
    value = d.rsample()
    assert value.dtype == dtype
    (gradient,) = torch.autograd.grad(value[..., 0].sum(), log_a)
    one = log_a[0].detach().double().requires_grad_()
    moment = torch.digamma(one.exp())[..., 0] - torch.digamma(one.exp().sum(-1))
    assert_mean(value[..., 0], moment.squeeze(-1).detach()[..., None])
    (expected,) = torch.autograd.grad(moment.sum(), one)
    assert_mean(gradient, expected)


# KL


@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "masked"])
def test_kl_is_that_of_torch(mask):
    log_a, log_b = scores(), scores()
    qs, ps = (rows(x, torch.ones_like(MASK) if mask is None else mask) for x in (log_a, log_b))
    expected = torch.stack([kl_divergence(q, p) for q, p in zip(qs, ps, strict=True)]).sum()
    torch.testing.assert_close(kl(log_a, log_b, layout=Dense(mask)), expected)


@pytest.mark.parametrize(("a", "b"), list(itertools.product(EXTREMES, EXTREMES)))
def test_kl_of_tiny_and_large_concentrations(a, b):
    """Against 60 digits; relative to the larger of the two differences that make it up in float64."""
    concentrations = [[a, 2 * a, 0.5 * a], [b, b, 3 * b]]
    log_a, log_b = (torch.tensor(x, dtype=torch.float64).log().expand(1, 1, 3) for x in concentrations)
    with mpmath.workdps(60):
        (qs, ps) = ([mpmath.mpf(x) for x in (c.exp().flatten().tolist())] for c in (log_a, log_b))
        expected = mpmath.loggamma(sum(qs)) - mpmath.loggamma(sum(ps))
        for q, p in zip(qs, ps, strict=True):
            expected += mpmath.loggamma(p) - mpmath.loggamma(q) + (q - p) * (mpmath.psi(0, q) - mpmath.psi(0, sum(qs)))
    assert kl(log_a, log_b).item() == pytest.approx(float(expected), rel=1e-9, abs=1e-9)
    # in float32 only the inputs are rounded
    assert kl(log_a.float(), log_b.float()).item() == pytest.approx(float(expected), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("make", [scores, lambda: scores(spread=5).clamp(-10, 10), lambda: torch.full((1, 1, 5), 10.0)])
def test_kl_of_equals_is_zero(make):
    log_a = make().requires_grad_()
    value = kl(log_a, log_a)
    assert value.item() == pytest.approx(0, abs=1e-12)
    (gradient,) = torch.autograd.grad(value, log_a)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient))


def test_kl_matches_monte_carlo():
    layout = Dense(MASK)
    q, p = (DirichletWeights(scores(), layout=layout) for _ in range(2))
    draws = q.rsample((20_000,))
    assert_mean(q.log_prob(draws) - p.log_prob(draws), kl_divergence(q, p))


@pytest.mark.parametrize("mask", [None, MASK], ids=["full", "masked"])
def test_gradients(mask):
    inputs = [scores().requires_grad_() for _ in range(2)]
    layout = Dense(mask)
    value = layout.log_softmax(scores())
    assert torch.autograd.gradcheck(lambda a, b: kl(a, b, layout=layout), inputs)
    for function in (
        lambda a: DirichletWeights(a, layout=layout).log_prob(value),
        lambda a: DirichletWeights(a, layout=layout).entropy(),
        lambda a: DirichletWeights(a, layout=layout).mean_weights,
    ):
        assert torch.autograd.gradcheck(function, inputs[0])


@pytest.mark.parametrize("other", [GammaWeights, WeibullWeights])
@pytest.mark.parametrize("swap", [False, True])
def test_other_kinds_have_no_kl(other, swap):
    q, p = DirichletWeights(scores()), other(scores(), torch.tensor(1.0))
    q, p = (p, q) if swap else (q, p)
    with pytest.raises(NotImplementedError, match=f"{type(q).__name__} and q type {type(p).__name__}"):
        kl_divergence(q, p)


def test_other_shapes_have_no_kl():
    with pytest.raises(ValueError, match=r"event shapes \(2, 3, 4\) and \(2, 3, 5\)"):
        kl_divergence(DirichletWeights(scores()), DirichletWeights(scores(2, 3, 5)))


# masks and shapes


def test_masked_keys_take_part_in_nothing():
    log_a, log_b = scores().requires_grad_(), scores().requires_grad_()
    layout = Dense(MASK)
    value = layout.log_softmax(scores())
    hidden = ~MASK.expand(HEADS, QUERIES, KEYS)

    def everything(a, b, v):
        q, p = DirichletWeights(a, layout=layout), DirichletWeights(b, layout=layout)
        torch.manual_seed(0)
        return kl(a, b, layout=layout), q.log_prob(v) - p.log_prob(v), q.entropy(), q.rsample()[~hidden]

    expected = everything(log_a, log_b, value)
    extreme = [x.masked_fill(hidden, fill) for x, fill in ((log_a, 500.0), (log_b, -500.0), (value, -50.0))]
    for found, wanted in zip(everything(*extreme), expected, strict=True):
        torch.testing.assert_close(found, wanted)
    q = DirichletWeights(log_a, layout=layout)
    weights = q.weights(q.rsample())
    assert (weights[hidden] == 0).all()
    assert (q.mean_weights[hidden] == 0).all()
    total = sum(x.sum() for x in expected) + weights.square().sum()
    for gradient in torch.autograd.grad(total, [log_a, log_b]):
        assert (gradient[hidden] == 0).all()
        assert gradient.isfinite().all()


@pytest.mark.parametrize("fill", [0.0, 500.0, -500.0])
def test_rows_without_keys_are_inert(fill):
    layout = Dense(torch.zeros(QUERIES, KEYS, dtype=torch.bool))
    log_a, log_b = (torch.full((HEADS, QUERIES, KEYS), fill, requires_grad=True) for _ in range(2))
    q, p = (DirichletWeights(x, layout=layout) for x in (log_a, log_b))
    value = q.rsample()
    terms = kl(log_a, log_b, layout=layout), q.log_prob(value) - p.log_prob(value), q.weights(value).sum()
    assert [term.item() for term in terms] == [0, 0, 0]
    for gradient in torch.autograd.grad(sum(terms), [log_a, log_b], allow_unused=True, materialize_grads=True):
        assert (gradient == 0).all()


def test_masked_keys_are_as_if_absent():
    mask = torch.tensor([True, False, True, True])
    log_a, log_b = scores(), scores()
    narrow = kl(log_a[..., mask], log_b[..., mask])
    torch.testing.assert_close(kl(log_a, log_b, layout=Dense(mask)), narrow)


@pytest.mark.parametrize("event_dim", [2, 3])
def test_shapes(event_dim):
    layout = Dense(event_dim=event_dim)
    d = DirichletWeights(scores(5, HEADS, QUERIES, KEYS), layout=layout)
    batch = (5, HEADS)[: 4 - event_dim]
    assert (d.batch_shape, len(d.event_shape)) == (batch, event_dim)
    plated = d.expand((7, *batch))
    value = plated.rsample((6,))
    assert value.shape == (6, 7, 5, HEADS, QUERIES, KEYS)
    assert value[0, 0].ne(value[0, 1]).any()
    assert plated.log_prob(value).shape == (6, 7, *batch)
    assert plated.entropy().shape == kl_divergence(plated, plated).shape == (7, *batch)
    torch.testing.assert_close(plated.log_prob(value), d.log_prob(value))


def test_unexpanded_concentration():
    full = torch.Size([5, HEADS, QUERIES, KEYS])
    mask = torch.rand(5, 1, QUERIES, KEYS) < 0.7
    for log_a, log_b in ((scores(HEADS, 1, KEYS), scores(KEYS)), (scores(1), scores(5, 1, QUERIES, 1))):
        for layout in (Dense(), Dense(mask)):
            small = kl(log_a, log_b, layout=layout, shape=full)
            torch.testing.assert_close(small, kl(log_a.expand(full), log_b.expand(full), layout=layout))
    q = DirichletWeights(scores(KEYS), layout=Dense(mask), shape=full)
    value = q.rsample()
    assert value.shape == full
    torch.testing.assert_close(
        q.log_prob(value), DirichletWeights(q.log_concentration.expand(full), layout=Dense(mask)).log_prob(value)
    )


def test_bad_input():
    graph = EdgeList.from_edge_index(torch.tensor([[0, 1], [1, 1]]), num_nodes=2)
    with pytest.raises(ValueError, match="layout is a EdgeList, expected Dense"):
        DirichletWeights(torch.zeros(2, 1), layout=graph)
    with pytest.raises(ValueError, match="fewer dimensions than the 3 event"):
        DirichletWeights(torch.zeros(2, 4))
    with pytest.raises(ValueError, match="sample it through LatentAttention"):
        _ = DirichletWeights(scores()).scores


# precision and copies


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_computes_in_float32(half):
    log_a, log_b = scores().to(half), scores().to(half)
    d = DirichletWeights(log_a)
    value = d.rsample()
    results = value, d.log_prob(value), d.entropy(), d.mean_weights, d.mean, d.variance, kl(log_a, log_b)
    assert {result.dtype for result in results} == {torch.float32}
    torch.testing.assert_close(kl(log_a, log_b), kl(log_a.float(), log_b.float()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("score", [-10.0, 10.0])
def test_draws_and_gradients_are_finite_at_the_clamp(dtype, score):
    log_a = torch.full((HEADS, 1000, KEYS), score, dtype=dtype, requires_grad=True)
    log_b = torch.full((HEADS, 1000, KEYS), -score, dtype=dtype, requires_grad=True)
    q, p = DirichletWeights(log_a), DirichletWeights(log_b)
    value = q.rsample()
    assert value.isfinite().all()
    torch.testing.assert_close(q.weights(value).sum(-1), torch.ones(HEADS, 1000))
    loss = kl_divergence(q, p) + q.weights(value).square().sum() + q.log_prob(value) - p.log_prob(value)
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(loss, [log_a, log_b]))


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda d: pickle.loads(pickle.dumps(d))], ids=["deepcopy", "pickle"])
def test_copies(clone):
    d = DirichletWeights(scores(), layout=Dense(MASK)).expand((5,))
    twin, value = clone(d), d.rsample()
    assert twin.shape() == d.shape()
    assert torch.equal(twin.log_prob(value), d.log_prob(value))
    assert torch.equal(twin.weights(value), d.weights(value))
    assert (kl_divergence(twin, d) == 0).all()
