"""The pair of plain functions under the ELBOs of stock Pyro, against this library's objectives and guide."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO, TraceEnum_ELBO, TraceMeanField_ELBO, config_enumerate
from pyro.infer.autoguide import AutoNormalMessenger
from torch import nn

from pyro_attention import (
    AlignmentELBO,
    AlignmentPrior,
    Amortized,
    AttentionELBO,
    AttentionGuide,
    Categorical,
    ContextualGammaPrior,
    EdgeList,
    FromPrior,
    Gamma,
    LatentAttention,
    LogNormal,
    Marginal,
    NodeLikelihood,
    ScorePrior,
    Soft,
    Weibull,
)
from pyro_attention.alignments.priors import SparseAlignmentPrior
from pyro_attention.families.base import Family
from pyro_attention.integrations.stock_pyro import model_and_guide
from tests.toy_alignments import Network, Toy, make_problem
from tests.toy_models import SelfAttention, Sequences, Shifted


@pytest.fixture(autouse=True)
def fresh():
    pyro.clear_param_store()
    pyro.set_rng_seed(0)


def stock_loss(guide, elbo, *arguments):
    pyro.set_rng_seed(1)
    return elbo.differentiable_loss(*model_and_guide(guide), *arguments)


def conditioned(guide, values):
    """The pair with values that are given, which the guide does not draw."""
    plain_model, plain_guide = model_and_guide(guide)
    given = poutine.block(poutine.condition(plain_guide, values), hide=list(values))
    return poutine.condition(plain_model, values), given


@pytest.mark.parametrize("prior", [AlignmentPrior, SparseAlignmentPrior])
@pytest.mark.parametrize("family", ["marginal", "hard", "network"])
def test_exact_sums_are_those_of_alignment_elbo(family, prior):
    """Value and gradients."""
    model, problem, network = Toy(prior), make_problem(), Network()
    families = {"marginal": Marginal(), "hard": Categorical(), "network": Amortized(network, Categorical())}
    guide = AttentionGuide(model, families[family])
    losses = (
        AlignmentELBO(max_plate_nesting=2).differentiable_loss(model, guide, *problem),
        stock_loss(guide, TraceEnum_ELBO(max_plate_nesting=2), *problem),
    )
    torch.testing.assert_close(*losses)
    parameters = [*model.parameters(), *(network.parameters() if family == "network" else ())]
    slopes = [torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True) for loss in losses]
    torch.testing.assert_close(*slopes)


def test_the_plate_nesting_is_guessed_and_particles_are_taken():
    model, problem = Toy(), make_problem()
    guide = AttentionGuide(model, Marginal())
    loss = AlignmentELBO(max_plate_nesting=2).loss(model, guide, *problem)
    assert TraceEnum_ELBO().loss(*model_and_guide(guide), *problem) == pytest.approx(loss)
    particles = TraceEnum_ELBO(num_particles=3, vectorize_particles=True, max_plate_nesting=2)
    hard = AttentionGuide(model, Categorical())
    assert stock_loss(hard, particles, *problem).item() == pytest.approx(AlignmentELBO().loss(model, hard, *problem))


positive_families = pytest.mark.parametrize(
    ("prior", "family"),
    [
        (ContextualGammaPrior, Weibull(5.0)),
        (ContextualGammaPrior, LogNormal(0.3)),
        (ContextualGammaPrior, Gamma(5.0)),
        (ContextualGammaPrior, Soft()),
        (lambda *_: ScorePrior(LogNormal(0.3)), FromPrior()),
    ],
    ids=lambda value: str(value) if isinstance(value, Family) else "prior",
)


@positive_families
def test_draws_are_those_of_the_guide(prior, family):
    """With the same noise TraceMeanField_ELBO has the loss of AttentionELBO, also where there is no prior term."""
    data, model = Sequences.random(), SelfAttention(prior=prior)
    guide = AttentionGuide(model, family)
    pyro.set_rng_seed(1)
    expected = AttentionELBO().differentiable_loss(model, guide, data.x, data.y, data.padding)
    for elbo in (TraceMeanField_ELBO(), *([] if family.has_prior_term else [Trace_ELBO()])):
        torch.testing.assert_close(stock_loss(guide, elbo, data.x, data.y, data.padding), expected)


@pytest.mark.parametrize("given", [["layers.0"], ["layers.0", "layers.1"]])
@positive_families
def test_attention_that_is_given_is_scored_by_its_prior(prior, family, given):
    """As by the guide, also where the family has no prior term."""
    data, model = Sequences.random(), SelfAttention(prior=prior)
    guide, arguments = AttentionGuide(model, family), (data.x, data.y, data.padding)
    values = {name: torch.randn(6, 2, 5, 5) for name in given}
    pyro.set_rng_seed(1)
    expected = AttentionELBO().loss(model, poutine.condition(guide, values), *arguments)
    pair = conditioned(guide, values)
    pyro.set_rng_seed(1)
    assert TraceMeanField_ELBO().loss(*pair, *arguments) == pytest.approx(expected)


@pytest.mark.parametrize("family", [Marginal(), Categorical(), Categorical(enumerate=False), Soft()], ids=str)
def test_an_alignment_that_is_given_is_scored_by_its_prior(family):
    model, problem = Toy(), make_problem()
    guide, values = AttentionGuide(model, family), {"alignment": torch.zeros(2, 3, dtype=torch.long)}
    expected = AttentionELBO().loss(model, poutine.condition(guide, values), *problem)
    assert Trace_ELBO().loss(*conditioned(guide, values), *problem) == pytest.approx(expected)


def test_other_latent_sites_have_their_messengers():
    """And a minibatch is shared by model and guide."""
    data, model = Sequences.random(), Shifted(subsample=3)
    beside = {name: AutoNormalMessenger(model) for name in ("shift", "noise", "effect")}
    guide = AttentionGuide(model, {"layers.0": Weibull(5.0), **beside})
    guide(data.x, data.y)
    pyro.set_rng_seed(1)
    expected = AttentionELBO(kl="sampled").differentiable_loss(model, guide, data.x, data.y)
    torch.testing.assert_close(stock_loss(guide, Trace_ELBO(), data.x, data.y), expected)


def test_svi_trains_it():
    model, problem = Toy(), make_problem()
    guide = AttentionGuide(model, Marginal())
    svi = SVI(*model_and_guide(guide), pyro.optim.Adam({"lr": 0.05}), TraceEnum_ELBO(max_plate_nesting=2))
    losses = [svi.step(*problem) for _ in range(20)]
    assert losses[-1] < losses[0] - 1
    assert AlignmentELBO(max_plate_nesting=2).loss(model, guide, *problem) < losses[0] - 1


def test_a_detour_is_another_bound():
    """What the page warns of: the guide, wrapped by hand, gives hard attention's bound in the place of the evidence."""
    model, problem = Toy(), make_problem()
    guide = AttentionGuide(model, Marginal())

    def wrapped(*data):
        with poutine.block(hide_fn=lambda site: site["type"] == "sample" and site["is_observed"]):
            guide(*data)

    stock, ours = TraceEnum_ELBO(max_plate_nesting=2), AlignmentELBO(max_plate_nesting=2)
    hard = ours.loss(model, AttentionGuide(model, Categorical()), *problem)
    assert stock.loss(model, wrapped, *problem) == pytest.approx(hard)
    evidence = stock.loss(config_enumerate(model), lambda *_: None, *problem)
    assert evidence == pytest.approx(stock.loss(*model_and_guide(guide), *problem))
    assert evidence < hard - 0.01


# bad input


def test_what_it_cannot_take():
    model = Toy()
    with pytest.raises(TypeError, match="expected an AttentionGuide"):
        model_and_guide(lambda: None)
    with pytest.raises(TypeError, match="the guide has handlers around it"):
        model_and_guide(poutine.scale(AttentionGuide(model, Marginal()), 2.0))
    with pytest.raises(ValueError, match="the guide mixes Marginal with other families"):
        model_and_guide(AttentionGuide(model, {"a": Marginal(), "*": Soft()}))


def test_edges_are_refused():
    graph = EdgeList.from_edge_index(torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
    attention, linear = LatentAttention("edges", AlignmentPrior()), nn.Linear(1, 1)

    def model():
        output = attention(torch.zeros(2, 1), torch.zeros(2, 1, 1), layout=graph)
        logits = dist.Normal(linear(output.context.squeeze(-2)).squeeze(-1), 1.0)
        pyro.sample("y", NodeLikelihood(logits, output), obs=torch.zeros(2))

    with pytest.raises(NotImplementedError, match="site 'edges' is an alignment over the edges of a graph"):
        TraceEnum_ELBO(max_plate_nesting=0).loss(*model_and_guide(AttentionGuide(model, Marginal())))
