"""Relaxed alignments, Dirichlet and Gumbel-softmax: with two keys quadrature over the first weight is exact."""

import pyro
import pytest
import torch
from torch import nn
from torch.distributions import Dirichlet as TorchDirichlet
from torch.distributions import kl_divergence

from pyro_attention import (
    AlignmentELBO,
    AlignmentPrior,
    Amortized,
    AttentionELBO,
    AttentionGuide,
    Categorical,
    Dense,
    Dirichlet,
    LatentAttention,
    ScoreFunctionELBO,
    predict,
    sample_posterior,
)
from pyro_attention.alignments.posteriors import GumbelSoftmax
from pyro_attention.families.dirichlet import DirichletPrior
from tests.helpers import assert_mean, flat
from tests.toy_alignments import BATCH, KEYS, QUERIES, Network, Toy, make_problem, without_keys

# log W_1 / W_2; the trapezoidal rule converges exponentially in the step, and the smallest concentration is 0.1
RATIO = torch.linspace(-300, 300, 4001, dtype=torch.float64)
LOGS = torch.stack([nn.functional.logsigmoid(RATIO), nn.functional.logsigmoid(-RATIO)], -1)[:, None, None]
TEMPERATURE = 0.5
FAMILIES = {"dirichlet": Dirichlet, "gumbel": lambda: GumbelSoftmax(TEMPERATURE)}
every_family = pytest.mark.parametrize("name", FAMILIES)


def two_keys():
    """The toy problem with two keys of which a query may choose; the others are padding."""
    keys, queries, labels, _, real = make_problem()
    return keys, queries, labels, torch.tensor([[True, True, False, False]] * BATCH), real


def make_modules(name):
    """Model and network; Dirichlet scores are small enough for the range of the quadrature."""
    torch.manual_seed(1)
    model, network = Toy(DirichletPrior if name == "dirichlet" else AlignmentPrior), Network()
    if name == "dirichlet":
        network.label.weight.data *= 0.3
    return model, network


def concentrations(scores):
    return scores.squeeze(-2)[..., :2].clamp(-10, 10).exp()


def log_density(concentration):
    """Of the log ratio of two Dirichlet weights: that of the first, times W_1 W_2."""
    normalizer = torch.lgamma(concentration.sum(-1)) - torch.lgamma(concentration).sum(-1)
    return normalizer + (concentration * LOGS).sum(-1) + (RATIO[1] - RATIO[0]).log()


def dirichlet_likelihood(model, problem):
    return model.log_likelihood(problem, LOGS.exp().expand(-1, BATCH, QUERIES, 2))


def exact_elbo(name, model, problem, log_q, temperature=TEMPERATURE):
    """E_q[log f] - KL(q || p), summed over the real queries, of a posterior with these scores."""
    log_p = model.scores(problem[0], problem[1])
    if name == "dirichlet":
        p, q = (TorchDirichlet(concentrations(scores)) for scores in (log_p, log_q))
        density = log_density(q.concentration).exp()
        torch.testing.assert_close(density.sum(0), torch.ones(BATCH, QUERIES, dtype=torch.float64))
        likelihood, kl = dirichlet_likelihood(model, problem), kl_divergence(q, p)
    else:  # W_1 = sigmoid((log q_1 / q_2 + L) / tau), L logistic
        log_p, log_q = (scores.squeeze(-2)[..., :2].log_softmax(-1) for scores in (log_p, log_q))
        noise = torch.arange(-30, 30, temperature / 20, dtype=torch.float64)[:, None, None]
        density = torch.sigmoid(noise) * torch.sigmoid(-noise) * (noise[1] - noise[0])
        first = ((log_q[..., 0] - log_q[..., 1] + noise) / temperature).sigmoid()
        likelihood = model.log_likelihood(problem, torch.stack([first, 1 - first], -1))
        kl = (log_q.exp() * (log_q - log_p)).sum(-1)
    return ((density * likelihood).sum(0) - kl)[problem[-1]].sum()


def value_and_gradient(elbo, parameters):
    return torch.cat([elbo.detach()[None], flat(elbo, parameters)])


@pytest.mark.parametrize(("name", "alone"), [("dirichlet", True), ("dirichlet", False), ("gumbel", False)])
def test_the_elbo_and_its_gradient_are_unbiased(name, alone):
    """Of the family alone, whose posterior is the prior, and of an inference network."""
    problem, (model, network) = two_keys(), make_modules(name)
    parameters, family = list(model.parameters()), FAMILIES[name]()
    log_q = model.scores(problem[0], problem[1])
    if not alone:
        parameters, family, log_q = [*parameters, *network.parameters()], Amortized(network, family), network(*problem)
    exact = value_and_gradient(exact_elbo(name, model, problem, log_q), parameters)
    objective, guide = AttentionELBO(), AttentionGuide(model, family)
    with pyro.validation_enabled(False):
        draws = torch.stack(
            [value_and_gradient(-objective.differentiable_loss(model, guide, *problem), parameters) for _ in range(400)]
        )
    error = draws.std(0) / len(draws) ** 0.5
    varies = error > 1e-12
    assert varies[0]
    z = (draws.mean(0) - exact)[varies] / error[varies]
    assert z.abs().max() < 4.5  # a maximum over many coordinates
    assert z.square().mean() < 2
    torch.testing.assert_close(draws.mean(0)[~varies], exact[~varies])
    # the estimate says something: many coordinates lie far from zero
    assert (exact[varies].abs() > 4.5 * error[varies]).double().mean() > 0.25
    elbo = AttentionELBO(num_particles=50, vectorize_particles=True, max_plate_nesting=2)
    losses = torch.tensor([-elbo.loss(model, guide, *problem) for _ in range(40)])
    assert_mean(losses, exact[0].item())


def test_the_dirichlet_elbo_bounds_the_evidence():
    """Evidence by quadrature under the prior."""
    problem, (model, network) = two_keys(), make_modules("dirichlet")
    log_p = model.scores(problem[0], problem[1])
    joint = log_density(concentrations(log_p)) + dirichlet_likelihood(model, problem)
    evidence = joint.logsumexp(0)[problem[-1]].sum()
    assert all(exact_elbo("dirichlet", model, problem, q) < evidence for q in (log_p, network(*problem)))


def test_the_relaxed_objective_tends_to_the_enumerated_one():
    """Without any noise: both the ELBO and its gradient; the bias halves with the temperature."""
    problem, (model, network) = two_keys(), make_modules("gumbel")
    parameters = [*model.parameters(), *network.parameters()]
    guide = AttentionGuide(model, Amortized(network, Categorical()))
    enumerated = AlignmentELBO(max_plate_nesting=2).differentiable_loss(model, guide, *problem)
    limit = value_and_gradient(-enumerated, parameters)
    near, half, quarter = (
        value_and_gradient(exact_elbo("gumbel", model, problem, network(*problem), temperature), parameters) - limit
        for temperature in (0.2, 0.1, 0.05)
    )
    assert 1.8 < near.norm() / half.norm() < 2.6
    assert 1.8 < half.norm() / quarter.norm() < 2.6
    assert quarter.norm() < 1e-3 * limit.norm()


def test_raw_scores_reach_the_dirichlet_prior_and_posterior():
    """Of the problem with four keys: the KL depends on the size of the scores, which are clamped."""
    problem, (model, network), elbo = make_problem(), make_modules("dirichlet"), AttentionELBO()
    guide = AttentionGuide(model, Amortized(network, Dirichlet()))
    for scale in (1.0, 3.0, 30.0):
        with torch.no_grad():
            network.map.bias += 1
            network.label.weight *= scale
        elbo.loss(model, guide, *problem)
        pair = network(*problem), model.scores(problem[0], problem[1])
        assert scale < 30 or pair[0].abs().max() > 10
        q, p = (scores.squeeze(-2).clamp(-10, 10).exp() for scores in pair)
        kl = sum(
            kl_divergence(*(TorchDirichlet(each[b, t, problem[3][b]]) for each in (q, p)))
            for b, t in problem[-1].nonzero().tolist()
        )
        torch.testing.assert_close(elbo.kl_record["alignment"], kl.detach())


def test_the_score_function_objective_leaves_relaxed_draws_alone():
    """They are reparameterised: a score function on top would count the gradient twice."""
    problem, (model, network) = make_problem(), make_modules("gumbel")
    guide = AttentionGuide(model, Amortized(network, GumbelSoftmax(0.5)))
    found = []
    for elbo in (AttentionELBO(), ScoreFunctionELBO(baseline="none")):
        torch.manual_seed(0)
        found.append(flat(elbo.differentiable_loss(model, guide, *problem), list(network.parameters())))
    torch.testing.assert_close(*found)


class Uncalled(nn.Module):
    def forward(self, *args):
        raise AssertionError("the network was called")


@pytest.mark.parametrize("name", [*FAMILIES, "categorical"])
def test_warm_start_is_the_family_alone(name):
    """So its ELBO is Jensen's bound: no KL, and the network aside."""
    problem, (model, _), make = make_problem(), make_modules(name), FAMILIES.get(name, Categorical)
    warm, found = Amortized(Uncalled(), make(), warm_start=True), []
    for family in (make(), warm):
        guide = AttentionGuide(model, family)
        torch.manual_seed(2)
        guide(*problem)
        prior, posterior = (trace.nodes["alignment"] for trace in guide.get_traces())
        found.append(posterior["value"])
        kl = kl_divergence(posterior["fn"], prior["fn"])
        torch.testing.assert_close(kl, torch.zeros(BATCH, QUERIES, dtype=torch.float64))
    assert torch.equal(*found)
    warm.warm_start = False
    with pytest.raises(AssertionError, match="the network was called"):
        AttentionGuide(model, warm)(*problem)


@every_family
def test_posterior_samples(name):
    problem, (model, network) = make_problem(), make_modules(name)
    guide = AttentionGuide(model, Amortized(network, FAMILIES[name]()))
    mask = problem[3][:, None, None].expand(BATCH, QUERIES, 1, KEYS)
    expected = network(*problem).masked_fill(~mask, -torch.inf).softmax(-1).detach()
    for chunk_size in (1, 100):
        draws = sample_posterior(guide, *problem, num_samples=300, chunk_size=chunk_size, seed=0)["alignment"]
        assert draws.shape == (300, BATCH, QUERIES, 1, KEYS)
        assert (draws[:, ~mask] == 0).all()
        torch.testing.assert_close(draws.sum(-1), torch.ones(300, BATCH, QUERIES, 1, dtype=torch.float64))
        if name == "dirichlet":
            assert_mean(draws[:, mask], expected[mask])
        else:  # the largest weight is that of a categorical draw
            frequency = nn.functional.one_hot(draws.argmax(-1), KEYS).double().mean(0)
            error = (expected * (1 - expected) / 300).sqrt()
            assert ((frequency - expected).abs() < 4.5 * error + 2 / 300).all()
    certain = sample_posterior(guide, *problem, num_samples=1, noise="none")["alignment"]
    torch.testing.assert_close(certain[0], expected)
    loss = AttentionELBO().differentiable_loss(model, guide, *without_keys(problem))
    assert loss.isfinite()
    assert flat(loss, [*model.parameters(), *network.parameters()]).isfinite().all()
    assert (sample_posterior(guide, *without_keys(problem), num_samples=2)["alignment"][:, 1] == 0).all()


def test_predictions_average_over_draws():
    scores, values = torch.tensor([[0.5, -0.5, 1.0]]), torch.randn(1, 3, 2)
    attention, layout = LatentAttention("attention", DirichletPrior()), Dense(event_dim=2)
    guide = AttentionGuide(lambda: attention(scores, values, layout=layout).context, Dirichlet())
    prediction = predict(guide, num_samples=300, keep_samples=True, seed=0)
    assert_mean(prediction.samples, scores.softmax(-1) @ values[0])


def test_dirichlet_self_attention():
    """Queries in the event, several heads, a prior that a caller's ``normalize_scores`` cannot change."""
    attention = LatentAttention("attention", DirichletPrior(), normalize_scores=True)
    scores, values = torch.randn(2, 3, 3, requires_grad=True), torch.randn(2, 3, 4)
    prior = attention.prior(attention.make_call(scores, layout=Dense()))
    assert prior.event_shape == (2, 3, 3)
    torch.testing.assert_close(prior.log_concentration, scores)
    guide = AttentionGuide(lambda: attention(scores, values).context, Dirichlet())
    (gradient,) = torch.autograd.grad(guide()["attention"].exp().square().sum(), scores)
    assert (gradient != 0).all()
