"""TokenLikelihood is a Categorical to Pyro and torch, without its logits."""

import pickle
from contextlib import nullcontext

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Predictive, TraceEnum_ELBO, config_enumerate
from pyro.optim import Adam
from torch import nn
from torch.nn.functional import linear

from pyro_attention.likelihoods import TokenLikelihood

CLOSE = {"rtol": 1e-12, "atol": 1e-12}
VOCABULARY, WIDTH = 7, 3


def layer(dtype=torch.float64):
    return nn.Linear(WIDTH, VOCABULARY, dtype=dtype)


def random_features(*batch, dtype=torch.float64):
    return torch.randn(*batch, WIDTH, dtype=dtype, requires_grad=True)


def both(features, output, **options):
    """The likelihood, and torch's distribution over all logits."""
    return (TokenLikelihood(features, output.weight, output.bias, **options), dist.Categorical(logits=output(features)))


class Alignments(nn.Module):
    """Each target position looks at one source position, and says a token about it and its own state, if any."""

    def __init__(self, likelihood, *, sources=4, batch=2, targets=3, padded_sources=0, states=True):
        super().__init__()
        self.likelihood, self.shape = likelihood, (batch, targets)
        self.scores = nn.Parameter(torch.randn(batch, targets, sources, dtype=torch.float64))
        self.keys = nn.Parameter(torch.randn(batch, sources, WIDTH, dtype=torch.float64))
        self.states = nn.Parameter(torch.randn(batch, targets if states else 1, WIDTH, dtype=torch.float64))
        self.output = layer()
        self.token = torch.randint(VOCABULARY, (batch, targets))
        self.kept = torch.ones(batch, targets, dtype=torch.bool)
        self.padding = torch.zeros(batch, 1, sources, dtype=torch.bool)
        self.padding[0, :, sources - padded_sources :] = True

    def forward(self):
        pyro.module("alignments", self)
        batch, targets = self.shape
        with pyro.plate("batch", batch, dim=-2), pyro.plate("targets", targets, dim=-1), poutine.mask(mask=self.kept):
            logits = self.scores.masked_fill(self.padding, -torch.inf)
            z = pyro.sample("z", dist.Categorical(logits=logits), infer={"enumerate": "parallel"})
            features = (self.keys[torch.arange(batch)[:, None], z] + self.states).tanh()
            pyro.sample("token", self.likelihood(features, self.output), obs=self.token)

    def brute_force(self):
        """Log evidence, one alignment after the other."""
        logits = self.scores.masked_fill(self.padding, -torch.inf).log_softmax(-1)
        terms = []
        for source in range(self.keys.size(1)):
            log_probs = self.output((self.keys[:, source, None] + self.states).tanh()).log_softmax(-1)
            log_probs = log_probs.expand(*self.shape, -1).gather(-1, self.token.unsqueeze(-1)).squeeze(-1)
            terms.append(logits[..., source] + log_probs)
        return torch.stack(terms).logsumexp(0).where(self.kept, 0).sum()


def chunked(features, output):
    return TokenLikelihood(features, output.weight, output.bias, chunk_rows=5)


def no_guide():
    pass


# as a distribution


def test_shapes_and_support():
    likelihood, reference = both(random_features(2, 4), layer())
    assert (likelihood.batch_shape, likelihood.event_shape) == (reference.batch_shape, reference.event_shape)
    assert likelihood.support.is_discrete
    assert likelihood.support.check(torch.tensor([-1, 0, VOCABULARY - 1, VOCABULARY])).tolist() == [0, 1, 1, 0]
    assert not likelihood.has_rsample
    assert TokenLikelihood.support.is_discrete
    assert repr(likelihood) == "TokenLikelihood(batch_shape=(2, 4), vocabulary=7, width=3)"
    torch.testing.assert_close(likelihood.logits, reference.logits, **CLOSE)
    assert pickle.loads(pickle.dumps(likelihood)).batch_shape == (2, 4)


@pytest.mark.parametrize("bias", [True, False])
def test_logits_without_and_with_expansion(bias):
    features, output = random_features(4), layer()
    likelihood = TokenLikelihood(features, output.weight, output.bias if bias else None)
    logits = linear(features, output.weight, output.bias if bias else None).log_softmax(-1)
    torch.testing.assert_close(likelihood.logits, logits, **CLOSE)
    assert torch.equal(likelihood.expand([2, 4]).logits, likelihood.logits.expand(2, 4, -1))


def test_expand_shares_its_tensors():
    features, output = random_features(1, 4), layer()
    likelihood, reference = (d.expand([5, 2, 4]) for d in both(features, output))
    assert likelihood.batch_shape == (5, 2, 4)
    assert likelihood.features is features
    assert likelihood.weight is output.weight
    token = torch.randint(VOCABULARY, (2, 1))
    torch.testing.assert_close(likelihood.log_prob(token), reference.log_prob(token), **CLOSE)
    assert likelihood.sample([3]).shape == (3, 5, 2, 4)
    assert likelihood.expand_by([6]).batch_shape == (6, 5, 2, 4)


@pytest.mark.parametrize("shape", [[4], [3, 3]], ids=str)
def test_shapes_that_do_not_expand(shape):
    likelihood, _ = both(random_features(1, 4), layer())
    with pytest.raises(ValueError, match=r"cannot expand batch shape \(5, 2, 4\) to"):
        likelihood.expand([5, 2, 4]).expand(shape)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.to_event(1),
        lambda d: d.to_event(2),
        lambda d: d.mask(torch.tensor([True, False, True, True])),
        lambda d: d.mask(torch.tensor([True, False, True, True])).to_event(1),
        lambda d: d.mask(False),
        lambda d: d.expand([3, 2, 4]).to_event(2),
        lambda d: d.to_event(1).expand([3, 2]),
        lambda d: d.mask(torch.ones(3, 1, 1, dtype=torch.bool)),
    ],
)
def test_to_event_mask_and_expand(change):
    distributions = [change(d) for d in both(random_features(2, 4), layer())]
    assert len({(d.batch_shape, d.event_shape) for d in distributions}) == 1
    token = torch.randint(VOCABULARY, (2, 4))
    torch.testing.assert_close(*(d.log_prob(token) for d in distributions), check_dtype=False, **CLOSE)
    assert distributions[0].sample([2]).shape == distributions[1].sample([2]).shape


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64], ids=str)
def test_any_integer_token(dtype):
    likelihood, reference = both(random_features(4), layer())
    token = torch.tensor([0, 6, 3, 0])
    torch.testing.assert_close(likelihood.log_prob(token.to(dtype)), reference.log_prob(token), **CLOSE)
    single = TokenLikelihood(torch.randn(WIDTH), torch.randn(1, WIDTH))
    assert single.log_prob(torch.tensor(0, dtype=dtype)) == 0
    assert single.sample() == 0


def test_sample_frequencies():
    likelihood, reference = both(random_features(2, 3), layer(), chunk_rows=4)
    draws = likelihood.sample([20_000])
    counted = nn.functional.one_hot(draws, VOCABULARY).double().mean(0)
    error = (reference.probs * (1 - reference.probs) / len(draws)).sqrt()
    assert ((counted - reference.probs) / error).abs().max() < 4
    assert not draws.is_floating_point()


@pytest.mark.parametrize("inside", [True, False])
def test_autocast(inside):
    """The loss may be computed inside or outside the autocast region of the network."""
    output, network = layer(torch.float32), nn.Linear(WIDTH, WIDTH)
    x, token = torch.randn(6, WIDTH), torch.randint(VOCABULARY, (6,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features = network(x)
        likelihood, reference = both(features, output)
        value = likelihood.log_prob(token) if inside else None
        logits = likelihood.logits
    value = likelihood.log_prob(token) if value is None else value
    assert features.dtype == torch.bfloat16
    assert value.dtype == logits.dtype == torch.float32
    torch.testing.assert_close(value, reference.log_prob(token).float(), rtol=0.03, atol=0.03)
    value.sum().backward()
    assert network.weight.grad.isfinite().all()
    assert output.weight.grad.dtype == torch.float32


# in Pyro


def test_observed_in_plates():
    features, output, token = random_features(1, 3), layer(), torch.randint(VOCABULARY, (2, 3))
    kept = torch.tensor([[True, True, False], [True, False, False]])

    def model(likelihood):
        with pyro.plate("batch", 2, dim=-2), pyro.plate("positions", 3, dim=-1):
            pyro.sample("masked", likelihood.mask(kept), obs=token)
            pyro.sample("token", likelihood, obs=token)

    traces = [poutine.trace(model).get_trace(d) for d in both(features, output)]
    for trace in traces:
        trace.compute_log_prob()
    for name in ("masked", "token"):
        one, other = (trace.nodes[name]["log_prob"] for trace in traces)
        assert one.shape == (2, 3)
        torch.testing.assert_close(one, other, **CLOSE)
    assert (traces[0].nodes["masked"]["log_prob"][~kept] == 0).all()
    gradients = [torch.autograd.grad(trace.log_prob_sum(), (features, output.weight, output.bias)) for trace in traces]
    torch.testing.assert_close(*gradients, **CLOSE)


@pytest.mark.parametrize("padded_sources", [0, 2])
@pytest.mark.parametrize("states", [True, False])
def test_enumerated_alignments_equal_brute_force(states, padded_sources):
    model = Alignments(chunked, padded_sources=padded_sources, states=states)
    model.kept[1, 1:] = False
    loss = TraceEnum_ELBO(max_plate_nesting=2).differentiable_loss(model, no_guide)
    expected = -model.brute_force()
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-10)
    parameters = list(model.parameters())
    gradients = [torch.autograd.grad(value, parameters) for value in (loss, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-10)
    assert all(gradient.isfinite().all() for gradient in gradients[0])


def test_enumeration_does_not_expand_the_tokens():
    seen = []

    def likelihood(features, output):
        seen.append(chunked(features, output))
        return seen[-1]

    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        TraceEnum_ELBO(max_plate_nesting=2).differentiable_loss(Alignments(likelihood), no_guide)
    assert seen[-1].batch_shape == (4, 2, 3)
    # the last one: the first ran for the shapes
    assert max(tensor.numel() for tensor in kept if tensor.dtype == torch.int64) < 4 * 2 * 3


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
    torch.testing.assert_close(*losses, **CLOSE)


def test_svi_and_predictive():
    model = Alignments(chunked)
    svi = SVI(model, no_guide, Adam({"lr": 0.05}), TraceEnum_ELBO(max_plate_nesting=2))
    losses = [svi.step() for _ in range(30)]
    assert losses[-1] < losses[0]
    unobserved = poutine.uncondition(model)
    assert Predictive(unobserved, num_samples=5)()["token"].shape == (5, 2, 3)
    trace = poutine.trace(unobserved).get_trace()
    assert trace.log_prob_sum().isfinite()


def test_latent_tokens_are_not_enumerated():
    likelihood, _ = both(random_features(2), layer())
    with pytest.raises(NotImplementedError, match=r"obs=.*Categorical\(logits=likelihood\.logits\)"):
        likelihood.enumerate_support()

    def model():
        with pyro.plate("positions", 2):
            pyro.sample("token", likelihood, infer={"enumerate": "parallel"})

    with pytest.raises(NotImplementedError, match="does not enumerate"):
        TraceEnum_ELBO(max_plate_nesting=1).loss(model, no_guide)


# bad input


zeros = torch.zeros
X, W = zeros(2, 3), zeros(5, 3)


@pytest.mark.parametrize(
    ("features", "weight", "bias", "error", "message"),
    [
        (zeros(2, 4), W, None, ValueError, r"features have shape \(2, 4\), expected \[\.\.\., 3\]"),
        (zeros(()), W, None, ValueError, r"features have shape \(\), expected"),
        (X, zeros(0, 3), None, ValueError, r"weight has shape \(0, 3\).*at least one token"),
        (X, zeros(3), None, ValueError, r"weight has shape \(3,\), expected \[vocabulary, width\]"),
        (X, W, zeros(3), ValueError, r"bias has shape \(3,\), expected \(5,\)"),
        (X, W, zeros(1, 5), ValueError, r"bias has shape \(1, 5\)"),
        (X.long(), W, None, TypeError, r"features is torch.int64, expected a floating"),
        (X, W.int(), None, TypeError, "weight is torch.int32"),
        (X, W, zeros(5).long(), TypeError, "bias is torch.int64"),
        (X, nn.Linear(3, 5), None, TypeError, "weight is Linear"),
        (X.to("meta"), W, None, ValueError, "features is on meta, weight on cpu"),
    ],
)
def test_bad_layer(features, weight, bias, error, message):
    with pytest.raises(error, match=message):
        TokenLikelihood(features, weight, bias)


@pytest.mark.parametrize("chunk_rows", [0, -1, 2.5])
def test_bad_chunk(chunk_rows):
    with pytest.raises(ValueError, match=f"chunk_rows is {chunk_rows}, expected an integer of at least 1"):
        TokenLikelihood(X, W, chunk_rows=chunk_rows)


@pytest.mark.parametrize(
    ("token", "error", "message"),
    [
        (torch.tensor([0, 7]), ValueError, r"tokens from 0 to 7, expected ids in 0 \.\. 6; padded positions"),
        (torch.tensor([-1, 2]), ValueError, r"tokens from -1 to 2"),
        (torch.tensor([0, 1, 2]), ValueError, r"tokens of shape \(3,\) do not broadcast .* \(2,\)"),
        (torch.tensor([0.0, 1.0]), TypeError, r"tokens are torch.float32, expected an integer tensor.*\.long\(\)"),
        (torch.tensor([True, False]), TypeError, r"tokens are torch.bool"),
        (3, TypeError, r"tokens are int"),
        (torch.zeros(2, dtype=torch.int64, device="meta"), ValueError, r"tokens are on meta, features on cpu"),
    ],
)
def test_bad_token(token, error, message):
    likelihood, _ = both(random_features(2), layer())
    with pytest.raises(error, match=message):
        likelihood.log_prob(token)
    if isinstance(token, torch.Tensor) and token.device.type == "cpu" and error is ValueError:
        trace = poutine.trace(lambda: pyro.sample("token", likelihood.to_event(1), obs=token)).get_trace()
        with pytest.raises(ValueError, match=message):
            trace.compute_log_prob()


@pytest.mark.parametrize("validate", [True, False], ids=["validated", "not validated"])
def test_nan_is_named(validate):
    features = torch.randn(2, WIDTH, dtype=torch.float64)
    features[1, 0] = torch.nan
    likelihood = TokenLikelihood(features, layer().weight, validate_args=None if validate else False)
    with pytest.raises(ValueError, match="1 of 2 log probabilities are NaN; ") if validate else nullcontext():
        assert likelihood.log_prob(torch.tensor([0, 1])).isnan().tolist() == [False, True]


@pytest.mark.cuda
def test_enumeration_on_a_gpu():
    model = Alignments(chunked)
    expected = TraceEnum_ELBO(max_plate_nesting=2).loss(model, no_guide)
    model.to("cuda")
    model.token, model.kept, model.padding = (t.cuda() for t in (model.token, model.kept, model.padding))
    loss = TraceEnum_ELBO(max_plate_nesting=2).loss(model, no_guide)
    assert loss == pytest.approx(expected, rel=1e-10)
