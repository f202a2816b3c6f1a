"""The score-function estimator against the exact gradient."""

import functools

import pyro
import pytest
import torch

from pyro_attention import AttentionGuide, Weibull
from pyro_attention.alignment import Amortised, Categorical, ExpectedAlignment
from pyro_attention.alignment_elbo import AlignmentELBO
from pyro_attention.elbo import AttentionELBO
from pyro_attention.score_function import ScoreFunctionELBO
from tests.test_alignment import WIDTH, Network, Toy, make_problem

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
    soft = pyro.infer.Trace_ELBO().loss(model, AttentionGuide(model, ExpectedAlignment()), *problem)
    assert -elbo._soft["label"].sum().item() == pytest.approx(soft)


def test_trains_by_svi():
    problem = make_problem()
    model = Toy()
    guide = AttentionGuide(model, Amortised(Network(), Categorical(enumerate=False)))
    svi = pyro.infer.SVI(model, guide, pyro.optim.Adam({"lr": 0.02}), ScoreFunctionELBO(num_particles=2))
    losses = [svi.step(*problem) for _ in range(100)]
    assert sum(losses[-20:]) < 0.8 * sum(losses[:20])


def test_bad_input():
    problem = make_problem()
    with pytest.raises(ValueError, match="baseline is 'moving'"):
        ScoreFunctionELBO(baseline="moving")
    with pytest.raises(ValueError, match="expected False"):
        ScoreFunctionELBO(vectorize_particles=True, num_particles=2)
    model = Toy()
    with pytest.raises(ValueError, match="expected an AttentionGuide"):
        ScoreFunctionELBO().loss(model, lambda *_: None, *problem)
    guide = AttentionGuide(model, Categorical(enumerate=False))
    with pytest.raises(ValueError, match="AlignmentELBO or ScoreFunctionELBO"):
        AttentionELBO().loss(model, guide, *problem)
    with pytest.raises(ValueError, match="kind 'positive weights'"):
        ScoreFunctionELBO().loss(model, AttentionGuide(model, Weibull()), *problem)
