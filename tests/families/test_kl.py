"""Closed-form KL: against quadrature, Monte Carlo, gradcheck, the paper's formula; masks and broadcasting."""

import math
from dataclasses import replace

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from torch.distributions import Gamma, Weibull, kl_divergence

from pyro_attention import Dense, EdgeList, Softmax
from pyro_attention.families.gamma import GammaWeights
from pyro_attention.families.lognormal import LogNormalWeights
from pyro_attention.families.weibull import WeibullWeights
from tests.helpers import assert_mean
from tests.quadrature import log_density, log_posterior, reference_kl

SPREADS = (0.1, 0.5, 1.0, 3.0, 10.0, 100.0)
PRIORS = [("gamma", a, b) for a in (1e-4, 0.01, 0.3, 1.0, 7.0, 50.0) for b in (0.2, 3.0)]
PRIORS += [("lognormal", m, s) for m in (-2.0, 1.5) for s in (0.1, 1.0, 10.0, 100.0)]


def double(value):
    return torch.tensor(value, dtype=torch.float64)


def posterior(family, spread, log_mean):
    """Distribution with ``log E[S] = log_mean``, where E[S] of a wide lognormal stays a number."""
    spread, log_mean = double(spread).expand(1, 1, 1), double(log_mean)
    if family == "weibull":
        return WeibullWeights(log_mean - torch.lgamma(1 + 1 / spread), spread)
    if family == "lognormal":
        return LogNormalWeights(log_mean - spread**2 / 2, spread)
    return GammaWeights(spread.log(), spread.log() - log_mean)


def prior(family, first, second):
    first, second = double(first).expand(1, 1, 1), double(second)
    return GammaWeights(first.log(), second.log()) if family == "gamma" else LogNormalWeights(first, second)


@pytest.mark.parametrize("p", PRIORS, ids=str)
@pytest.mark.parametrize("family", ["weibull", "lognormal", "gamma"])
def test_closed_form_matches_quadrature(family, p):
    for spread in SPREADS:
        for log_mean in (-4.0, 0.0, 2.0):
            q = (family, spread, log_mean)
            expected = reference_kl(q, p)
            assert kl_divergence(posterior(*q), prior(*p)).item() == pytest.approx(expected, rel=1e-6, abs=1e-9), q
            assert expected > -1e-9


@pytest.mark.parametrize("p", [("gamma", 0.2, 1.0), ("gamma", 3.0, 2.0), ("lognormal", -0.5, 0.7)], ids=str)
@pytest.mark.parametrize(
    "q", [("weibull", 0.3), ("weibull", 5.0), ("lognormal", 0.2), ("lognormal", 2.0), ("gamma", 0.3), ("gamma", 8.0)]
)
def test_closed_form_matches_monte_carlo(q, p):
    family, spread = q
    weights = posterior(family, spread, -1.0)
    x = weights.rsample((400_000,)).flatten().numpy()
    difference = log_posterior(family, spread, -1.0)(x) - log_density(*p)(x)
    assert_mean(torch.from_numpy(difference), kl_divergence(weights, prior(*p)).item())


BUILD = {
    "weibull": lambda x, y, **options: WeibullWeights(x, y.exp(), **options),
    "lognormal": lambda x, y, **options: LogNormalWeights(x, y.exp(), **options),
    "gamma": lambda x, y, **options: GammaWeights(y, x, **options),
}
every_pair = pytest.mark.parametrize(("q", "p"), [(q, p) for q in BUILD for p in ("gamma", "lognormal")])
BATCH, EVENT = torch.Size([3]), torch.Size([2, 4, 5])
# A posterior's parameters, then a prior's: one a head, one a key, one for all.
SHAPES = [(*BATCH, *EVENT), (2, 1, 1), (3, 2, 1, 5), ()]


def parameters(*shapes):
    return [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes]


def layout():
    """Some entries masked; in batch element 1, every key of query 2."""
    mask = torch.rand(3, 1, 4, 5) < 0.7
    mask[1, :, 2] = False
    return Dense(mask)


def kl(q, p, inputs, **options):
    options = {"shape": BATCH + EVENT, **options}
    return kl_divergence(BUILD[q](*inputs[:2], **options), BUILD[p](*inputs[2:], **options))


@every_pair
def test_gradient(q, p):
    masked = layout()
    assert torch.autograd.gradcheck(lambda *inputs: kl(q, p, inputs, layout=masked), parameters(*SHAPES))


@every_pair
def test_unexpanded_parameters_give_the_same(q, p):
    inputs, masked = parameters(*SHAPES), layout()
    expanded = [value.expand(BATCH + EVENT) for value in inputs]
    for options in ({}, {"layout": masked}):
        torch.testing.assert_close(kl(q, p, inputs, **options), kl(q, p, expanded, **options))


@every_pair
def test_sum_over_unmasked_entries(q, p):
    inputs, masked = parameters(*SHAPES), layout()
    # heads, queries and keys moved into the batch: one KL an entry
    entries = [value.expand(BATCH + EVENT)[..., None, None, None] for value in inputs]
    each = kl(q, p, entries, shape=BATCH + EVENT + (1, 1, 1))
    assert each.shape == BATCH + EVENT
    torch.testing.assert_close(kl(q, p, inputs), each.sum((-3, -2, -1)))
    torch.testing.assert_close(kl(q, p, inputs, layout=masked), (each * masked.mask).sum((-3, -2, -1)))


@every_pair
def test_masked_entries_add_nothing(q, p):
    inputs, masked = parameters(*[BATCH + EVENT] * 4), layout()
    inputs[0].data[~masked.mask.expand(BATCH + EVENT)] = 30  # would dominate
    kl(q, p, inputs, layout=masked).sum().backward()
    for value in inputs:
        assert (value.grad[~masked.mask.expand(BATCH + EVENT)] == 0).all()
        assert value.grad[masked.mask.expand(BATCH + EVENT)].abs().min() > 0
    value = kl(q, p, inputs, layout=masked)
    inputs[0].data[~masked.mask.expand(BATCH + EVENT)] = 1e3  # E[S] is infinite
    assert torch.equal(kl(q, p, inputs, layout=masked), value)
    nothing = kl(q, p, inputs, layout=Dense(torch.zeros(5, dtype=torch.bool)))
    assert nothing.tolist() == [0, 0, 0]


@every_pair
def test_plates_expand(q, p):
    inputs = parameters(*SHAPES)
    options = {"shape": BATCH + EVENT, "layout": layout()}
    one = kl_divergence(left := BUILD[q](*inputs[:2], **options), right := BUILD[p](*inputs[2:], **options))
    more = kl_divergence(left.expand((7, 3)), right.expand((7, 3)))
    torch.testing.assert_close(more, one.expand(7, 3))


KEY_MASK = torch.tensor([True, False, True, True, True])
MASKS = {
    "none": None,
    "keys": KEY_MASK,
    "queries": torch.tensor([True, False, True, True]).unsqueeze(-1),
    "both": layout().mask,
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("shape", [(2, 1, 5), (3, 1, 1, 5), (2, 4, 1), (4, 5), (5,), (), (3, 2, 4, 5)])
def test_sum_of_products(shape, mask):
    """Whatever the factor lacks, the sum is that of the expanded product."""
    d = LogNormalWeights(torch.zeros(BATCH + EVENT), torch.ones(()), layout=Dense(mask))
    factor = torch.randn(shape, dtype=torch.float64)
    for term in parameters(BATCH + EVENT, (2, 1, 5), (5,), ()):
        torch.testing.assert_close(d.sum_products(term, factor), d.sum_event((term * factor).expand(BATCH + EVENT)))


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("event_dim", [2, 3])
def test_known_total_of_normalised_scores(mask, event_dim):
    scores, log_concentration = parameters(BATCH + EVENT, (2, 1, 5) if event_dim == 3 else (4, 5))
    where = Dense(mask, event_dim=event_dim)
    entered = where.log_softmax(scores)
    log_scale = entered - torch.lgamma(1 + 1 / double(3.0))
    p = GammaWeights(log_concentration, double(0.7).log(), layout=where, shape=scores.shape)
    p = p.proposing(entered, Softmax(), normalizes=True)
    results = []
    for known in (False, True):
        q = (
            p.matched(WeibullWeights, log_scale, double(3.0))
            if known
            else WeibullWeights(log_scale, double(3.0), layout=where)
        )
        assert (q.expected_total is not None) == known
        value = kl_divergence(q, p)
        results.append((value, *torch.autograd.grad(value.sum(), (scores, log_concentration), retain_graph=True)))
    assert results[0][0].shape == q.batch_shape
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("masked", [False, True])
def test_rows_of_an_edge_list(masked):
    """Target 3 has no in-edge, target 0 none that counts."""
    graph = EdgeList.from_edge_index(torch.tensor([[0, 1, 1, 3], [1, 1, 0, 2]]), num_nodes=4)
    if masked:
        graph = replace(graph, mask=torch.tensor([True, True, False, True]).unsqueeze(-1))
    assert graph.num_rows(torch.zeros(4, 2)) == 2 * (2 if masked else 3)
    assert graph.softmax(torch.randn(4, 2)).sum().item() == pytest.approx(graph.num_rows(torch.zeros(4, 2)).item())


@every_pair
def test_edge_list(q, p):
    graph = EdgeList.from_edge_index(torch.tensor([[0, 1, 1], [1, 1, 0]]), num_nodes=2, add_self_loops=True)
    inputs = parameters((5, 2), (2,), (5, 1), ())
    total = kl(q, p, inputs, layout=graph, shape=torch.Size([5, 2]))
    each = kl(q, p, [v.expand(5, 2)[..., None, None, None] for v in inputs], shape=torch.Size([5, 2, 1, 1, 1]))
    torch.testing.assert_close(total, each[[0, 2, 3, 4]].sum())  # edge 1 was a self loop and is replaced


def test_different_events_are_refused():
    with pytest.raises(ValueError, match=r"event shapes \(1, 1, 2\) and \(1, 1, 3\)"):
        kl_divergence(*(GammaWeights(torch.zeros(1, 1, n), torch.tensor(0.0)) for n in (2, 3)))


def test_weibull_is_no_prior():
    with pytest.raises(NotImplementedError, match="WeibullWeights has no closed-form"):
        kl_divergence(posterior("gamma", 1.0, 0.0), posterior("weibull", 1.0, 0.0))


def paper(k, scale, a, b):
    """Fan et al. (2020), section 3.2."""
    g = np.euler_gamma
    terms = g * a / k, -a * math.log(scale), math.log(k), b * scale * math.gamma(1 + 1 / k)
    return sum(terms) - g - 1 - a * math.log(b) + math.lgamma(a)


@pytest.mark.parametrize(("k", "scale", "a", "b"), [(1.0, 1.0, 1.0, 1.0), (2.0, 0.5, 0.3, 4.0), (10.0, 3.0, 5.0, 0.7)])
@pytest.mark.parametrize("module", [torch.distributions, dist], ids=["torch", "pyro"])
def test_textbook_pair(module, k, scale, a, b):
    expected = paper(k, scale, a, b)
    q, p = module.Weibull(double(scale), double(k)), module.Gamma(double(a), double(b))
    assert kl_divergence(q, p).item() == pytest.approx(expected, abs=1e-12)
    log_q = WeibullWeights(double(scale).log().expand(1, 1, 1), double(k))
    assert kl_divergence(log_q, prior("gamma", a, b)).item() == pytest.approx(expected, abs=1e-12)


def test_textbook_pair_mixes_torch_and_pyro():
    q, p = Weibull(double(2.0), double(3.0)), dist.Gamma(double(0.5), double(1.0))
    assert kl_divergence(q, p).item() == pytest.approx(paper(3.0, 2.0, 0.5, 1.0), abs=1e-12)


def test_textbook_pair_gradient():
    inputs = [value.detach().exp().requires_grad_() for value in parameters((3,), (3,), (), (3,))]
    assert torch.autograd.gradcheck(lambda s, k, a, b: kl_divergence(Weibull(s, k), Gamma(a, b)), inputs)


def test_textbook_pair_inside_pyro_wrappers():
    q, p = dist.Weibull(double([0.5, 1.0, 2.0]), double(3.0)), dist.Gamma(double(0.5), double([1.0, 2.0, 3.0]))
    each = kl_divergence(q, p)
    mask = torch.tensor([True, False, True])
    torch.testing.assert_close(kl_divergence(q.to_event(1), p.to_event(1)), each.sum())
    torch.testing.assert_close(kl_divergence(q.mask(mask), p.mask(mask)), each * mask)
    torch.testing.assert_close(kl_divergence(q.mask(mask).to_event(1), p.mask(mask).to_event(1)), (each * mask).sum())
    torch.testing.assert_close(kl_divergence(q.expand((4, 3)), p.expand((4, 3))), each.expand(4, 3))
