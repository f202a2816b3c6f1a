"""Relaxed alignments: the ELBO's value and gradient against quadrature over the weight of the first of two keys."""

import functools
import pickle

import pyro
import pytest
import torch
from torch import nn
from torch.distributions import Dirichlet as TorchDirichlet
from torch.distributions import kl_divergence

from pyro_attention import (
    AlignmentPrior,
    Amortised,
    AttentionELBO,
    AttentionGuide,
    Categorical,
    Dense,
    Dirichlet,
    DirichletPrior,
    GumbelSoftmax,
    LatentAttention,
    Weibull,
    check_model,
    predict,
    sample_posterior,
)
from pyro_attention.families.dirichlet import DirichletWeights
from tests.families.test_alignment import BATCH, KEYS, QUERIES, Network, Toy, make_problem
from tests.helpers import assert_mean

# log W_1 / W_2; the trapezoidal rule converges exponentially in the step, and the smallest concentration is 0.1
RATIO = torch.linspace(-300, 300, 4001, dtype=torch.float64)
LOGS = torch.stack([nn.functional.logsigmoid(RATIO), nn.functional.logsigmoid(-RATIO)], -1)


class Relaxed(Toy):
    """The toy with weights from the simplex in the place of a single key."""

    def __init__(self):
        super().__init__()
        self.attention = LatentAttention("alignment", DirichletPrior())

    def likelihood(self, problem, weights):
        """log f(y | weights of the two keys), ``[..., B, T]``, written out without the library."""
        logits = self.out(weights @ problem[0][:, :2]).log_softmax(-1)
        return logits.gather(-1, problem[2][..., None].expand(*logits.shape[:-1], 1)).squeeze(-1)


def two_keys():
    """The toy problem with two keys of which a query may choose; the others are padding."""
    keys, queries, labels, _, real = make_problem()
    return keys, queries, labels, torch.tensor([[True, True, False, False]] * BATCH), real


def make_modules():
    """Model and network, whose scores are small enough for the range of the quadrature."""
    torch.manual_seed(1)
    model, network = Relaxed(), Network()
    with torch.no_grad():
        network.label.weight.mul_(0.3)
    return model, network


def concentrations(scores):
    return scores.squeeze(-2)[..., :2].clamp(-10, 10).exp()


def exact_elbo(model, problem, log_q):
    """E_q[log f] - KL(q || p), summed over the real queries; scores of q, None for those of the prior."""
    log_p = model.scores(problem[0], problem[1])
    p, q = (TorchDirichlet(concentrations(scores)) for scores in (log_p, log_p if log_q is None else log_q))
    # density of the log ratio: that of the first weight, times W_1 W_2
    logs = LOGS[:, None, None]
    beta = q.concentration
    normalizer = torch.lgamma(beta.sum(-1)) - torch.lgamma(beta).sum(-1)
    density = (normalizer + (beta * logs).sum(-1)).exp() * (RATIO[1] - RATIO[0])
    torch.testing.assert_close(density.sum(0), torch.ones(BATCH, QUERIES, dtype=torch.float64))
    expected = (density * model.likelihood(problem, logs.exp().expand(-1, BATCH, QUERIES, 2))).sum(0)
    return (expected - kl_divergence(q, p))[problem[-1]].sum()


def flat(loss, parameters):
    found = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    return torch.cat([gradient.flatten() for gradient in found])


@functools.cache
def exact_and_sampled(posterior):
    """Exact ELBO and gradient, and draws of their estimates."""
    problem = two_keys()
    model, network = make_modules()
    parameters = [*model.parameters(), *(network.parameters() if posterior == "network" else ())]
    family = Amortised(network, Dirichlet()) if posterior == "network" else Dirichlet()
    elbo = exact_elbo(model, problem, network(*problem) if posterior == "network" else None)
    exact = torch.cat([elbo.detach()[None], flat(elbo, parameters)])
    objective, guide = AttentionELBO(), AttentionGuide(model, family)
    draws = []
    with pyro.validation_enabled(False):
        for _ in range(500):
            loss = -objective.differentiable_loss(model, guide, *problem)
            draws.append(torch.cat([loss.detach()[None], flat(loss, parameters)]))
    return exact, torch.stack(draws)


@pytest.mark.parametrize("posterior", ["prior", "network"])
def test_the_elbo_and_its_gradient_are_unbiased(posterior):
    exact, draws = exact_and_sampled(posterior)
    error = draws.std(0) / len(draws) ** 0.5
    varies = error > 1e-12
    assert varies[0]
    z = (draws.mean(0) - exact)[varies] / error[varies]
    # a maximum over many coordinates: 4.5 standard errors
    assert z.abs().max() < 4.5
    assert z.square().mean() < 2
    torch.testing.assert_close(draws.mean(0)[~varies], exact[~varies])
    # the estimate says something: most coordinates lie far from zero
    assert (exact[varies].abs() > 4.5 * error[varies]).double().mean() > 0.3


@pytest.mark.parametrize("posterior", ["prior", "network"])
def test_the_elbo_bounds_the_evidence(posterior):
    """Evidence by quadrature under the prior."""
    problem = two_keys()
    model, network = make_modules()
    p = concentrations(model.scores(problem[0], problem[1]))
    logs = LOGS[:, None, None]
    density = torch.lgamma(p.sum(-1)) - torch.lgamma(p).sum(-1) + (p * logs).sum(-1)
    joint = density + model.likelihood(problem, logs.exp().expand(-1, BATCH, QUERIES, 2))
    evidence = (joint.logsumexp(0) + (RATIO[1] - RATIO[0]).log())[problem[-1]].sum()
    assert exact_elbo(model, problem, network(*problem) if posterior == "network" else None) < evidence


def kl_by_torch(model, network, problem):
    """KL of every real query, over its own unmasked keys."""
    total = 0.0
    q, p = (s.squeeze(-2).clamp(-10, 10).exp() for s in (network(*problem), model.scores(problem[0], problem[1])))
    for b, t in problem[-1].nonzero().tolist():
        kept = problem[3][b]
        total = total + kl_divergence(TorchDirichlet(q[b, t, kept]), TorchDirichlet(p[b, t, kept]))
    return total


def test_raw_scores_reach_prior_and_posterior():
    """Of the problem with four keys: the KL depends on the size of the scores."""
    problem = make_problem()
    model, network = Relaxed(), Network()
    elbo = AttentionELBO()
    guide = AttentionGuide(model, Amortised(network, Dirichlet()))
    elbo.loss(model, guide, *problem)
    torch.testing.assert_close(elbo.kl_record["alignment"], kl_by_torch(model, network, problem).detach())
    assert model.calls == 1
    with torch.no_grad():
        network.map.bias += 1
        network.label.weight *= 3
    elbo.loss(model, guide, *problem)
    torch.testing.assert_close(elbo.kl_record["alignment"], kl_by_torch(model, network, problem).detach())


def test_the_prior_by_hand():
    layout = Dense(torch.tensor([True, True, False]), event_dim=2)
    attention = LatentAttention("attention", DirichletPrior())
    scores = torch.tensor([[2.0, 30.0, 7.0]])
    trace = pyro.poutine.trace(attention).get_trace(scores, torch.eye(3)[None], layout=layout)
    prior = trace.nodes["attention"]["fn"]
    assert isinstance(prior, DirichletWeights)
    assert prior.log_concentration.tolist() == [[2.0, 10.0, 0.0]]
    assert prior.scores.tolist() == [[2.0, 30.0, 0.0]]
    weights = trace.nodes["_RETURN"]["value"].weights
    assert weights[0, 2] == 0
    assert weights.sum().item() == pytest.approx(1)


def test_the_family_alone_is_the_prior():
    problem, model, elbo = make_problem(), Relaxed(), AttentionELBO()
    guide = AttentionGuide(model, Dirichlet())
    elbo.loss(model, guide, *problem)
    assert elbo.kl_record["alignment"].item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("amortised", [False, True])
def test_a_query_without_keys(amortised):
    problem = list(make_problem())
    problem[3] = problem[3].clone()
    problem[3][1] = False
    model, network = Relaxed(), Network()
    guide = AttentionGuide(model, Amortised(network, Dirichlet()) if amortised else Dirichlet())
    loss = AttentionELBO().differentiable_loss(model, guide, *problem)
    gradient = flat(loss, [*model.parameters(), *network.parameters()])
    assert loss.isfinite()
    assert gradient.isfinite().all()
    assert (sample_posterior(guide, *problem, num_samples=2)["alignment"][:, 1] == 0).all()


def test_vectorised_particles_are_looped_ones():
    problem = two_keys()
    model, network = make_modules()
    guide = AttentionGuide(model, Amortised(network, Dirichlet()))
    elbo = AttentionELBO(num_particles=50, vectorize_particles=True, max_plate_nesting=2)
    losses = torch.tensor([-elbo.loss(model, guide, *problem) for _ in range(40)])
    assert_mean(losses, exact_elbo(model, problem, network(*problem)).item())


def test_trains_by_svi_from_a_warm_start():
    problem = make_problem()
    torch.manual_seed(0)
    model, network = Relaxed(), Network()
    family = Amortised(network, Dirichlet(), warm_start=True)
    elbo = AttentionELBO(num_particles=2)
    svi = pyro.infer.SVI(model, AttentionGuide(model, family), pyro.optim.Adam({"lr": 0.02}), elbo)
    before = [parameter.clone() for parameter in network.parameters()]
    jensen = [svi.step(*problem) for _ in range(40)]
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))
    family.warm_start = False
    losses = [svi.step(*problem) for _ in range(80)]
    assert not all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))
    assert sum(jensen[-20:]) < 0.9 * sum(jensen[:20])
    assert sum(losses[-20:]) < 0.9 * sum(losses[:20])


# the warm start of an inference network


class Uncalled(nn.Module):
    def forward(self, *args):
        raise AssertionError("the network was called")


PRIORS = {Dirichlet: DirichletPrior, GumbelSoftmax: AlignmentPrior, Categorical: AlignmentPrior}


@pytest.mark.parametrize("family", PRIORS)
def test_warm_start_is_the_family_alone(family):
    """So its ELBO is Jensen's bound: no KL, and the network aside."""
    problem, model = make_problem(), Toy()
    model.attention = LatentAttention("alignment", PRIORS[family]())
    warm = Amortised(Uncalled(), family(), warm_start=True)
    posteriors = []
    for choice in (family(), warm):
        torch.manual_seed(2)
        trace = pyro.poutine.trace(AttentionGuide(model, choice)).get_trace(*problem)
        posteriors.append(trace.nodes["alignment"])
    assert type(posteriors[0]["fn"]) is type(posteriors[1]["fn"])
    assert torch.equal(posteriors[0]["value"], posteriors[1]["value"])
    prior, posterior = posteriors[1]["infer"]["prior"], posteriors[1]["fn"]
    torch.testing.assert_close(kl_divergence(posterior, prior), torch.zeros(BATCH, QUERIES, dtype=torch.float64))
    warm.warm_start = False
    with pytest.raises(AssertionError, match="the network was called"):
        AttentionGuide(model, warm)(*problem)


def test_no_warm_start_by_default():
    assert Amortised(Network(), Dirichlet()).warm_start is False


# prediction, reports and copies


def test_posterior_samples():
    problem, model, network = make_problem(), Relaxed(), Network()
    guide = AttentionGuide(model, Amortised(network, Dirichlet()))
    shape, mask = (BATCH, QUERIES, 1, KEYS), problem[3][:, None, None]
    mean = (network(*problem).exp() * mask) / (network(*problem).exp() * mask).sum(-1, keepdim=True)
    for chunk_size in (1, 100):
        draws = sample_posterior(guide, *problem, num_samples=400, chunk_size=chunk_size, seed=0)["alignment"]
        assert draws.shape == (400, *shape)
        assert (draws.masked_select(~mask) == 0).all()
        torch.testing.assert_close(draws.sum(-1), torch.ones(400, BATCH, QUERIES, 1, dtype=torch.float64))
        kept = mask.expand(shape)
        assert_mean(draws[:, kept], mean[kept].detach())
    logs = sample_posterior(guide, *problem, num_samples=3, log_weights=True)["alignment"]
    torch.testing.assert_close((logs.exp() * mask).sum(-1), torch.ones(3, BATCH, QUERIES, 1, dtype=torch.float64))
    certain = sample_posterior(guide, *problem, num_samples=1, noise="none")["alignment"]
    torch.testing.assert_close(certain[0], mean.detach())


def test_predictions_average_over_draws():
    scores, values = torch.tensor([[0.5, -0.5, 1.0]]), torch.randn(1, 3, 2)
    attention = LatentAttention("attention", DirichletPrior())
    layout = Dense(event_dim=2)
    guide = AttentionGuide(lambda: attention(scores, values, layout=layout).context, Dirichlet())
    prediction = predict(guide, num_samples=500, keep_samples=True, seed=0)
    assert_mean(prediction.samples, scores.softmax(-1) @ values[0])
    assert (prediction.variance > 0).all()


def test_check_model_reports_the_site():
    problem, model = make_problem(), Relaxed()
    guide, elbo = AttentionGuide(model, Amortised(Network(), Dirichlet())), AttentionELBO(kl_weight=1e-3)
    report = check_model(model, guide, *problem, elbo=elbo, svi=True)
    (site,) = report.sites
    assert (site.family, site.prior) == ("DirichletWeights", "DirichletWeights")
    assert (site.batch_shape, site.event_shape, site.masked) == ((BATCH, QUERIES), (1, KEYS), 0.125)
    assert site.kl > 0
    assert site.gradient_norm > 0
    assert report.ok


def test_self_attention():
    """Queries in the event, several heads, a prior that a caller's ``normalize_scores`` cannot change."""
    attention = LatentAttention("attention", DirichletPrior(), normalize_scores=True)
    scores = torch.randn(2, 3, 3, requires_grad=True)
    values = torch.randn(2, 3, 4)
    guide = AttentionGuide(lambda: attention(scores, values).context, Dirichlet())
    trace = pyro.poutine.trace(guide).get_trace()
    assert trace.nodes["attention"]["fn"].event_shape == (2, 3, 3)
    torch.testing.assert_close(trace.nodes["attention"]["infer"]["prior"].log_concentration, scores)
    (gradient,) = torch.autograd.grad(trace.nodes["attention"]["value"].exp().square().sum(), scores)
    assert (gradient != 0).all()


def test_bfloat16_computes_in_float32():
    attention = LatentAttention("attention", DirichletPrior())
    scores, values = torch.randn(2, 3, 3).bfloat16(), torch.randn(2, 3, 4).bfloat16()
    guide = AttentionGuide(lambda: attention(scores, values), Dirichlet())
    output = guide.run().output
    assert (output.weights.dtype, output.context.dtype) == (torch.float32, torch.bfloat16)


def test_guides_pickle():
    problem, model = make_problem(), Relaxed()
    guide = AttentionGuide(model, Amortised(Network(), Dirichlet(), warm_start=True))

    def loss(guide):
        torch.manual_seed(3)
        return AttentionELBO().loss(guide.model, guide, *problem)

    twin = pickle.loads(pickle.dumps(guide))
    assert loss(twin) == loss(guide)
    twin.families[0].warm_start = False
    assert loss(twin) != loss(guide)


# bad input


@pytest.mark.parametrize("family", [Weibull(), Categorical(), GumbelSoftmax(), Dirichlet()], ids=str)
def test_kinds_do_not_mix(family):
    model, prior = (Toy, "CategoricalAlignment") if isinstance(family, Dirichlet) else (Relaxed, "DirichletWeights")
    with pytest.raises(ValueError, match=f"kind '{family.kind}', but its prior {prior} is of kind '[ad]"):
        AttentionGuide(model(), family)(*make_problem())


def test_networks_of_another_shape_are_refused():
    narrow = nn.Module()
    narrow.forward = lambda *_: torch.zeros(BATCH, QUERIES, 1, 2)
    with pytest.raises(ValueError, match=r"shape \(2, 3, 1, 2\), expected the layer's \(2, 3, 1, 4\)"):
        AttentionGuide(Relaxed(), Amortised(narrow, Dirichlet()))(*make_problem())
