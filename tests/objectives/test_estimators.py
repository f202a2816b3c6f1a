"""Estimators from drawn alignments: their expectations over every draw of a small problem are exact."""

import itertools
import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.poutine.messenger import Messenger
from torch import nn
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
    Marginal,
    ScoreFunctionELBO,
    Soft,
    Weibull,
)
from pyro_attention.alignments.posteriors import GumbelSoftmax, SparseCategorical
from pyro_attention.families.dirichlet import DirichletPrior
from pyro_attention.objectives.importance import ImportanceELBO, _vimco
from tests.helpers import flat
from tests.toy_alignments import (
    NEVER,
    Network,
    Toy,
    assert_same,
    brute_force_evidence,
    expected,
    log_factors,
    make_problem,
    pad,
)

KEYS, QUERIES = 3, 2  # those of the second sentence that are not padded
OBJECTIVES = ["iwae", "wake_sleep"]

objectives = pytest.mark.parametrize("objective", OBJECTIVES)
posteriors = pytest.mark.parametrize("posterior", ["prior", "network"])


def test_a_draw_that_is_impossible_leaves_the_gradient_finite():
    """VIMCO's baseline of a draw whose own weight is zero is the mean of the other weights."""
    log_q = torch.zeros(4, requires_grad=True)
    log_weights = torch.tensor([0.3, -math.inf, 1.0, -0.5])
    bound = _vimco(log_weights, log_q)
    assert bound.item() == pytest.approx(log_weights.exp().mean().log().item())
    (gradient,) = torch.autograd.grad(bound, log_q)
    for own in range(4):
        others = torch.cat([log_weights[:own], log_weights[own + 1 :]])
        baseline = (others.exp().sum() + others.mean().exp()).log() - math.log(4)
        assert gradient[own].item() == pytest.approx((bound - baseline).item(), rel=1e-5)


class Forced(Messenger):
    """Sets the alignments instead of drawing them; stands outside the guide."""

    def __init__(self, values, site="alignment"):
        super().__init__()
        self.values, self.site = values, site

    def _pyro_sample(self, msg):
        if msg["name"] == self.site and msg["value"] is None:
            msg["value"] = self.values


class Case:
    """A model, its guide, and all that is known of them on paper."""

    def __init__(self, posterior):
        torch.manual_seed(1)
        self.model, network = Toy(), Network()
        self.problem = [tensor[1:] for tensor in make_problem()]
        family = Categorical(enumerate=False)
        self.guide = AttentionGuide(self.model, family if posterior == "prior" else Amortized(network, family))
        self.parameters = list(self.model.parameters())
        keys, queries, _, mask, _ = self.problem
        log_p = self.model.scores(keys, queries).squeeze(-2).masked_fill(~mask[:, None], NEVER).log_softmax(-1)
        one_hot = torch.eye(4, dtype=torch.float64)[:, None, None].expand(4, 1, 3, 4)
        log_f, log_q = self.model.log_likelihood(self.problem, one_hot).movedim(0, -1), log_p
        self.log_soft = self.model.log_likelihood(self.problem, log_p.exp())[0, :QUERIES]
        if posterior == "network":
            self.parameters += network.parameters()
            log_q = network(*self.problem).squeeze(-2).masked_fill(~mask[:, None], NEVER).log_softmax(-1)
        self.log_p, self.log_f, self.log_q = (x[0, :QUERIES, :KEYS] for x in (log_p, log_f, log_q))

    def loss(self, elbo, draws=None):
        """Loss at given draws, one ``[queries]`` or many ``[K][queries]``, or at random ones."""
        if draws is None:
            return elbo.differentiable_loss(self.model, self.guide, *self.problem)
        values = torch.tensor(draws)
        with Forced(values.view(*values.shape[:-1], 1, -1)):
            return elbo.differentiable_loss(self.model, self.guide, *self.problem)

    def every_draw(self, elbo, particles=None):
        """Probability, without gradient, and loss of all joint draws; the third query is masked."""
        for keys in itertools.product(range(KEYS), repeat=(particles or 1) * QUERIES):
            draws = [[*keys[i : i + QUERIES], 0] for i in range(0, len(keys), QUERIES)]
            chosen = torch.stack([self.log_q[range(QUERIES), draw[:QUERIES]] for draw in draws])
            yield chosen.detach().sum().exp(), self.loss(elbo, draws if particles else draws[0])

    def pairs(self):
        """For all pairs of draws of a query: log q of the pair and log f, log p, log q of each, ``[2, queries]``."""
        for pair in itertools.product(range(KEYS), repeat=2):
            log_f, log_p, log_q = (x[:, pair].T for x in (self.log_f, self.log_p, self.log_q))
            yield log_q.sum(0), log_f, log_p, log_q

    def bound(self):
        """The exact expectation of the bound."""
        return sum((log_pair.exp() * log_mean(f + p - q)).sum() for log_pair, f, p, q in self.pairs())

    def elbo(self):
        return (self.log_q.exp() * (self.log_f + self.log_p - self.log_q)).sum()

    def gradient(self, value):
        return flat(value, self.parameters)


def log_mean(log_weights):
    return log_weights.exp().mean(0).log()


def close(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-10)


# score functions


@posteriors
@pytest.mark.parametrize("baseline", ["soft", "none"])
def test_the_score_function_is_unbiased_over_every_draw(baseline, posterior):
    case, elbo = Case(posterior), ScoreFunctionELBO(baseline=baseline)
    loss = sum(probability * loss for probability, loss in case.every_draw(elbo))
    torch.testing.assert_close(loss, -case.elbo())
    wanted = case.gradient(-case.elbo())
    assert wanted.abs().max() > 0.1
    close(case.gradient(loss), wanted)
    # by hand at one draw
    draw = [1, 2]
    log_f, log_q = (x[range(QUERIES), draw] for x in (case.log_f, case.log_q))
    kl = (case.log_q.exp() * (case.log_q - case.log_p)).sum()
    reward = (log_f - (case.log_soft if baseline == "soft" else 0)).detach()
    close(case.gradient(case.loss(elbo, [*draw, 0])), case.gradient(kl - (log_f + reward * log_q).sum()))
    if posterior == "network":
        assert elbo.kl_record["alignment"] > 0


class Chain(nn.Module):
    """Two alignments, of which the second reads what the first chose, and the network of its posterior too."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (LatentAttention(name, AlignmentPrior()) for name in ("first", "second"))
        self.scores = nn.Parameter(torch.tensor([0.3, -0.5], dtype=torch.float64))
        self.seen = None

    def forward(self):
        pyro.module("chain", self)
        values = torch.tensor([0.5, -1.0], dtype=torch.float64).view(1, 2, 1)
        with pyro.plate("queries", 1):
            layout = Dense(event_dim=2)
            one = self.first(self.scores.view(1, 1, 2), values, layout=layout).context
            self.seen = one * torch.tensor([1.0, -2.0], dtype=torch.float64)
            self.second(self.seen, values, layout=layout)


class Later(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = (model,)

    def forward(self):
        return -2 * self.model[0].seen


@pytest.mark.parametrize("baseline", ["soft", "none"])
def test_a_kl_that_depends_on_a_draw_is_part_of_its_reward(baseline):
    """Without observations the loss is the expected KL of the second site, whose gradient is known by hand."""
    model, kls, loss = Chain(), [], 0
    families = {"first": Categorical(enumerate=False), "second": Amortized(Later(model), Categorical(enumerate=False))}
    guide, elbo = AttentionGuide(model, families), ScoreFunctionELBO(baseline=baseline)
    q = torch.distributions.Categorical(logits=model.scores)
    for key, value in enumerate((0.5, -1.0)):
        seen = value * torch.tensor([1.0, -2.0], dtype=torch.float64)
        kls.append(kl_divergence(*(torch.distributions.Categorical(logits=s) for s in (-2 * seen, seen))))
        with Forced(torch.tensor([key]), "first"):
            loss = loss + q.probs[key].detach() * elbo.differentiable_loss(model, guide)
    exact = (q.probs * torch.stack(kls)).sum()
    torch.testing.assert_close(loss, exact)
    close(torch.autograd.grad(loss, model.scores), torch.autograd.grad(exact, model.scores))


@posteriors
@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_a_sampled_kl_is_part_of_the_reward_of_its_own_draw(posterior, weight):
    """It depends on the draw, so without it the gradient would lack that of the KL."""
    case, elbo = Case(posterior), ScoreFunctionELBO(kl="sampled", kl_weight=weight)
    loss = sum(probability * loss for probability, loss in case.every_draw(elbo))
    exact = -(case.log_q.exp() * (case.log_f + weight * (case.log_p - case.log_q))).sum()
    torch.testing.assert_close(loss, exact)
    close(case.gradient(loss), case.gradient(exact))


@pytest.mark.parametrize("baseline", ["soft", "none"])
def test_an_alignment_that_is_masked_has_no_score_function(baseline):
    """As in stock Pyro, and also where its observation counts; the gradient of the others is exact."""
    attention, scores = LatentAttention("alignment", AlignmentPrior()), torch.randn(2, 1, 2, requires_grad=True)
    values, y, counts = torch.randn(2, 1, 2, 1), torch.randn(2), torch.tensor([True, False])

    def model():
        with pyro.plate("queries", 2):
            with pyro.poutine.mask(mask=counts):
                context = attention(scores, values, layout=Dense(event_dim=2)).context
            pyro.sample("y", dist.Normal(context[..., 0, 0], 1.0), obs=y)

    guide, elbo, total = AttentionGuide(model, Categorical(enumerate=False)), ScoreFunctionELBO(baseline=baseline), 0.0
    log_p = scores.squeeze(-2).log_softmax(-1)
    for keys in itertools.product(range(2), repeat=2):
        with Forced(torch.tensor(keys)):
            probability = log_p[range(2), keys].sum().exp().detach()
            total = total + probability * elbo.differentiable_loss(model, guide)
    exact = -(log_p.exp() * dist.Normal(values[:, 0, :, 0], 1.0).log_prob(y.unsqueeze(-1))).sum(-1)
    torch.testing.assert_close(total, exact.sum())
    torch.testing.assert_close(*(torch.autograd.grad(loss, scores)[0] for loss in (total, exact[0])))


@pytest.mark.parametrize("baseline", ["soft", "none"])
def test_a_sampled_kl_of_a_chain_is_part_of_the_rewards_of_both_draws(baseline):
    model, kls, loss = Chain(), [], 0
    families = {"first": Categorical(enumerate=False), "second": Amortized(Later(model), Categorical(enumerate=False))}
    guide, elbo = AttentionGuide(model, families), ScoreFunctionELBO(baseline=baseline, kl="sampled")
    q = torch.distributions.Categorical(logits=model.scores)
    for first, value in enumerate((0.5, -1.0)):
        seen = value * torch.tensor([1.0, -2.0], dtype=torch.float64)
        later, prior = (torch.distributions.Categorical(logits=s) for s in (-2 * seen, seen))
        kls.append(kl_divergence(later, prior))
        for second in range(2):
            with Forced(torch.tensor([first]), "first"), Forced(torch.tensor([second]), "second"):
                share = (q.probs[first] * later.probs[second]).detach()
                loss = loss + share * elbo.differentiable_loss(model, guide)
    exact = (q.probs * torch.stack(kls)).sum()
    torch.testing.assert_close(loss, exact)
    close(torch.autograd.grad(loss, model.scores), torch.autograd.grad(exact, model.scores))


def test_the_baseline_sees_the_same_minibatch():
    """Its likelihood is that of the drawn rows, so that the reward of a certain alignment is zero."""
    layer, y = LatentAttention("alignment", AlignmentPrior()), torch.arange(50.0)
    seen = []

    def model():
        shift = pyro.sample("shift", dist.Normal(0.0, 10.0))
        with pyro.plate("queries", 50, subsample_size=2) as index:
            mean = layer(torch.zeros(2, 1, 1), torch.ones(1, 1, 1), layout=Dense(event_dim=2)).context.flatten()
            pyro.sample("y", dist.Normal(mean + shift, 1.0), obs=y[index])
        with pyro.plate("later", 50, subsample_size=2) as later:
            pyro.sample("z", dist.Normal(shift, 1.0), obs=y[later])
        seen.append(((*index.tolist(), *later.tolist()), shift.item()))

    guide = AttentionGuide(model, Categorical(enumerate=False), keep_prior=["shift"])
    elbo = ScoreFunctionELBO()
    for _ in range(3):
        elbo.loss(model, guide)
        drawn, baseline = seen[-2:]
        assert drawn == baseline
    assert len({index for index, _ in seen}) == 3


# importance weights


@posteriors
@objectives
def test_importance_weights_over_every_draw(objective, posterior):
    """The bound is unbiased, and lies between ELBO and evidence; the gradient is that of the formula."""
    case = Case(posterior)
    loss = sum(p * each for p, each in case.every_draw(ImportanceELBO(2, objective, max_plate_nesting=2), particles=2))
    torch.testing.assert_close(loss, -case.bound(), rtol=1e-10, atol=0)
    wanted = -case.bound()
    if objective == "wake_sleep":
        wanted = 0.0
        for log_pair, f, p, q in case.pairs():
            weights = (f + p - q).detach().softmax(0)
            wanted = wanted - (log_pair.detach().exp() * weights * (f + p + q)).sum()
    assert case.gradient(wanted).abs().max() > 0.1
    close(case.gradient(loss), case.gradient(wanted))
    assert case.elbo() + 0.01 < case.bound() < (case.log_p + case.log_f).logsumexp(-1).sum() - 0.01


@posteriors
def test_five_particles_are_weighed_by_formula(posterior):
    """VIMCO written out draw by draw; with guessed nesting."""
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
    close(case.gradient(case.loss(ImportanceELBO(5), draws)), case.gradient(-surrogate))


@objectives
def test_the_bound_is_tight_at_the_posterior(objective):
    problem, model = make_problem(), Toy()

    class Posterior(nn.Module):
        def forward(self, *problem):
            return sum(log_factors(model, problem)).unsqueeze(-2)

    guide = AttentionGuide(model, Amortized(Posterior(), Categorical(enumerate=False)))
    elbo = ImportanceELBO(3, objective, max_plate_nesting=2)
    assert elbo.loss(model, guide, *problem) == pytest.approx(-brute_force_evidence(model, problem).item(), rel=1e-12)
    assert model.calls == 1 + 3  # at first two single runs and a pass of both
    assert expected(model, problem, log_factors(model, problem)[0]) < brute_force_evidence(model, problem)


@objectives
def test_padding_and_scales(objective):
    """Padding changes nothing; a scale multiplies the bound, and not the weights."""
    case, elbo, draws = Case("network"), ImportanceELBO(2, objective, max_plate_nesting=2), [[0, 1, 0], [2, 1, 0]]
    loss = case.loss(elbo, draws)
    gradient, problem, guide = case.gradient(loss), case.problem, case.guide
    case.problem = [tensor[1:] for tensor in pad(make_problem())]
    assert_same(case.loss(elbo, [[*draw, 2, 1] for draw in draws]), -loss, case.parameters)
    case.problem, case.guide = problem, pyro.poutine.scale(guide, 3.0)
    scaled = case.loss(elbo, draws)
    torch.testing.assert_close(scaled, 3 * loss)
    torch.testing.assert_close(case.gradient(scaled), 3 * gradient)
    case.problem = [*problem[:-1], torch.zeros_like(problem[-1])]
    nothing = case.loss(elbo)
    assert nothing.item() == 0
    assert not case.gradient(nothing).any()


class Narrow(nn.Module):
    """One alignment a sentence, in a plate or two; how the observations are declared is an argument."""

    def __init__(self, observe):
        super().__init__()
        self.attention, self.observe = LatentAttention("alignment", AlignmentPrior()), observe

    def forward(self, scores, values, y):
        with pyro.plate("sentences", 2, dim=-2):
            mean = self.attention(scores, values, layout=Dense(event_dim=2)).context.squeeze(-1).squeeze(-1)
            inside = self.observe(mean, y)
        if inside is not None:
            inside()


def words(mean, y):
    with pyro.plate("words", 3, dim=-1):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def test_observations_may_have_more_plates_than_the_alignment():
    model, draws = Narrow(words), torch.tensor([[[0], [0]], [[1], [0]], [[1], [1]]])
    scores, values, y = torch.randn(2, 1, 1, 2), torch.randn(2, 1, 1, 2, 1), torch.randn(2, 3)
    with Forced(draws):
        loss = ImportanceELBO(3).loss(model, AttentionGuide(model, Categorical(enumerate=False)), scores, values, y)
    weights = [
        [dist.Normal(values[b, 0, 0, draws[k, b, 0], 0], 1.0).log_prob(y[b]).sum() for b in range(2)] for k in range(3)
    ]
    assert loss == pytest.approx(-log_mean(torch.tensor(weights)).sum().item(), rel=1e-5)


# training, and what is refused


@pytest.mark.parametrize(
    ("family", "elbo"),
    [
        (Categorical(), AlignmentELBO(max_plate_nesting=2)),
        (SparseCategorical(k=3), AlignmentELBO(max_plate_nesting=2)),
        (Dirichlet(), AttentionELBO(num_particles=2)),
        (GumbelSoftmax(), AttentionELBO()),
        (Categorical(enumerate=False), ScoreFunctionELBO(num_particles=2)),
        (Categorical(enumerate=False), ImportanceELBO(5)),
        (Categorical(enumerate=False), ImportanceELBO(5, "wake_sleep")),
    ],
    ids=["enumerate", "sparse", "dirichlet", "gumbel", "score function", "iwae", "wake-sleep"],
)
def test_trains_by_svi(family, elbo):
    """From a warm start, in which the inference network rests."""
    problem = make_problem()
    torch.manual_seed(0)
    model, network = Toy(DirichletPrior if isinstance(family, Dirichlet) else AlignmentPrior), Network()
    amortized = Amortized(network, family, warm_start=True)
    svi = pyro.infer.SVI(model, AttentionGuide(model, amortized), pyro.optim.Adam({"lr": 0.02}), elbo)
    before, losses = [parameter.clone() for parameter in network.parameters()], []
    for step in range(50):
        if step == 10:
            assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))
            amortized.warm_start = False
        losses.append(svi.step(*problem))
    assert sum(losses[-15:]) < 0.9 * sum(losses[10:25])
    assert not any(torch.equal(a, b) for a, b in zip(before[::2], list(network.parameters())[::2], strict=True))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ImportanceELBO(objective="vimco"), "objective is 'vimco', expected 'iwae' or 'wake_sleep'"),
        (lambda: ImportanceELBO(1), "num_particles is 1, expected at least 2"),
        (lambda: ScoreFunctionELBO(baseline="moving"), "baseline is 'moving'"),
        (lambda: ScoreFunctionELBO(vectorize_particles=True, num_particles=2), "expected False"),
        (lambda: AlignmentELBO(roulette=1.0), "roulette is 1.0, expected a probability"),
        (lambda: GumbelSoftmax(0.0), "temperature .*0.0, expected"),
    ],
)
def test_bad_options(make, message):
    with pytest.raises(ValueError, match=message):
        make()


IMPORTANCE = ImportanceELBO(2, max_plate_nesting=2)
DRAWN = r"; expected drawn alignments, .*Categorical\(enumerate=False\)"


@pytest.mark.parametrize(
    ("elbo", "family", "message"),
    [
        (IMPORTANCE, None, "guide is a function, expected an AttentionGuide"),
        (ScoreFunctionELBO(), None, "expected an AttentionGuide"),
        (IMPORTANCE, Marginal(), f"has the posterior CategoricalAlignment{DRAWN}"),
        (IMPORTANCE, Soft(), f"has the posterior Delta{DRAWN}"),
        (IMPORTANCE, GumbelSoftmax(), f"has the posterior RelaxedAlignment{DRAWN}"),
        (AttentionELBO(), Categorical(enumerate=False), "AlignmentELBO or ScoreFunctionELBO"),
        (ScoreFunctionELBO(), Weibull(), "kind 'positive weights'"),
    ],
)
def test_bad_guides(elbo, family, message):
    model = Toy()
    guide = AttentionGuide(model, family) if family else lambda *_: None
    with pyro.validation_enabled(False), pytest.raises((TypeError, ValueError), match=message):
        elbo.loss(model, guide, *make_problem())


def another_site(mean, y):
    pyro.sample("y", dist.Normal(mean + pyro.sample("shift", dist.Normal(0.0, 1.0)), 1.0), obs=y)


def scaled(mean, y):
    with pyro.poutine.scale(scale=2.0):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def outside(mean, y):
    return lambda: pyro.sample("y", dist.Normal(mean, 1.0).to_event(2), obs=y)


@pytest.mark.parametrize(
    ("observe", "message"),
    [
        (another_site, r"2 latent sites \('alignment', 'shift'\), expected one alignment"),
        (scaled, r"'y' has scale 2\.0 and site 'alignment' 1\.0, expected the same"),
        (outside, r"no plate holds all sites \(plates by site: 'alignment' in \['sentences'\], 'y' in none"),
    ],
)
@pytest.mark.filterwarnings("ignore::pyro_attention.draws.BroadcastWarning")
def test_models_without_importance_weights(observe, message):
    model = Narrow(observe)
    guide = AttentionGuide(model, Categorical(enumerate=False), keep_prior=["shift"])
    arguments = torch.zeros(2, 1, 1, 2), torch.zeros(2, 1, 1, 2, 1), torch.zeros(2, 1)
    with pytest.raises(ValueError, match=message):
        ImportanceELBO(2, max_plate_nesting=2).loss(model, guide, *arguments)
