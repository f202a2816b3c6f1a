"""Plates that are opened after an alignment was drawn, beside it or below it, against sums over every alignment."""

import itertools

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine

from pyro_attention import (
    AlignmentELBO,
    AlignmentPrior,
    AttentionGuide,
    Categorical,
    Dense,
    LatentAttention,
    Marginal,
    TokenLikelihood,
    exact_alignments,
)

KEYS = 3


pytestmark = pytest.mark.usefixtures("double")


class Reader:
    """Scores and values that need gradients, and the sites of a model."""

    def __init__(self):
        self.first, self.second = (LatentAttention(name, AlignmentPrior()) for name in ("first", "second"))
        self.scores, self.inner = torch.randn(2, 1, KEYS), torch.randn(2, 2, 1, KEYS)
        self.values, self.output = torch.randn(1, KEYS, 2), torch.randn(5, 2)
        self.y, self.tokens = torch.randn(2, 2), torch.randint(5, (2, 2))
        self.parameters = [self.scores, self.inner, self.values, self.output]
        for parameter in self.parameters:
            parameter.requires_grad_()

    def read(self, attention, scores):
        return attention(scores, self.values, layout=Dense(event_dim=2)).context.squeeze(-2)

    def observe(self, name, context, y):
        pyro.sample(name, dist.Normal(context[..., 0], 0.5), obs=y)


def sibling_alignments(r):
    with pyro.plate("a", 2):
        r.observe("y", r.read(r.first, r.scores), r.y[0])
    with pyro.plate("b", 2):
        r.observe("x", r.read(r.second, r.inner[0]), r.y[1])


def sibling_observations(r):
    with pyro.plate("a", 2):
        r.observe("y", r.read(r.first, r.scores), r.y[0])
    with pyro.plate("b", 2):
        pyro.sample("x", dist.Normal(r.values[0, :2, 0], 1.0), obs=r.y[1])


def several_observations_of_a_query(r):
    with pyro.plate("queries", 2, dim=-1):
        context = r.read(r.first, r.scores)
        with pyro.plate("repeats", 2, dim=-2):
            r.observe("y", context, r.y)


def several_words_of_a_query(r):
    with pyro.plate("queries", 2, dim=-1):
        context = r.read(r.first, r.scores)
        with pyro.plate("repeats", 2, dim=-2):
            pyro.sample("y", TokenLikelihood(context, r.output), obs=r.tokens)


def one_alignment_of_all(r):
    context = r.read(r.first, r.scores[0])
    with pyro.plate("items", 2):
        r.observe("y", context, r.y[0])


def alignments_below_alignments(r):
    with pyro.plate("sentences", 2, dim=-2):
        outer = r.read(r.first, r.scores.unsqueeze(1))
        with pyro.plate("words", 2, dim=-1):
            inner = r.read(r.second, r.inner)
            r.observe("y", outer + inner, r.y)


def alignments_that_read_alignments(r):
    with pyro.plate("sentences", 2, dim=-2):
        outer = r.read(r.first, r.scores.unsqueeze(1))
        with pyro.plate("words", 2, dim=-1):
            inner = r.read(r.second, r.inner + outer[..., :1, None])
            r.observe("y", inner, r.y)


def steps_of_a_sequential_plate(r):
    queries = pyro.plate("queries", 2)
    with queries:
        context = r.read(r.first, r.scores)
    for step in pyro.plate("steps", 2):
        with queries:
            r.observe(f"y_{step}", context if step else -context, r.y[step])


def a_minibatch_below(r):
    with pyro.plate("queries", 2, dim=-1):
        context = r.read(r.first, r.scores)
        with pyro.plate("repeats", 4, subsample=torch.tensor([0, 1]), dim=-2):
            r.observe("y", context, r.y)


MODELS = [
    sibling_alignments,
    sibling_observations,
    several_observations_of_a_query,
    several_words_of_a_query,
    one_alignment_of_all,
    alignments_below_alignments,
    alignments_that_read_alignments,
    steps_of_a_sequential_plate,
]


def outside_of_the_plate(r):
    with pyro.plate("a", 2):
        context = r.read(r.first, r.scores)
    with pyro.plate("b", 2):
        r.observe("y", context, r.y[0])


def an_alignment_that_reads_another_plate(r):
    with pyro.plate("a", 2):
        context = r.read(r.first, r.scores)
    with pyro.plate("b", 2):
        r.observe("y", r.read(r.second, r.inner[0] + context[..., :1, None]), r.y[0])


def every_alignment(model, reader):
    """Log prior and log likelihood of every joint alignment, and the keys that each has at every site."""
    nodes = poutine.trace(model).get_trace(reader).nodes
    shapes = {name: nodes[name]["value"].shape for name in ("first", "second") if name in nodes}
    sizes = [shape.numel() for shape in shapes.values()]
    priors, likelihoods, keys = [], [], {name: [] for name in shapes}
    for choice in itertools.product(range(KEYS), repeat=sum(sizes)):
        parts = torch.tensor(choice).split(sizes)
        data = {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
        trace = poutine.trace(poutine.condition(model, data=data)).get_trace(reader)
        trace.compute_log_prob()
        terms = {name: trace.nodes[name]["log_prob_sum"] for name in trace.observation_nodes}
        prior = sum(terms.pop(name) for name in shapes)
        priors.append(prior)
        likelihoods.append(sum(terms.values()))
        for name, value in data.items():
            keys[name].append(torch.nn.functional.one_hot(value, KEYS).double())
    return torch.stack(priors), torch.stack(likelihoods), {name: torch.stack(each) for name, each in keys.items()}


@pytest.mark.parametrize("family", [Marginal(), Categorical()], ids=str)
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_losses_and_gradients_are_those_of_every_alignment(model, family):
    reader = Reader()
    loss = AlignmentELBO().differentiable_loss(model, AttentionGuide(model, family), reader)
    log_p, log_f, _ = every_alignment(model, reader)
    expected = (log_p + log_f).logsumexp(0) if family.is_marginal else (log_p.exp() * log_f).sum()
    torch.testing.assert_close(-loss, expected)
    slopes = [
        torch.autograd.grad(each, reader.parameters, allow_unused=True, materialize_grads=True)
        for each in (-loss, expected)
    ]
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_exact_alignments_are_those_of_every_alignment(model):
    reader = Reader()
    log_p, log_f, keys = every_alignment(model, reader)
    posterior = (log_p + log_f).softmax(0)
    for name, weights in exact_alignments(model, reader).items():
        expected = torch.einsum("s,s...->...", posterior, keys[name])
        torch.testing.assert_close(weights.squeeze(-2).reshape(expected.shape), expected)


@pytest.mark.parametrize("family", [Marginal(), Categorical()], ids=str)
@pytest.mark.parametrize(
    ("model", "reader"),
    [(outside_of_the_plate, "y"), (an_alignment_that_reads_another_plate, "second")],
    ids=lambda part: getattr(part, "__name__", None),
)
def test_what_reads_an_alignment_outside_of_its_plate_is_refused(model, reader, family):
    with pytest.raises(ValueError, match=f"site '{reader}' reads 'first', which is summed out, but lies outside"):
        AlignmentELBO().loss(model, AttentionGuide(model, family), Reader())


def test_a_minibatch_of_the_observations_of_an_alignment():
    """It has no exact sum; under a posterior it is an unbiased estimate, with the scale of the minibatch."""
    reader, model = Reader(), a_minibatch_below
    with pytest.raises(ValueError, match="site 'y' reads 'first', which is summed out, but its scale is 2, expected 1"):
        AlignmentELBO().loss(model, AttentionGuide(model, Marginal()), reader)
    log_p, log_f, _ = every_alignment(model, reader)
    loss = AlignmentELBO().loss(model, AttentionGuide(model, Categorical()), reader)
    assert -loss == pytest.approx((log_p.exp() * log_f).sum().item())
