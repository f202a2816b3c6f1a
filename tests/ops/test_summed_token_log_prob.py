"""Log probabilities with a gradient of their own, against torch's log_softmax of all logits."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import linear

from pyro_attention import AlignmentELBO, TokenLikelihood
from pyro_attention.ops import summed_token_log_prob as module
from pyro_attention.ops.summed_token_log_prob import summed_token_log_prob

CLOSE = {"rtol": 1e-9, "atol": 1e-11}


def problem(groups, size, *, share=0.7, vocabulary=6, width=3, bias=True, dtype=torch.float64):
    """Features, weight, bias, tokens, slots and log weights; some alignments of a group are impossible."""
    slots = (torch.rand(groups * size) < share).nonzero().squeeze(1)
    shapes = (len(slots), width), (vocabulary, width), (vocabulary,)
    x, w, b = (torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes)
    token = torch.randint(vocabulary, (groups,))[slots // size]
    return x, w, b if bias else None, token, slots, torch.randn(groups, size, dtype=dtype)


def reference(x, w, b, token):
    return linear(x, w, b).log_softmax(-1).gather(1, token[:, None]).squeeze(1)


def summed(log_prob, slots, log_weight, *, evidence):
    """One sum a group."""
    weight = log_weight.flatten()[slots]
    terms = log_prob + weight if evidence else log_prob * weight.exp()
    table = torch.full_like(log_weight, -1e30 if evidence else 0.0).flatten().index_copy(0, slots, terms)
    return table.view_as(log_weight).logsumexp(-1) if evidence else table.view_as(log_weight).sum(-1)


def both(inputs, *, evidence, weights=1.0, chunk_rows=None):
    """Value and gradients of the weighted sum of the groups that have a row: found and expected."""
    x, w, b, token, slots, log_weight = inputs
    filled = torch.zeros(len(log_weight), dtype=torch.bool).index_fill(0, slots // log_weight.size(1), True)
    found = summed_token_log_prob(
        x, w, token, b, slots=slots, log_weight=log_weight, evidence=evidence, chunk_rows=chunk_rows
    )
    expected = reference(x, w, b, token)
    leaves = [tensor for tensor in (x, w, b) if tensor is not None and tensor.requires_grad]
    for log_prob in (found, expected):
        loss = (weights * summed(log_prob, slots, log_weight, evidence=evidence))[filled].sum()
        yield [log_prob, *torch.autograd.grad(loss, leaves, retain_graph=True)]


@pytest.fixture
def fallbacks(monkeypatch):
    """What was computed again in a backward pass."""
    calls = []
    original = module._gradients
    monkeypatch.setattr(module, "_gradients", lambda *args: calls.append(args) or original(*args))
    return calls


@settings(max_examples=100, deadline=None)
@given(
    groups=st.integers(1, 6),
    size=st.integers(1, 5),
    share=st.sampled_from([0.4, 1.0]),
    evidence=st.booleans(),
    bias=st.booleans(),
    chunk_rows=st.sampled_from([1, 3, 8, None]),
    factor=st.sampled_from([-1.0, 0.25, 3.0]),
    seed=st.integers(0, 2**31),
)
def test_equals_categorical(groups, size, share, evidence, bias, chunk_rows, factor, seed):
    torch.manual_seed(seed)
    inputs = problem(groups, size, share=share, bias=bias)
    torch.testing.assert_close(*both(inputs, evidence=evidence, weights=factor, chunk_rows=chunk_rows), **CLOSE)


@pytest.mark.parametrize("evidence", [True, False])
def test_logits_are_computed_once(evidence, fallbacks, monkeypatch):
    rows, original = [], module._to_residuals
    monkeypatch.setattr(
        module, "_to_residuals", lambda logits, *args: rows.append(len(logits)) or original(logits, *args)
    )
    inputs = problem(7, 4)
    torch.testing.assert_close(*both(inputs, evidence=evidence, weights=-1.0, chunk_rows=5), **CLOSE)
    assert sum(rows) == len(inputs[0])
    assert len(rows) > 1
    assert not fallbacks


@pytest.mark.parametrize("evidence", [True, False])
def test_right_where_it_is_used_otherwise(evidence, fallbacks):
    """A weight for each sentence, or the other sum."""
    inputs = problem(7, 4)
    torch.testing.assert_close(*both(inputs, evidence=evidence, weights=torch.rand(7)), **CLOSE)
    assert len(fallbacks) == 1
    x, w, b, token, slots, log_weight = inputs
    found = summed_token_log_prob(x, w, token, b, slots=slots, log_weight=log_weight, evidence=evidence)
    expected = reference(x, w, b, token)
    torch.testing.assert_close(*(torch.autograd.grad(y.square().sum(), (x, w, b)) for y in (found, expected)), **CLOSE)
    assert len(fallbacks) == 2


@pytest.mark.parametrize("needed", range(3))
@pytest.mark.parametrize("weights", [1.0, torch.arange(5.0)], ids=["as expected", "otherwise"])
def test_gradient_of_one_input_alone(needed, weights):
    inputs = problem(5, 3)
    for index, tensor in enumerate(inputs[:3]):
        tensor.requires_grad_(index == needed)
    found, expected = both(inputs, evidence=True, weights=weights)
    assert len(found) == 2
    torch.testing.assert_close(found, expected, **CLOSE)


def test_single_precision_is_not_taken_for_another_use(fallbacks):
    """Rounding is not: neither that of long sums nor of large scores."""
    inputs = problem(200, 40, dtype=torch.float32)
    inputs[-1].mul_(10)
    for found, expected in zip(*both(inputs, evidence=True, weights=-1.0), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert not fallbacks


def test_impossible_tokens_and_no_row_at_all():
    x, w, b, token, slots, log_weight = problem(4, 3, share=1.0)
    with torch.no_grad():
        b[2] = -torch.inf
    found = summed_token_log_prob(x, w, torch.full_like(token, 2), b, slots=slots, log_weight=log_weight, evidence=True)
    assert (found == -torch.inf).all()
    nothing = problem(3, 2, share=0.0)
    torch.testing.assert_close(*both(nothing, evidence=True), **CLOSE)


def test_second_derivative_is_an_error():
    x, w, b, token, slots, log_weight = problem(4, 3)
    found = summed_token_log_prob(x, w, token, b, slots=slots, log_weight=log_weight, evidence=True)
    with pytest.raises(RuntimeError, match="differentiable once, but create_graph=True"):
        torch.autograd.grad(found.sum(), x, create_graph=True)


@pytest.mark.parametrize("evidence", [True, False])
@pytest.mark.parametrize("dim", [-1, -2, -3])
def test_likelihood_summed_over_a_dimension(dim, evidence, fallbacks):
    """Features, tokens, rows and weights broadcast."""
    x, w, b, *_ = problem(1, 1)
    x = torch.randn(4, 1, 3, 3, dtype=torch.float64, requires_grad=True)
    likelihood = TokenLikelihood(x, w, b).expand([4, 2, 3])
    rows, log_weight = torch.rand(4, 2, 3) < 0.6, torch.randn(4, 1, 3, dtype=torch.float64)
    rows.select(dim, 0).fill_(True)
    token = torch.randint(len(w), (2, 3))
    results = []
    for some in (likelihood.where(rows).summed_over(dim, log_weight, evidence=evidence), likelihood):
        log_prob = some.log_prob(token).where(rows, 0)
        total = (log_weight + log_prob).masked_fill(~rows, -1e30).logsumexp(dim) if evidence else log_prob
        loss = total.sum() if evidence else (log_weight.exp() * log_prob).sum()
        results.append([log_prob, *torch.autograd.grad(loss, (x, w, b))])
    torch.testing.assert_close(*results, **CLOSE)
    assert not fallbacks


@pytest.mark.parametrize(
    ("dim", "shape", "message"),
    [(0, (4,), "dim is 0, expected one of -1 to -2"), (-1, (5,), r"log_weight has shape \(5,\), which does not")],
)
def test_bad_sums(dim, shape, message):
    likelihood = TokenLikelihood(torch.zeros(2, 4, 3), torch.zeros(5, 3))
    with pytest.raises(ValueError, match=message):
        likelihood.summed_over(dim, torch.zeros(shape), evidence=True)


@pytest.fixture
def roulette_shares(monkeypatch):
    """Shares of the rows before and after those that are small were left out at random."""
    seen = []

    def rounded(groups, shares, original=module._Groups.rounded):
        seen.append((shares, original(groups, shares)))
        return seen[-1][1]

    monkeypatch.setattr(module._Groups, "rounded", rounded)
    return seen


@pytest.mark.parametrize("evidence", [True, False])
def test_roulette_changes_the_shares_of_the_gradient_alone(evidence, roulette_shares, fallbacks):
    inputs = problem(6, 8)
    x, w, b, token, slots, log_weight = inputs
    log_weight = (3 * log_weight).log_softmax(-1)
    options = {"slots": slots, "log_weight": log_weight, "evidence": evidence, "roulette": 0.1}
    found, expected = summed_token_log_prob(x, w, token, b, **options), reference(x, w, b, token)
    torch.testing.assert_close(found, expected, **CLOSE)
    ((shares, rounded),) = roulette_shares
    gradients = (
        torch.autograd.grad(loss.sum(), (x, w, b))
        for loss in (summed(found, slots, log_weight, evidence=evidence), rounded * expected)
    )
    torch.testing.assert_close(*gradients, **CLOSE)
    assert not fallbacks
    assert rounded.count_nonzero() < 0.7 * len(slots)
    assert torch.equal(rounded[shares >= 0.1], shares[shares >= 0.1])


def test_roulette_is_unbiased():
    groups = module._Groups(torch.arange(4), torch.zeros(1, 4), evidence=True, roulette=0.01, chunk_rows=4)
    shares, draws = torch.tensor([0.0, 0.001, 0.004, 0.995], dtype=torch.float64), 20_000
    torch.manual_seed(0)
    rounded = torch.stack([groups.rounded(shares) for _ in range(draws)])
    assert set(rounded[:, :3].unique().tolist()) == {0.0, 0.01}
    error = (shares * (0.01 - shares)).clamp(min=0).div(draws).sqrt()
    assert ((rounded.mean(0) - shares).abs() <= 4 * error + 1e-12).all()


@pytest.mark.parametrize("roulette", [-0.1, 1.0, float("nan")])
def test_bad_roulette(roulette):
    likelihood = TokenLikelihood(torch.zeros(2, 4, 3), torch.zeros(5, 3))
    with pytest.raises(ValueError, match=r"roulette is .*, expected a share in \[0, 1\)"):
        likelihood.summed_over(-1, torch.zeros(4), evidence=True, roulette=roulette)
    with pytest.raises(ValueError, match=r"roulette is .*, expected a probability in \[0, 1\)"):
        AlignmentELBO(roulette=roulette)
