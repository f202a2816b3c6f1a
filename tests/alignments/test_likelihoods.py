"""TokenLikelihood is a Categorical to Pyro and torch, without its logits; of some rows alone it does less work."""

import pickle

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Predictive, TraceEnum_ELBO, config_enumerate
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from pyro_attention import TokenLikelihood
from pyro_attention.alignments.summed import AlignmentsAbove, EnumeratedAlignment

CLOSE = {"rtol": 1e-12, "atol": 1e-12}
VOCABULARY, WIDTH = 7, 3


def layer(dtype=torch.float64):
    return nn.Linear(WIDTH, VOCABULARY, dtype=dtype)


def random_features(*batch):
    return torch.randn(*batch, WIDTH, dtype=torch.float64, requires_grad=True)


def both(features, output, **options):
    """The likelihood, and torch's distribution over all logits."""
    return (TokenLikelihood(features, output.weight, output.bias, **options), dist.Categorical(logits=output(features)))


# as a distribution


def test_shapes_support_and_logits():
    likelihood, reference = both(random_features(1, 4), layer())
    assert likelihood.support.is_discrete
    assert likelihood.support.check(torch.tensor([-1, 0, VOCABULARY - 1, VOCABULARY])).tolist() == [0, 1, 1, 0]
    torch.testing.assert_close(likelihood.logits, reference.logits, **CLOSE)
    without = TokenLikelihood(likelihood.features, likelihood.weight)
    plain = (likelihood.features @ likelihood.weight.T).log_softmax(-1)
    torch.testing.assert_close(without.logits, plain, **CLOSE)
    likelihood, reference = (d.expand([5, 2, 4]) for d in (likelihood, reference))
    assert (likelihood.batch_shape, likelihood.event_shape) == (reference.batch_shape, reference.event_shape)
    token = torch.randint(VOCABULARY, (2, 1))
    for dtype in (torch.uint8, torch.int32, torch.int64):
        torch.testing.assert_close(likelihood.log_prob(token.to(dtype)), reference.log_prob(token), **CLOSE)
    assert likelihood.sample([3]).shape == (3, 5, 2, 4)
    assert pickle.loads(pickle.dumps(likelihood)).batch_shape == (5, 2, 4)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.to_event(2),
        lambda d: d.mask(torch.tensor([True, False, True, True])).to_event(1),
        lambda d: d.mask(False),
        lambda d: d.to_event(1).expand([3, 2]),
        lambda d: d.mask(torch.ones(3, 1, 1, dtype=torch.bool)),
    ],
)
def test_to_event_mask_and_expand(change):
    distributions = [change(d) for d in both(random_features(2, 4), layer())]
    assert len({(d.batch_shape, d.event_shape) for d in distributions}) == 1
    token = torch.randint(VOCABULARY, (2, 4))
    torch.testing.assert_close(*(d.log_prob(token) for d in distributions), check_dtype=False, **CLOSE)


def test_sample_frequencies():
    likelihood, reference = both(random_features(2, 3), layer(), chunk_rows=4)
    draws = likelihood.expand([2, 2, 3]).sample([10_000])
    counted = nn.functional.one_hot(draws, VOCABULARY).double().mean(0)
    error = (reference.probs * (1 - reference.probs) / len(draws)).sqrt()
    assert ((counted - reference.probs) / error).abs().max() < 4
    # every repeat of a row is another draw
    same, expected = (draws[:, 0] == draws[:, 1]).double().mean(0), reference.probs.square().sum(-1)
    assert ((same - expected).abs() < 4 * (expected * (1 - expected) / len(draws)).sqrt()).all()


# of some rows alone


@pytest.mark.parametrize("shape", [(4, 2, 3), (3,), ()], ids=str)
@pytest.mark.parametrize("expand", [False, True])
def test_some_rows_alone(shape, expand):
    """As under a mask; features and tokens broadcast."""
    output, tokens, rows = layer(), torch.randint(VOCABULARY, (2, 3)), torch.rand(shape) > 0.5
    likelihood = TokenLikelihood(random_features(4, 1, 3), output.weight, output.bias).expand([4, 2, 3])
    for wanted in (rows, torch.zeros_like(rows)):
        some = likelihood.where(wanted)
        some = some.expand([5, 4, 2, 3]) if expand else some
        expected = likelihood.log_prob(tokens).where(wanted, 0)
        found = some.log_prob(tokens)
        torch.testing.assert_close(found, expected.expand_as(found), **CLOSE)
        inputs = likelihood.features, output.weight, output.bias
        gradients = [torch.autograd.grad(value.sum(), inputs) for value in (found / (5 if expand else 1), expected)]
        torch.testing.assert_close(*gradients, **CLOSE)
    with pytest.raises(ValueError, match=r"rows have shape \(7,\), .* the batch shape \(4, 2, 3\)"):
        likelihood.where(torch.ones(7, dtype=torch.bool))


@pytest.mark.parametrize("summed", [True, False])
def test_a_row_of_features_for_many_tokens_is_computed_once(summed):
    """Words that are read from the context alone: rows of logits for the source words, not for every pair of words."""
    output, (target, source) = layer(), (6, 4)
    likelihood = TokenLikelihood(random_features(source, 1), output.weight, output.bias).expand([source, target])
    tokens, rows = torch.randint(VOCABULARY, (target,)), torch.rand(source, target) > 0.2
    some = likelihood.where(rows)
    if summed:
        alignment = EnumeratedAlignment(rows, -2, torch.zeros(source, target), evidence=True, readers=[])
        some = likelihood.below_alignments(AlignmentsAbove([alignment]))
    with FlopCounterMode(display=False) as counter:
        found = some.log_prob(tokens)
    torch.testing.assert_close(found, likelihood.log_prob(tokens).where(rows, 0), **CLOSE)
    assert counter.get_total_flops() == 2 * source * output.weight.numel()


# in Pyro


class Alignments(nn.Module):
    """Each target position looks at one source position, and says a token about it and its own state, if any."""

    def __init__(self, likelihood, *, padded_sources=0, states=True):
        super().__init__()
        self.likelihood = likelihood
        self.scores = nn.Parameter(torch.randn(2, 3, 4, dtype=torch.float64))
        self.keys = nn.Parameter(torch.randn(2, 4, WIDTH, dtype=torch.float64))
        self.states = nn.Parameter(torch.randn(2, 3 if states else 1, WIDTH, dtype=torch.float64))
        self.output, self.token = layer(), torch.randint(VOCABULARY, (2, 3))
        self.kept = torch.tensor([[True, True, True], [True, False, False]])
        self.padding = torch.zeros(2, 1, 4, dtype=torch.bool)
        self.padding[0, :, 4 - padded_sources :] = True

    def forward(self):
        pyro.module("alignments", self)
        with pyro.plate("batch", 2, dim=-2), pyro.plate("targets", 3, dim=-1), poutine.mask(mask=self.kept):
            logits = self.scores.masked_fill(self.padding, -torch.inf)
            z = pyro.sample("z", dist.Categorical(logits=logits), infer={"enumerate": "parallel"})
            features = (self.keys[torch.arange(2)[:, None], z] + self.states).tanh()
            pyro.sample("token", self.likelihood(features, self.output), obs=self.token)

    def brute_force(self):
        """Log evidence, one alignment after the other."""
        logits = self.scores.masked_fill(self.padding, -torch.inf).log_softmax(-1)
        terms = []
        for source in range(4):
            log_probs = self.output((self.keys[:, source, None] + self.states).tanh()).log_softmax(-1)
            log_probs = log_probs.expand(2, 3, -1).gather(-1, self.token.unsqueeze(-1)).squeeze(-1)
            terms.append(logits[..., source] + log_probs)
        return torch.stack(terms).logsumexp(0).where(self.kept, 0).sum()


def chunked(features, output):
    return TokenLikelihood(features, output.weight, output.bias, chunk_rows=5)


@pytest.mark.parametrize("padded_sources", [0, 2])
@pytest.mark.parametrize("states", [True, False])
def test_enumerated_alignments_equal_brute_force(states, padded_sources):
    model = Alignments(chunked, padded_sources=padded_sources, states=states)
    loss = TraceEnum_ELBO(max_plate_nesting=2).differentiable_loss(model, lambda: None)
    expected, parameters = -model.brute_force(), list(model.parameters())
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-10)
    found = [torch.autograd.grad(value, parameters) for value in (loss, expected)]
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)


def test_alignments_enumerated_in_the_guide():
    """E_q[log f] minus the KL, as with all logits."""
    losses = []
    for likelihood in (chunked, lambda features, output: dist.Categorical(logits=output(features))):
        pyro.set_rng_seed(0)
        model = Alignments(likelihood)
        scores = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)

        @config_enumerate
        def guide(scores=scores):
            with pyro.plate("batch", 2, dim=-2), pyro.plate("targets", 3, dim=-1):
                pyro.sample("z", dist.Categorical(logits=scores))

        loss = TraceEnum_ELBO(max_plate_nesting=2).differentiable_loss(model, guide)
        losses.append((loss, *torch.autograd.grad(loss, [scores, *model.parameters()])))
        assert Predictive(poutine.uncondition(model), num_samples=5)()["token"].shape == (5, 2, 3)
    torch.testing.assert_close(*losses, **CLOSE)


# bad input

X, W = torch.zeros(2, 3), torch.zeros(5, 3)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((torch.zeros(2, 4), W), {}, r"features, weight and bias have shapes \[\(2, 4\), \(5, 3\), None\]"),
        ((X, torch.zeros(0, 3)), {}, "of at least one token"),
        ((X, W, torch.zeros(3)), {}, r"and a bias \[V\]"),
        ((X, W), {"chunk_rows": 0}, "chunk_rows is 0, expected an integer of at least 1"),
    ],
)
def test_bad_layer(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        TokenLikelihood(*arguments, **options)


@pytest.mark.parametrize(
    ("token", "error", "message"),
    [
        (torch.tensor([0, 7]), ValueError, r"tokens from 0 to 7, expected ids in 0 \.\. 6; padded positions"),
        (torch.tensor([0, 1, 2]), ValueError, r"tokens of shape \(3,\) do not broadcast against \(2,\)"),
        (torch.tensor([0.0, 1.0]), TypeError, r"tokens are torch.float32, expected an integer tensor.*\.long\(\)"),
    ],
)
def test_bad_token(token, error, message):
    with pytest.raises(error, match=message):
        TokenLikelihood(random_features(2), layer().weight).log_prob(token)


def test_no_tokens():
    """Such as those of a batch whose sentences are all padding."""
    likelihood = TokenLikelihood(torch.randn(0, 4), torch.randn(5, 4), validate_args=True)
    assert likelihood.log_prob(torch.zeros(0, dtype=torch.long)).shape == (0,)
