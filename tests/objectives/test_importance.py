"""Importance-weighted bounds against brute force over every pair of draws of a small problem."""

import itertools
import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.poutine.messenger import Messenger
from torch import nn

from pyro_attention import (
    AlignmentPrior,
    Amortised,
    AttentionGuide,
    Categorical,
    Dense,
    LatentAttention,
    Marginal,
    Soft,
    Weibull,
)
from pyro_attention.families.gumbel import GumbelSoftmax
from pyro_attention.objectives.importance import ImportanceELBO
from tests.families.test_alignment import NEVER, Network, Toy, brute_force_evidence, expected, log_factors, make_problem
from tests.helpers import assert_mean

KEYS, QUERIES = 3, 2  # those of the second sentence that are not padded
OBJECTIVES = ["iwae", "wake_sleep"]

objectives = pytest.mark.parametrize("objective", OBJECTIVES)
posteriors = pytest.mark.parametrize("posterior", ["prior", "network"])


class Forced(Messenger):
    """Sets the alignments instead of drawing them; stands outside the guide."""

    def __init__(self, values):
        super().__init__()
        self.values = values

    def _pyro_sample(self, msg):
        if msg["name"] == "alignment":
            msg["value"] = self.values


class Case:
    """A model, its guide, and all that is known of them on paper."""

    def __init__(self, posterior):
        torch.manual_seed(1)
        self.model, network = Toy(), Network()
        self.problem = [tensor[1:] for tensor in make_problem()]
        family = Categorical(enumerate=False)
        self.guide = AttentionGuide(self.model, family if posterior == "prior" else Amortised(network, family))
        self.parameters = list(self.model.parameters())
        log_p, log_f = log_factors(self.model, self.problem)
        log_q = log_p
        if posterior == "network":
            self.parameters += network.parameters()
            log_q = network(*self.problem).squeeze(-2).masked_fill(~self.problem[3][:, None], NEVER).log_softmax(-1)
        self.log_p, self.log_f, self.log_q = (x[0, :QUERIES, :KEYS] for x in (log_p, log_f, log_q))

    def loss(self, elbo, draws=None):
        """Loss at given draws ``[K][queries]``, or at random ones."""
        if draws is None:
            return elbo.differentiable_loss(self.model, self.guide, *self.problem)
        with Forced(torch.tensor(draws).view(len(draws), 1, -1)):
            return elbo.differentiable_loss(self.model, self.guide, *self.problem)

    def expectation(self, elbo):
        """Sum over all joint draws of two particles of their probability, without gradient, times the loss."""
        total = 0.0
        for keys in itertools.product(range(KEYS), repeat=2 * QUERIES):
            draws = [[*keys[:QUERIES], 0], [*keys[QUERIES:], 0]]  # the third query is masked
            chosen = torch.stack([self.log_q[range(QUERIES), draw[:QUERIES]] for draw in draws])
            total = total + chosen.detach().sum().exp() * self.loss(elbo, draws)
        return total

    def pairs(self):
        """For all pairs of draws of a query: log q of the pair and log f, log p, log q of each, ``[2, queries]``."""
        for pair in itertools.product(range(KEYS), repeat=2):
            log_f, log_p, log_q = (x[:, pair].T for x in (self.log_f, self.log_p, self.log_q))
            yield log_q.sum(0), log_f, log_p, log_q

    def bound(self):
        """The exact expectation of the bound."""
        terms = [(log_pair.exp() * log_mean(f + p - q)).sum() for log_pair, f, p, q in self.pairs()]
        return sum(terms)

    def gradient(self, value):
        return flat(torch.autograd.grad(value, self.parameters, allow_unused=True, materialize_grads=True))


def log_mean(log_weights):
    return log_weights.exp().mean(0).log()


def flat(gradients):
    return torch.cat([gradient.flatten() for gradient in gradients])


@posteriors
def test_iwae_is_unbiased_over_every_draw(posterior):
    case = Case(posterior)
    loss = case.expectation(ImportanceELBO(2, max_plate_nesting=2))
    torch.testing.assert_close(loss, -case.bound(), rtol=1e-10, atol=0)
    wanted = case.gradient(-case.bound())
    assert wanted.abs().max() > 0.1
    torch.testing.assert_close(case.gradient(loss), wanted, rtol=1e-8, atol=1e-10)


@posteriors
def test_wake_sleep_over_every_draw(posterior):
    case = Case(posterior)
    loss = case.expectation(ImportanceELBO(2, "wake_sleep", max_plate_nesting=2))
    torch.testing.assert_close(loss, -case.bound(), rtol=1e-10, atol=0)
    phases = 0.0
    for log_pair, f, p, q in case.pairs():
        weights = (f + p - q).detach().exp()
        weights = weights / weights.sum(0)
        phases = phases + (log_pair.detach().exp() * weights * (f + p + q)).sum()
    torch.testing.assert_close(case.gradient(loss), case.gradient(-phases), rtol=1e-8, atol=1e-10)


@posteriors
def test_iwae_by_drawing(posterior):
    case, elbo = Case(posterior), ImportanceELBO(2, max_plate_nesting=2)
    with pyro.validation_enabled(False):
        losses = [case.loss(elbo) for _ in range(400)]
    assert_mean(torch.stack(losses), -case.bound().item())
    gradients = torch.stack([case.gradient(loss) for loss in losses])
    wanted = case.gradient(-case.bound())
    varies = gradients.std(0) > 1e-12
    # a maximum over many coordinates
    assert_mean(gradients[:, varies], wanted[varies], errors=4.5)
    torch.testing.assert_close(gradients.mean(0)[~varies], wanted[~varies])


@posteriors
def test_five_particles_are_weighed_by_formula(posterior):
    """VIMCO written out draw by draw."""
    case = Case(posterior)
    draws = [[0, 1, 0], [1, 1, 0], [2, 0, 0], [0, 2, 0], [1, 2, 0]]
    surrogate = 0.0
    for j in range(QUERIES):
        log_f, log_p, log_q = ([x[j, draw[j]] for draw in draws] for x in (case.log_f, case.log_p, case.log_q))
        log_w = [f + p - q for f, p, q in zip(log_f, log_p, log_q, strict=True)]
        bound = math.log(sum(math.exp(w.item()) for w in log_w) / 5)
        total = sum(w.exp() for w in log_w).detach()
        for k in range(5):
            others = [w.item() for i, w in enumerate(log_w) if i != k]
            baseline = math.log((sum(map(math.exp, others)) + math.exp(sum(others) / 4)) / 5)
            surrogate = surrogate + (bound - baseline) * log_q[k] + (log_w[k].exp() / total).detach() * log_w[k]
    loss = case.loss(ImportanceELBO(5), draws)
    torch.testing.assert_close(case.gradient(loss), case.gradient(-surrogate), rtol=1e-8, atol=1e-10)


@posteriors
def test_the_bound_lies_between_elbo_and_evidence(posterior):
    case = Case(posterior)
    evidence = brute_force_evidence(case.model, case.problem)
    elbo = expected(case.model, case.problem, nn.functional.pad(case.log_q, (0, 1, 0, 1), value=NEVER))
    assert elbo + 0.01 < case.bound() < evidence - 0.01


@objectives
def test_the_bound_is_tight_at_the_posterior(objective):
    case = Case("prior")

    class Posterior(nn.Module):
        def forward(self, *problem):
            log_p, log_f = log_factors(case.model, problem)
            return (log_p + log_f).unsqueeze(-2)

    guide = AttentionGuide(case.model, Amortised(Posterior(), Categorical(enumerate=False)))
    loss = ImportanceELBO(3, objective, max_plate_nesting=2).loss(case.model, guide, *case.problem)
    assert loss == pytest.approx(-brute_force_evidence(case.model, case.problem).item(), rel=1e-12)


@objectives
def test_the_value_is_the_bound_in_one_pass_with_guessed_nesting(objective):
    case, draws = Case("network"), [[0, 1, 0], [2, 1, 0], [2, 0, 0]]
    given = ImportanceELBO(3, objective, max_plate_nesting=2)
    loss = case.loss(given, draws)
    assert case.model.calls == 1
    log_w = torch.stack([(case.log_f + case.log_p - case.log_q)[range(QUERIES), draw[:QUERIES]] for draw in draws])
    torch.testing.assert_close(loss, -log_mean(log_w).sum())
    guessed = ImportanceELBO(3, objective)
    case.loss(guessed)
    torch.testing.assert_close(case.loss(guessed, draws), loss)


@objectives
@pytest.mark.parametrize("padding", ["masked queries", "padded keys"])
def test_padding_changes_nothing(padding, objective):
    case, elbo, draws = Case("network"), ImportanceELBO(2, objective, max_plate_nesting=2), [[0, 1, 0], [2, 1, 0]]
    loss = case.loss(elbo, draws)
    gradient = case.gradient(loss)
    keys, queries, labels, mask, real = case.problem
    if padding == "masked queries":
        queries, labels = queries.clone(), labels.clone()
        queries[:, 2], labels[:, 2] = 1e3, 0
        draws = [[0, 1, 2], [2, 1, 1]]
    else:
        keys, mask = nn.functional.pad(keys, (0, 0, 0, 2), value=50.0), nn.functional.pad(mask, (0, 2))
    case.problem = [keys, queries, labels, mask, real]
    changed = case.loss(elbo, draws)
    torch.testing.assert_close(changed, loss, rtol=1e-12, atol=0)
    torch.testing.assert_close(case.gradient(changed), gradient, rtol=1e-10, atol=1e-12)
    case.problem = [keys, queries, labels, mask, torch.zeros_like(real)]
    nothing = case.loss(elbo)
    assert nothing.item() == 0
    assert not case.gradient(nothing).any()


@objectives
def test_the_scale_multiplies_the_bound_and_not_the_weights(objective):
    case, elbo, draws = Case("network"), ImportanceELBO(2, objective, max_plate_nesting=2), [[0, 1, 0], [2, 1, 0]]
    loss = case.loss(elbo, draws)
    case.guide = pyro.poutine.scale(case.guide, 3.0)
    scaled = case.loss(elbo, draws)
    torch.testing.assert_close(scaled, 3 * loss)
    torch.testing.assert_close(case.gradient(scaled), 3 * case.gradient(loss))


class Narrow(nn.Module):
    """One alignment a sentence, in a plate or two; how the observations are declared is an argument."""

    def __init__(self, observe):
        super().__init__()
        self.attention, self.observe = LatentAttention("alignment", AlignmentPrior()), observe

    def forward(self, scores, values, y):
        with pyro.plate("sentences", 2, dim=-2):
            mean = self.attention(scores, values, layout=Dense(event_dim=2)).context.squeeze(-1).squeeze(-1)
            self.observe(mean, y)


def test_observations_may_have_more_plates_than_the_alignment():
    def observe(mean, y):
        with pyro.plate("words", 3, dim=-1):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    model = Narrow(observe)
    scores, values, y = torch.randn(2, 1, 1, 2), torch.randn(2, 1, 1, 2, 1), torch.randn(2, 3)
    draws = torch.tensor([[[0], [0]], [[1], [0]], [[1], [1]]])
    with Forced(draws):
        loss = ImportanceELBO(3).loss(model, AttentionGuide(model, Categorical(enumerate=False)), scores, values, y)
    weights = [
        [dist.Normal(values[b, 0, 0, draws[k, b, 0], 0], 1.0).log_prob(y[b]).sum() for b in range(2)] for k in range(3)
    ]
    assert loss == pytest.approx(-log_mean(torch.tensor(weights)).sum().item(), rel=1e-5)


@objectives
def test_trains_by_svi_and_as_a_module(objective):
    problem = make_problem()
    model = Toy()
    guide = AttentionGuide(model, Amortised(Network(), Categorical(enumerate=False)))
    elbo = ImportanceELBO(5, objective)
    svi = pyro.infer.SVI(model, guide, pyro.optim.Adam({"lr": 0.02}), elbo)
    losses = [svi.step(*problem) for _ in range(80)]
    assert sum(losses[-20:]) < 0.8 * sum(losses[:20])
    assert elbo(model, guide)(*problem).requires_grad


# bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "vimco"}, "objective is 'vimco', expected 'iwae' or 'wake_sleep'"),
        *(({"objective": name, "num_particles": 1}, "num_particles is 1, expected at least 2") for name in OBJECTIVES),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        ImportanceELBO(**options)


EXPECTED = r"; expected drawn alignments, .*Categorical\(enumerate=False\)"


@pytest.mark.parametrize(
    ("family", "message"),
    [
        (None, "guide is a function, expected an AttentionGuide"),
        (Categorical(), f"has the posterior CategoricalAlignment, to be enumerated{EXPECTED}"),
        (Marginal(), f"has the posterior CategoricalAlignment, to be enumerated{EXPECTED}"),
        (Soft(), f"has the posterior Delta{EXPECTED}"),
        (GumbelSoftmax(), f"has the posterior RelaxedAlignment{EXPECTED}"),
        (Weibull(), "kind 'positive weights'"),
    ],
    ids=["function", "categorical", "marginal", "expected", "gumbel", "weibull"],
)
def test_bad_guides(family, message):
    case = Case("prior")
    guide = AttentionGuide(case.model, family) if family else lambda *_: None
    with pyro.validation_enabled(False), pytest.raises((TypeError, ValueError), match=message):
        ImportanceELBO(2, max_plate_nesting=2).loss(case.model, guide, *case.problem)


def another_site(mean, y):
    pyro.sample("y", dist.Normal(mean + pyro.sample("shift", dist.Normal(0.0, 1.0)), 1.0), obs=y)


def scaled(mean, y):
    with pyro.poutine.scale(scale=2.0):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


@pytest.mark.parametrize(
    ("observe", "message"),
    [
        (another_site, r"2 latent sites \('alignment', 'shift'\), expected one alignment"),
        (scaled, r"'y' has scale 2\.0 and site 'alignment' 1\.0, expected the same"),
    ],
)
def test_bad_models(observe, message):
    model = Narrow(observe)
    guide = AttentionGuide(model, Categorical(enumerate=False), keep_prior=["shift"])
    arguments = torch.zeros(2, 1, 1, 2), torch.zeros(2, 1, 1, 2, 1), torch.zeros(2, 1)
    with pytest.raises(ValueError, match=message):
        ImportanceELBO(2, max_plate_nesting=2).loss(model, guide, *arguments)


def test_an_observation_outside_the_plates_of_the_alignment():
    attention = LatentAttention("alignment", AlignmentPrior())

    def model(scores, values, y):
        with pyro.plate("sentences", 2):
            mean = attention(scores, values, layout=Dense(event_dim=2)).context.squeeze(-1).squeeze(-1)
        pyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=y)

    guide, arguments = AttentionGuide(model, Categorical(enumerate=False)), [(2, 1, 2), (2, 1, 2, 1), (2,)]
    with pytest.raises(ValueError, match=r"'y' lies outside the plates \['sentences'\] of site 'alignment'"):
        ImportanceELBO(2, max_plate_nesting=1).loss(model, guide, *map(torch.zeros, arguments))
