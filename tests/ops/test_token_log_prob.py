"""The chunked log probability and its gradients, against torch's Categorical on all logits."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Categorical
from torch.nn.functional import linear

from pyro_attention.ops.token_log_prob import default_chunk_rows, sample_tokens, token_log_prob

CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def problem(batch, token_shape, *, vocabulary=5, width=3, bias=True, dtype=torch.float64):
    """Features, weight, bias and tokens."""
    tensors = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in ((*batch, width), (vocabulary, width))]
    tensors.append(torch.randn(vocabulary, dtype=dtype, requires_grad=True) if bias else None)
    return *tensors, torch.randint(vocabulary, token_shape)


def reference(features, weight, bias, token):
    return Categorical(logits=linear(features, weight, bias)).log_prob(token)


def with_gradients(log_prob, inputs, factors):
    """Value, and gradients of its weighted sum."""
    tensors = [tensor for tensor in inputs if tensor is not None and tensor.requires_grad]
    return log_prob, *torch.autograd.grad((log_prob * factors).sum(), tensors)


@st.composite
def broadcasting_shapes(draw):
    """Shapes of features (without width) and tokens that broadcast, and a number of rows in a chunk."""
    full = draw(st.lists(st.integers(1, 4), max_size=3))
    shapes = []
    for _ in range(2):
        ones = draw(st.lists(st.booleans(), min_size=len(full), max_size=len(full)))
        shape = [1 if one else size for one, size in zip(ones, full, strict=True)]
        shapes.append(tuple(shape[draw(st.integers(0, len(shape))) :]))
    return *shapes, draw(st.sampled_from([1, 2, 3, 7, 100, None]))


@settings(max_examples=150, deadline=None)
@given(broadcasting_shapes(), st.integers(1, 6), st.integers(1, 4), st.booleans(), st.integers(0, 2**31))
def test_equals_categorical(shapes, vocabulary, width, bias, seed):
    torch.manual_seed(seed)
    batch, token_shape, chunk_rows = shapes
    *inputs, token = problem(batch, token_shape, vocabulary=vocabulary, width=width, bias=bias)
    expected = reference(*inputs, token)
    actual = token_log_prob(inputs[0], inputs[1], token, inputs[2], chunk_rows=chunk_rows)
    assert actual.shape == torch.broadcast_shapes(batch, token_shape)
    factors = torch.randn(expected.shape, dtype=torch.float64)
    torch.testing.assert_close(
        with_gradients(actual, inputs, factors), with_gradients(expected, inputs, factors), **CLOSE
    )


@pytest.mark.parametrize("chunk_rows", [1, 4, 100])
@pytest.mark.parametrize(("batch", "token_shape"), [((2, 3), (2, 3)), ((4, 2, 3), (2, 3)), ((3,), (2, 3))])
def test_gradcheck(batch, token_shape, chunk_rows):
    *inputs, token = problem(batch, token_shape)
    assert torch.autograd.gradcheck(lambda x, w, b: token_log_prob(x, w, token, b, chunk_rows=chunk_rows), inputs)


@pytest.mark.parametrize("needed", range(3))
def test_gradient_of_one_input_alone(needed):
    *inputs, token = problem((4, 3), (3,))
    for index, tensor in enumerate(inputs):
        tensor.requires_grad_(index == needed)
    x, w, b = inputs
    results = [
        with_gradients(value, inputs, torch.ones(()))
        for value in (token_log_prob(x, w, token, b, chunk_rows=5), reference(x, w, b, token))
    ]
    torch.testing.assert_close(*results, **CLOSE)
    assert len(results[0]) == 2


@pytest.mark.parametrize("layout", ["strided", "expanded"])
def test_features_in_any_memory_layout(layout):
    x, w, b, token = problem((4, 3), (4,))
    features = x[:, :1].expand(4, 3, 3)
    if layout == "strided":
        x = features = torch.randn(3, 6, 4, dtype=torch.float64).permute(2, 1, 0)[:, ::2].requires_grad_()
    values = token_log_prob(features, w, token[:, None], b, chunk_rows=2), reference(features, w, b, token[:, None])
    torch.testing.assert_close(*(with_gradients(value, (w, b, x), torch.ones(())) for value in values), **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [1e2, 1e4, -1e4])
def test_extreme_logits(size, dtype):
    x = torch.tensor([[1.0], [0.5]], dtype=dtype, requires_grad=True)
    w = torch.tensor([[size], [-size], [0.0]], dtype=dtype, requires_grad=True)
    token = torch.tensor([[0, 1], [1, 0], [2, 2]])
    value = token_log_prob(x, w, token, chunk_rows=1)
    assert (value <= 0).all()
    results = [
        with_gradients(value.double(), (x, w), torch.ones(())),
        with_gradients(reference(x.double(), w.double(), None, token), (x, w), torch.ones(())),
    ]
    assert all(tensor.isfinite().all() for tensor in results[0])
    torch.testing.assert_close(*results)


def test_forbidden_tokens_have_no_probability_and_no_gradient():
    x, w, _, token = problem((4,), (4,))
    bias = torch.tensor([0.0, 0, -torch.inf, 0, 0], dtype=torch.float64)
    token = token.masked_fill(token == 2, 1)
    gradient = torch.autograd.grad(token_log_prob(x, w, token, bias).sum(), w)[0]
    assert (gradient[2] == 0).all()
    assert gradient.isfinite().all()
    assert (token_log_prob(x, w, torch.full((4,), 2), bias) == -torch.inf).all()


def test_rows_without_gradient_are_skipped(monkeypatch):
    """Padding costs nothing in the backward pass, whatever stands there."""
    x, w, b, token = problem((6,), (6,))
    kept = torch.tensor([True, False, True, False, False, True])
    with torch.no_grad():
        x[~kept] = torch.nan
    loss = token_log_prob(x, w, token, b, chunk_rows=2).where(kept, 0).sum()
    sizes, addmm = [], torch.addmm
    monkeypatch.setattr(torch, "addmm", lambda *args, **kw: sizes.append(len(args[1])) or addmm(*args, **kw))
    actual = torch.autograd.grad(loss, (x, w, b))
    assert sizes == [2, 1]
    assert (actual[0][~kept] == 0).all()
    expected = torch.autograd.grad(reference(x[kept], w, b, token[kept]).sum(), (x, w, b))
    torch.testing.assert_close(actual[0][kept], expected[0][kept], **CLOSE)
    torch.testing.assert_close(actual[1:], expected[1:], **CLOSE)


def test_never_holds_more_than_a_chunk_of_logits():
    """No tensor of forward or backward, and nothing kept between them, is larger than a chunk."""
    x, w, b, token = problem((8, 10), (10,), vocabulary=50, dtype=torch.float32)
    kept, largest = [], 0

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                largest = max(largest, result.untyped_storage().nbytes())
            return result

    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.append(t.untyped_storage().nbytes()) or t, lambda t: t
    ):
        value = token_log_prob(x, w, token, b, chunk_rows=4)
    with Sizes():
        token_log_prob(x, w, token, b, chunk_rows=4).sum().backward()
        value.sum().backward()
    assert largest <= max(4 * 50, x.numel(), w.numel()) * 4
    # features, weight, bias, tokens not expanded over the 8, and one number a row
    assert sorted(kept) == sorted([4 * x.numel(), 4 * w.numel(), 4 * b.numel(), 8 * 10, 4 * 80])


def test_backward_twice():
    x, w, b, token = problem((3,), (3,))
    loss = token_log_prob(x, w, token, b).sum()
    first, second = (torch.autograd.grad(loss, (x, w, b), retain_graph=True) for _ in range(2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


@pytest.mark.parametrize("factor", [torch.ones_like, torch.sum], ids=["constant", "sum"])
def test_second_derivative(factor):
    x, w, b, token = problem((3,), (3,))
    loss = (factor(x) * token_log_prob(x, w, token, b).sum()).sum()
    with pytest.raises(RuntimeError, match=r"differentiable once.*TokenLikelihood\.logits"):
        torch.autograd.grad(loss, x, create_graph=True)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
def test_without_gradients_and_inside_autocast(grad, autocast):
    x, w, b, token = problem((3,), (3,))
    with torch.set_grad_enabled(grad), torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        value = token_log_prob(x, w, token, b)
    assert value.requires_grad == grad
    torch.testing.assert_close(value.detach(), reference(x, w, b, token).detach(), **CLOSE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("mode", ["inputs", "autocast", "mixed inputs"])
@pytest.mark.parametrize("bias", [True, False])
def test_half_precision(dtype, mode, bias):
    """Products in half precision, the rest in float32: close to the exact value of the rounded inputs."""
    *inputs, token = problem((40, 7), (7,), vocabulary=50, width=16, bias=bias, dtype=torch.float32)
    inputs = [tensor if tensor is None else tensor.detach().to(dtype) for tensor in inputs]
    if mode != "inputs":
        inputs = [t if t is None or (mode == "mixed inputs" and i == 0) else t.float() for i, t in enumerate(inputs)]
    inputs = [tensor if tensor is None else tensor.requires_grad_() for tensor in inputs]
    with torch.autocast("cpu", dtype=dtype, enabled=mode == "autocast"):
        value = token_log_prob(inputs[0], inputs[1], token, inputs[2], chunk_rows=64)
        actual = with_gradients(value, inputs, torch.ones(()))  # an active autocast must not matter here
    assert value.dtype == torch.float32
    assert [g.dtype for g in actual[1:]] == [t.dtype for t in inputs if t is not None]
    doubles = [tensor if tensor is None else tensor.detach().double().requires_grad_() for tensor in inputs]
    expected = with_gradients(reference(*doubles, token), doubles, torch.ones(()))
    for one, other in zip(actual, expected, strict=True):
        error = (one.double() - other).abs().max() / other.abs().max()
        assert error < {"inputs": 0.02, "autocast": 0.02, "mixed inputs": 0.005}[mode]


@pytest.mark.parametrize(
    ("batch", "token_shape"), [((0,), (0,)), ((0,), (2, 0)), ((1,), (0,)), ((3, 0), ()), ((0, 2), (2,))]
)
def test_nothing_observed(batch, token_shape):
    *inputs, token = problem(batch, token_shape)
    value = token_log_prob(inputs[0], inputs[1], token, inputs[2])
    assert value.shape == torch.broadcast_shapes(batch, token_shape)
    assert all((g == 0).all() for g in torch.autograd.grad(value.sum(), inputs))
    assert sample_tokens(inputs[0], inputs[1], shape=value.shape).shape == value.shape


@pytest.mark.parametrize(
    ("arguments", "device", "rows"),
    [
        ((10_000,), "cpu", 200),
        ((10_000,), "cuda:0", 1000),
        ((10_000, torch.float64), "cpu", 100),
        ((10**9,), "cpu", 1),
    ],
)
def test_default_chunk(arguments, device, rows):
    assert default_chunk_rows(*arguments, device=device) == rows


@pytest.mark.parametrize("chunk_rows", [1, None])
def test_sample_frequencies(chunk_rows):
    x, w, b, _ = problem((2, 1), ())
    x.data *= 0.5
    shape = torch.Size([20_000, 2, 2])  # every draw and every repeat of a row is a new one
    tokens = sample_tokens(x, w, b, shape=shape, chunk_rows=chunk_rows)
    assert tokens.shape == shape
    probabilities = linear(x, w, b).softmax(-1)
    counted = torch.nn.functional.one_hot(tokens, 5).double().mean(0)
    error = (probabilities * (1 - probabilities) / shape[0]).sqrt()
    assert ((counted - probabilities) / error).abs().max() < 4
    same = (tokens[..., 0] == tokens[..., 1]).double().mean(0)
    expected = (probabilities**2).sum(-1).squeeze(-1)
    assert ((same - expected).abs() < 4 * (expected * (1 - expected) / shape[0]).sqrt()).all()


@pytest.mark.cuda
@pytest.mark.parametrize("autocast", [False, True])
def test_equals_the_cpu(autocast):
    *inputs, token = problem((6, 20), (20,), vocabulary=100, width=16, dtype=torch.float32)
    results = []
    for device in ("cpu", "cuda"):
        moved = [tensor.detach().to(device).requires_grad_() for tensor in inputs]
        with torch.autocast(device, dtype=torch.bfloat16, enabled=autocast):
            value = token_log_prob(moved[0], moved[1], token.to(device), moved[2], chunk_rows=32)
        results.append([tensor.cpu() for tensor in with_gradients(value, moved, torch.ones((), device=device))])
        assert sample_tokens(moved[0], moved[1], shape=value.shape).device.type == device
    tolerance = 0.05 if autocast else 1e-4
    torch.testing.assert_close(*results, rtol=tolerance, atol=tolerance)
