"""The score-function estimator against the exact gradient."""

import functools

import pyro
import pytest
import torch
from torch import nn
from torch.distributions import kl_divergence

from pyro_attention import (
    AlignmentPrior,
    Amortised,
    AttentionGuide,
    Categorical,
    Dense,
    LatentAttention,
    Soft,
    Weibull,
)
from pyro_attention.objectives.elbo import AttentionELBO
from pyro_attention.objectives.enumeration import AlignmentELBO
from pyro_attention.objectives.score_function import ScoreFunctionELBO
from tests.families.test_alignment import WIDTH, Network, Toy, make_problem

DRAWS = 1000


@functools.cache
def exact_and_sampled(posterior, baseline):
    """Exact gradient, and draws of its estimate, ``[draws, parameters]``; those of the scores come first."""
    problem = make_problem()
    torch.manual_seed(1)
    model, network = Toy(), Network()
    parameters = [*(model.score if posterior == "prior" else network.map).parameters(), *model.out.parameters()]

    def guide(family):
        return AttentionGuide(model, family if posterior == "prior" else Amortised(network, family))

    def flat(loss):
        found = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        return torch.cat([gradient.flatten() for gradient in found])

    with pyro.validation_enabled(False):
        exact = flat(AlignmentELBO(max_plate_nesting=2).differentiable_loss(model, guide(Categorical()), *problem))
        elbo, sampled = ScoreFunctionELBO(baseline=baseline), guide(Categorical(enumerate=False))
        draws = torch.stack([flat(elbo.differentiable_loss(model, sampled, *problem)) for _ in range(DRAWS)])
    return exact, draws


posteriors = pytest.mark.parametrize("posterior", ["prior", "network"])


@posteriors
@pytest.mark.parametrize("baseline", ["soft", "none"])
def test_the_gradient_is_unbiased(posterior, baseline):
    exact, draws = exact_and_sampled(posterior, baseline)
    error = draws.std(0) / DRAWS**0.5
    varies = error > 1e-12
    z = (draws.mean(0) - exact)[varies] / error[varies]
    # a maximum over many coordinates: 4.5 standard errors
    assert z.abs().max() < 4.5
    assert z.square().mean() < 2
    torch.testing.assert_close(draws.mean(0)[~varies], exact[~varies])


@posteriors
def test_the_soft_baseline_reduces_the_variance_tenfold(posterior):
    scores = WIDTH * WIDTH + WIDTH
    soft, none = (exact_and_sampled(posterior, baseline)[1][:, :scores].var(0).sum() for baseline in ("soft", "none"))
    assert none > 10 * soft


def test_its_value_is_that_of_the_plain_elbo():
    problem = make_problem()
    model, network = Toy(), Network()
    guide = AttentionGuide(model, Amortised(network, Categorical(enumerate=False)))
    elbo = ScoreFunctionELBO()
    losses = torch.stack([elbo.differentiable_loss(model, guide, *problem).detach() for _ in range(400)])
    exact = AlignmentELBO(max_plate_nesting=2).loss(
        model, AttentionGuide(model, Amortised(network, Categorical())), *problem
    )
    assert abs(losses.mean() - exact) < 4 * losses.std() / len(losses) ** 0.5
    assert elbo.kl_record["alignment"] > 0


def test_the_baseline_is_soft_attention():
    problem = make_problem()
    model = Toy()
    guide, elbo = AttentionGuide(model, Categorical(enumerate=False)), ScoreFunctionELBO()
    elbo._get_trace(model, guide, problem, {})
    soft = pyro.infer.Trace_ELBO().loss(model, AttentionGuide(model, Soft()), *problem)
    assert -elbo._soft["label"].sum().item() == pytest.approx(soft)


def test_trains_by_svi():
    problem = make_problem()
    model = Toy()
    guide = AttentionGuide(model, Amortised(Network(), Categorical(enumerate=False)))
    svi = pyro.infer.SVI(model, guide, pyro.optim.Adam({"lr": 0.02}), ScoreFunctionELBO(num_particles=2))
    losses = [svi.step(*problem) for _ in range(100)]
    assert sum(losses[-20:]) < 0.8 * sum(losses[:20])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"baseline": "moving"}, "baseline is 'moving'"),
        ({"vectorize_particles": True, "num_particles": 2}, "expected False"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        ScoreFunctionELBO(**options)


@pytest.mark.parametrize(
    ("elbo", "family", "message"),
    [
        (ScoreFunctionELBO(), None, "expected an AttentionGuide"),
        (AttentionELBO(), Categorical(enumerate=False), "AlignmentELBO or ScoreFunctionELBO"),
        (ScoreFunctionELBO(), Weibull(), "kind 'positive weights'"),
    ],
    ids=["function", "objective", "kind"],
)
def test_bad_guides(elbo, family, message):
    model = Toy()
    guide = AttentionGuide(model, family) if family else lambda *_: None
    with pytest.raises((TypeError, ValueError), match=message):
        elbo.loss(model, guide, *make_problem())


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
            # of shape [..., 1, 2], where the draw is enumerated to the left
            self.seen = one * torch.tensor([1.0, -2.0], dtype=torch.float64)
            self.second(self.seen, values, layout=layout)


class Later(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = (model,)

    def forward(self):
        return -2 * self.model[0].seen


def test_a_kl_that_depends_on_a_draw_is_part_of_its_reward():
    """Without observations the loss is the expected KL of the second site, whose gradient is known by hand."""
    model = Chain()
    families = {"first": Categorical(enumerate=False), "second": Amortised(Later(model), Categorical(enumerate=False))}
    guide = AttentionGuide(model, families)
    q = torch.distributions.Categorical(logits=model.scores)
    kls = []
    for value in (0.5, -1.0):
        seen = value * torch.tensor([1.0, -2.0], dtype=torch.float64)
        kls.append(kl_divergence(*(torch.distributions.Categorical(logits=s) for s in (-2 * seen, seen))))
    exact = (q.probs * torch.stack(kls)).sum()
    (expected,) = torch.autograd.grad(exact, model.scores)
    elbo, draws = ScoreFunctionELBO(baseline="none"), []
    with pyro.validation_enabled(False):
        for _ in range(1000):
            loss = elbo.differentiable_loss(model, guide)
            draws.append(torch.cat([loss.detach()[None], torch.autograd.grad(loss, model.scores)[0]]))
    draws = torch.stack(draws)
    error = draws.std(0) / len(draws) ** 0.5
    assert expected.abs().max() > 5 * error[1:].max()
    assert ((draws.mean(0) - torch.cat([exact.detach()[None], expected])).abs() < 4.5 * error).all()


def test_the_baseline_sees_the_same_minibatch():
    """Its likelihood is that of the drawn rows, so that the reward of a certain alignment is zero."""
    layer, y = LatentAttention("alignment", AlignmentPrior()), torch.arange(50.0)
    seen = []

    def model():
        shift = pyro.sample("shift", pyro.distributions.Normal(0.0, 10.0))
        with pyro.plate("queries", 50, subsample_size=2) as index:
            mean = layer(torch.zeros(2, 1, 1), torch.ones(1, 1, 1), layout=Dense(event_dim=2)).context.flatten()
            seen.append((index.tolist(), shift.item()))
            pyro.sample("y", pyro.distributions.Normal(mean + shift, 1.0), obs=y[index])

    guide = AttentionGuide(model, Categorical(enumerate=False), keep_prior=["shift"])
    elbo = ScoreFunctionELBO()
    for _ in range(3):
        elbo.loss(model, guide)
        drawn, baseline = seen[-2:]
        assert drawn == baseline
    assert len({tuple(index) for index, _ in seen}) == 3
