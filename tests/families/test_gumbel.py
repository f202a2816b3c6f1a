"""Gumbel-softmax: with two keys the relaxed weight is a logistic variable, so quadrature gives its exact objective."""

import copy
import functools
import math
import pickle

import pyro
import pytest
import torch
from scipy import stats
from torch.distributions import kl_divergence

from pyro_attention import (
    Amortised,
    AttentionELBO,
    AttentionGuide,
    Categorical,
    Dense,
    GumbelSoftmax,
    ScoreFunctionELBO,
    sample_posterior,
)
from pyro_attention.families.alignment import AlignmentWeights, CategoricalAlignment
from pyro_attention.families.gumbel import RelaxedAlignment
from pyro_attention.objectives.enumeration import AlignmentELBO
from tests.families.test_alignment import BATCH, KEYS, QUERIES, Network, Toy, make_problem
from tests.helpers import assert_mean

MASK = torch.tensor([[True, True, True, True], [True, True, True, False]])


def relaxed(scores, *, temperature, layout=None):
    return RelaxedAlignment(CategoricalAlignment(scores, layout=layout), temperature=temperature)


def two_keys():
    """The toy problem with two keys of which a query may choose; the others are padding."""
    keys, queries, labels, _, real = make_problem()
    return keys, queries, labels, torch.tensor([[True, True, False, False]] * BATCH), real


def make_modules():
    torch.manual_seed(1)
    return Toy(), Network()


def two_logits(scores):
    return scores.squeeze(-2)[..., :2].log_softmax(-1)


def relaxed_elbo(model, problem, log_q, temperature):
    """E[log f(relaxed weights)] - KL(q || p) of the real queries: W_1 = sigmoid((log q_1 / q_2 + L) / tau)."""
    log_p, log_q = two_logits(model.scores(problem[0], problem[1])), two_logits(log_q)
    noise = torch.arange(-30, 30, temperature / 20, dtype=torch.float64)[:, None, None]
    density = torch.sigmoid(noise) * torch.sigmoid(-noise) * (noise[1] - noise[0])
    first = ((log_q[..., 0] - log_q[..., 1] + noise) / temperature).sigmoid()
    logits = model.out(torch.stack([first, 1 - first], -1) @ problem[0][:, :2]).log_softmax(-1)
    likelihood = logits.gather(-1, problem[2][..., None].expand(*first.shape, 1)).squeeze(-1)
    expected = (density * likelihood).sum(0)
    return (expected - (log_q.exp() * (log_q - log_p)).sum(-1))[problem[-1]].sum()


def flat(loss, parameters):
    found = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    return torch.cat([gradient.flatten() for gradient in found])


def value_and_gradient(elbo, parameters):
    return torch.cat([elbo.detach()[None], flat(elbo, parameters)])


@functools.cache
def exact_and_sampled(posterior, temperature):
    """Exact relaxed objective and gradient, and draws of their estimates."""
    problem, (model, network) = two_keys(), make_modules()
    if posterior == "network":
        parameters, family = (
            [*model.parameters(), *network.parameters()],
            Amortised(network, GumbelSoftmax(temperature)),
        )
        log_q = network(*problem)
    else:
        parameters, family = list(model.parameters()), GumbelSoftmax(temperature)
        log_q = model.scores(problem[0], problem[1])
    exact = value_and_gradient(relaxed_elbo(model, problem, log_q, temperature), parameters)
    objective, guide, draws = AttentionELBO(), AttentionGuide(model, family), []
    with pyro.validation_enabled(False):
        for _ in range(500):
            draws.append(value_and_gradient(-objective.differentiable_loss(model, guide, *problem), parameters))
    return exact, torch.stack(draws)


@pytest.mark.parametrize("posterior", ["prior", "network"])
@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_the_relaxed_objective_and_its_gradient_are_unbiased(posterior, temperature):
    exact, draws = exact_and_sampled(posterior, temperature)
    error = draws.std(0) / len(draws) ** 0.5
    varies = error > 1e-12
    assert varies[0]
    z = (draws.mean(0) - exact)[varies] / error[varies]
    # a maximum over many coordinates: 4.5 standard errors
    assert z.abs().max() < 4.5
    assert z.square().mean() < 2
    torch.testing.assert_close(draws.mean(0)[~varies], exact[~varies])
    assert (exact[varies].abs() > 4.5 * error[varies]).double().mean() > 0.3


def test_the_relaxed_objective_tends_to_the_enumerated_one():
    """Without any noise: both the ELBO and its gradient; the bias halves with the temperature."""
    problem, (model, network) = two_keys(), make_modules()
    parameters = [*model.parameters(), *network.parameters()]
    guide = AttentionGuide(model, Amortised(network, Categorical()))
    enumerated = AlignmentELBO(max_plate_nesting=2).differentiable_loss(model, guide, *problem)
    limit = value_and_gradient(-enumerated, parameters)
    near, half, quarter = (
        value_and_gradient(relaxed_elbo(model, problem, network(*problem), temperature), parameters) - limit
        for temperature in (0.2, 0.1, 0.05)
    )
    assert 1.8 < near.norm() / half.norm() < 2.6
    assert 1.8 < half.norm() / quarter.norm() < 2.6
    assert quarter.norm() < 1e-3 * limit.norm()


# the distribution


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_two_weights_are_a_logistic_variable(temperature):
    logits = torch.tensor([[[0.4, -0.7]]], dtype=torch.float64)
    weights = relaxed(logits, temperature=temperature).rsample((20_000,)).flatten(0, -2)
    # by logs, where a weight rounds to one
    log_ratio = temperature * (weights[:, 0].clamp(min=1e-300).log() - weights[:, 1].clamp(min=1e-300).log())
    inside = (log_ratio - 1.1).abs() < 3
    cut = stats.logistic.cdf([-3, 3])
    uniform = (stats.logistic.cdf((log_ratio[inside] - 1.1).numpy()) - cut[0]) / (cut[1] - cut[0])
    assert stats.kstest(uniform, "uniform").pvalue > 1e-4
    assert_mean(inside.double(), cut[1] - cut[0])


@pytest.mark.parametrize("temperature", [0.05, 0.7])
def test_draws_are_weights_whose_largest_is_categorical(temperature):
    torch.manual_seed(0)
    q = relaxed(torch.randn(2, 1, 4), temperature=temperature, layout=Dense(MASK[:, None], event_dim=2))
    weights = q.rsample((20_000,))
    assert weights.shape == (20_000, 2, 1, 4)
    assert (weights[..., ~MASK[:, None].any(0)] >= 0).all()
    assert (weights[:, ~MASK[:, None]] == 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(20_000, 2, 1))
    largest = torch.nn.functional.one_hot(weights.argmax(-1), 4).double()
    assert_mean(largest[:, MASK[:, None]], q.mean_weights[MASK[:, None]])
    # as in torch's own class
    torch_draws = pyro.distributions.RelaxedOneHotCategorical(
        torch.tensor(temperature), logits=q.alignment.logits[0]
    ).sample((20_000,))
    for moment in (lambda x: x, torch.square):
        a, b = moment(weights[:, 0, 0].double()), moment(torch_draws.double())
        error = ((a.var(0) + b.var(0)) / 20_000).sqrt()
        assert ((a.mean(0) - b.mean(0)).abs() < 4.5 * error).all()


def test_its_density_and_kl_are_the_categorical_ones():
    scores, layout = torch.randn(2, 1, 4, dtype=torch.float64), Dense(MASK[:, None], event_dim=2)
    q, plain = relaxed(scores, temperature=0.3, layout=layout), CategoricalAlignment(scores, layout=layout)
    p = CategoricalAlignment(torch.randn(2, 1, 4, dtype=torch.float64), layout=layout)
    weights_prior = AlignmentWeights(p)
    torch.testing.assert_close(kl_divergence(q, weights_prior), kl_divergence(plain, p))
    torch.testing.assert_close(q.entropy(), plain.entropy())
    weights = q.rsample((5,))
    torch.testing.assert_close(q.log_prob(weights), plain.log_prob(weights))
    probs = plain.probs
    expected = torch.stack([(probs[i, m] * (probs[i, m] / p.probs[i, m]).log()).sum() for i, m in enumerate(MASK)])
    torch.testing.assert_close(kl_divergence(q, weights_prior), expected)


def test_draws_lie_in_the_declared_support_and_shape():
    mask = torch.cat([MASK, torch.zeros(1, 4, dtype=torch.bool)])[:, None]  # the last query has no key
    layout = Dense(mask, event_dim=2)
    q = relaxed(torch.randn(3, 1, 4), temperature=0.3, layout=layout)
    draws = q.rsample((5,))
    assert (q.batch_shape, q.event_shape) == ((3,), (1, 4))
    assert draws.shape == q.shape((5,))
    assert q.support.check(draws).all()
    assert q.log_prob(draws).shape == (5, 3)
    q = relaxed(torch.randn(3, 1, 4), temperature=0.3)
    with pytest.raises(ValueError, match="within the support"):
        q.log_prob(torch.full((3, 1, 4), 0.5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("temperature", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("spread", [1.0, 50.0])
def test_gradients_are_finite_and_masked_ones_zero(dtype, temperature, spread):
    """Torch's KL has gradients of NaN where keys of -inf are masked; here they are finite numbers."""
    mask = torch.cat([MASK, torch.zeros(1, 4, dtype=torch.bool)])[:, None]
    inputs = [(spread * torch.rand(3, 1, 4, dtype=dtype)).requires_grad_() for _ in range(2)]
    layout = Dense(mask, event_dim=2)
    q = relaxed(layout.log_softmax(inputs[0]), temperature=temperature, layout=layout)
    p = AlignmentWeights(CategoricalAlignment(layout.log_softmax(inputs[1]), layout=layout))
    kl, weights = kl_divergence(q, p), q.rsample()
    assert kl.isfinite().all()
    assert kl[2] == 0
    assert (weights[~mask] == 0).all()
    loss = kl + (weights * torch.randn(4, dtype=dtype)).sum((-1, -2)) + p.log_prob(weights)
    for gradient in torch.autograd.grad(loss.sum(), inputs):
        assert gradient.isfinite().all()
        assert (gradient[~mask] == 0).all()


def test_gradcheck():
    layout = Dense(MASK[:, None], event_dim=2)

    def draw(scores):
        torch.manual_seed(0)
        return relaxed(scores, temperature=0.5, layout=layout).rsample((3,))

    def kl(a, b):
        q = relaxed(a, temperature=0.5, layout=layout)
        return kl_divergence(q, AlignmentWeights(CategoricalAlignment(b, layout=layout)))

    inputs = [torch.randn(2, 1, 4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradcheck(draw, inputs[0])
    assert torch.autograd.gradcheck(kl, inputs)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_computes_in_float32(half):
    scores = torch.randn(2, 1, 4).to(half)
    q = relaxed(scores, temperature=0.1)
    torch.manual_seed(0)
    weights = q.rsample()
    torch.manual_seed(0)
    torch.testing.assert_close(weights, relaxed(scores.float(), temperature=0.1).rsample())
    assert weights.dtype == q.log_prob(weights).dtype == torch.float32
    assert len(q.rsample((4000,)).unique()) > 20_000  # bfloat16 has no more than 16 thousand numbers in [0, 1]


def test_expanded_and_copied():
    q = relaxed(torch.randn(2, 1, 4), temperature=0.3, layout=Dense(MASK[:, None], event_dim=2))
    plated = q.expand([5, 2])
    weights = plated.rsample((3,))
    assert weights.shape == (3, 5, 2, 1, 4)
    assert weights[0, 0].ne(weights[0, 1]).any()
    for twin in (copy.deepcopy(plated), pickle.loads(pickle.dumps(plated))):
        torch.manual_seed(0)
        one = twin.rsample()
        torch.manual_seed(0)
        assert torch.equal(one, plated.rsample())
    assert not q.sample().requires_grad
    assert q.sample().shape == (2, 1, 4)
    assert plated.weights(weights) is weights


# as a family


def test_plates_give_every_query_a_draw_of_its_own():
    attention = Toy().attention

    def model():
        with pyro.plate("queries", 5):
            return attention(torch.zeros(1, 1, 3), torch.ones(1, 3, 2), layout=Dense(event_dim=2)).weights

    weights = AttentionGuide(model, GumbelSoftmax()).run().output
    assert weights.shape == (5, 1, 3)
    assert len(weights.unique(dim=0)) == 5


def test_vectorised_particles_are_looped_ones():
    problem, (model, network) = two_keys(), make_modules()
    guide = AttentionGuide(model, Amortised(network, GumbelSoftmax(0.5)))
    elbo = AttentionELBO(num_particles=50, vectorize_particles=True, max_plate_nesting=2)
    losses = torch.tensor([-elbo.loss(model, guide, *problem) for _ in range(40)])
    assert_mean(losses, relaxed_elbo(model, problem, network(*problem), 0.5).item())


def test_the_score_function_objective_leaves_it_alone():
    """Its draws are reparameterised: a score function on top would count the gradient twice."""
    problem, (model, network) = make_problem(), make_modules()
    guide = AttentionGuide(model, Amortised(network, GumbelSoftmax(0.5)))
    gradients = []
    for elbo in (AttentionELBO(), ScoreFunctionELBO(baseline="none")):
        torch.manual_seed(0)
        gradients.append(flat(elbo.differentiable_loss(model, guide, *problem), list(network.parameters())))
    torch.testing.assert_close(*gradients)


def test_a_query_without_keys():
    problem = list(make_problem())
    problem[3] = problem[3].clone()
    problem[3][1] = False
    model, network = make_modules()
    for family in (GumbelSoftmax(), Amortised(network, GumbelSoftmax())):
        guide = AttentionGuide(model, family)
        loss = AttentionELBO().differentiable_loss(model, guide, *problem)
        assert loss.isfinite()
        assert flat(loss, [*model.parameters(), *network.parameters()]).isfinite().all()
        assert (sample_posterior(guide, *problem, num_samples=2)["alignment"][:, 1] == 0).all()


def test_trains_by_svi():
    problem, (model, network) = make_problem(), make_modules()
    guide = AttentionGuide(model, Amortised(network, GumbelSoftmax()))
    before = [parameter.clone() for parameter in network.parameters()]
    svi = pyro.infer.SVI(model, guide, pyro.optim.Adam({"lr": 0.02}), AttentionELBO())
    losses = [svi.step(*problem) for _ in range(80)]
    assert sum(losses[-20:]) < 0.9 * sum(losses[:20])
    assert not any(torch.equal(a, b) for a, b in zip(before[::2], list(network.parameters())[::2], strict=True))


def test_posterior_samples():
    problem, (model, network) = make_problem(), make_modules()
    guide = AttentionGuide(model, Amortised(network, GumbelSoftmax()))
    mask = problem[3][:, None, None].expand(BATCH, QUERIES, 1, KEYS)
    expected = network(*problem).masked_fill(~mask, -torch.inf).softmax(-1).detach()
    for chunk_size in (1, 250):
        draws = sample_posterior(guide, *problem, num_samples=500, chunk_size=chunk_size, seed=0)["alignment"]
        assert draws.shape == (500, BATCH, QUERIES, 1, KEYS)
        assert (draws[:, ~mask] == 0).all()
        torch.testing.assert_close(draws.sum(-1), torch.ones(500, BATCH, QUERIES, 1, dtype=torch.float64))
        # the largest weight is that of a categorical draw
        frequency = torch.nn.functional.one_hot(draws.argmax(-1), KEYS).double().mean(0)
        error = (expected * (1 - expected) / 500).sqrt()
        assert ((frequency - expected).abs() < 4.5 * error + 2 / 500).all()
    certain = sample_posterior(guide, *problem, num_samples=1, noise="none")["alignment"]
    torch.testing.assert_close(certain[0], expected)


def test_pickled_guides():
    model, network = make_modules()
    guide = AttentionGuide(model, Amortised(network, GumbelSoftmax(0.25)))
    twin = pickle.loads(pickle.dumps(guide))
    assert twin.families[0].family.temperature == 0.25


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, math.inf])
def test_bad_input(temperature):
    with pytest.raises(ValueError, match=f"temperature is {temperature}, expected a positive"):
        GumbelSoftmax(temperature)
    with pytest.raises(ValueError, match=f"temperature is {temperature}, expected a positive"):
        relaxed(torch.zeros(1, 2), temperature=temperature)
