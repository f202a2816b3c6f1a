"""The fused kernels in Triton's interpreter, on a CPU: run by test_fused_attention.py in a process of their own.

The interpreter has to be chosen before Triton is imported, and takes milliseconds for each operation: sizes are tiny.
"""

import functools
import warnings

import numpy as np
import pytest
import torch

from pyro_attention.blocked.ops import blocked_attention as blocked_module
from pyro_attention.blocked.ops import fused_attention as fused_module
from pyro_attention.blocked.ops.blocked_attention import blocked_attention
from pyro_attention.blocked.ops.counter_noise import CounterNoise
from pyro_attention.blocked.ops.fused_attention import Tiles

BATCH, HEADS, QUERIES, KEYS, WIDTH, VALUE_WIDTH = 1, 2, 19, 21, 20, 5
SEED = 11


@pytest.fixture(scope="module", autouse=True)
def products_in_bfloat16():
    """The interpreter keeps bfloat16 as integers, and its products would be those of these."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder

    original = InterpreterBuilder.create_dot

    def create_dot(self, a, b, *rest):
        a, b = (self.cast_impl(x, tl.float32) if x.dtype.scalar == tl.bfloat16 else x for x in (a, b))
        return original(self, a, b, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpreterBuilder, "create_dot", create_dot)
        yield


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Several blocks of both sides, none of them full."""
    monkeypatch.setattr(fused_module, "tiles", lambda width, dtype: 3 * (Tiles(16, 16, 4, 1),))


def padding(keys, batch=BATCH):
    """The first key that may be attended to comes late: under a causal mask the first queries see nothing."""
    mask = torch.rand(batch, 1, keys) < 0.6
    mask[..., :2] = False
    mask[..., 2] = True
    return mask


def evaluate(leaves, weights, *, fused, **options):
    """Outputs, and the gradients of one loss of those that have a weight."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocked_module, "unfused", lambda *tensors: None if fused else "not here")
        outputs = blocked_attention(*leaves[:3], noise_scale=leaves[3], seed=SEED, **options)
    pairs = zip(outputs, weights, strict=True)
    loss = sum((output.float() * weight).sum() for output, weight in pairs if weight is not None)
    return [*outputs, *torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)]


def compare(
    *,
    queries=QUERIES,
    keys=KEYS,
    width=WIDTH,
    value_width=VALUE_WIDTH,
    padded=True,
    dtype=torch.float32,
    weighted=(True, True),
    scale=(0.3, 1.2),
    tolerance=1e-5,
    **options,
):
    shapes = (queries, width), (keys, width), (keys, value_width)
    leaves = [torch.randn(BATCH, HEADS, *shape).to(dtype).requires_grad_() for shape in shapes]
    leaves.append(torch.tensor(scale, requires_grad=True))
    options["key_mask"] = padding(keys) if padded else None
    shapes = (BATCH, HEADS, queries, value_width), (BATCH, HEADS, queries)
    weights = [torch.randn(shape) if wanted else None for shape, wanted in zip(shapes, weighted, strict=True)]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=RuntimeWarning)  # NumPy's, of infinities that meet
        actual = evaluate(leaves, weights, fused=True, **options)
    expected = evaluate(leaves, weights, fused=False, **options)
    for a, b in zip(actual, expected, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        largest = float(b.detach().abs().max().clamp(min=1))
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * largest)
    return actual


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("noise", ["log_exponential", "normal", None])
def test_equals_blocked(noise, causal):
    context, normalisers, *_ = compare(noise=noise, causal=causal)
    if causal:
        assert (context[:, :, :2] == 0).all()
        assert (normalisers[:, :, :2] == 0).all()


@pytest.mark.parametrize(
    "case",
    [
        {"queries": 35, "keys": 3, "padded": False, "causal": True},
        {"queries": 2, "keys": 33, "padded": False},
        {"width": 16, "value_width": 33, "scale": 0.7},
        {"queries": 1, "keys": 1, "width": 1, "value_width": 1, "padded": False},
        {"weighted": (True, False), "causal": True},
        {"weighted": (False, True)},
    ],
    ids=[
        "few keys",
        "few queries",
        "wide values and one scale",
        "one of each",
        "no gradient of normalisers",
        "nor of context",
    ],
)
def test_other_shapes_and_gradients(case):
    compare(noise="log_exponential", **case)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision(dtype):
    compare(noise="normal", dtype=dtype, tolerance=2e-2 if dtype == torch.bfloat16 else 3e-3)


def test_queries_in_float32_with_keys_in_bfloat16():
    """As a layer under autocast has them."""
    q, k, v = (torch.randn(BATCH, HEADS, 5, 4) for _ in range(3))
    weights = torch.randn(BATCH, HEADS, 5, 4), None
    leaves = [q, k.bfloat16(), v.bfloat16(), torch.tensor(0.5)]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    actual, expected = (evaluate(leaves, weights, fused=fused, noise="normal") for fused in (True, False))
    assert [x.dtype for x in actual] == [x.dtype for x in expected]
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.float(), b.float(), rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("factor", [1e-30, 1e6])
def test_scores_of_any_size(factor):
    q, k, v = (torch.randn(1, 1, *shape) for shape in [(3, 4), (5, 4), (5, 2)])
    weights = torch.randn(1, 1, 3, 2), torch.randn(1, 1, 3)
    leaves = [x.clone().requires_grad_() for x in (q * factor, k, v, torch.tensor(10.0))]
    found = evaluate(leaves, weights, fused=True, noise="log_exponential")
    assert all(x.isfinite().all() for x in found)


@pytest.mark.parametrize("fused", [True, False])
def test_scores_that_overflow_are_not_finite_in_their_rows(fused, monkeypatch):
    """Products of finite vectors; a row whose first score alone is infinite is no row without keys."""
    queries, keys = torch.ones(1, 1, 3, 16), torch.ones(1, 1, 20, 16)
    queries[..., 1, :], keys[..., 0, :] = 1e30, 1e20
    values = torch.ones(1, 1, 20, 4)
    monkeypatch.setattr(blocked_module, "unfused", lambda *tensors: None if fused else "not here")
    with np.errstate(all="ignore"):
        _, normalisers = blocked_attention(queries, keys, values, noise="normal", noise_scale=torch.tensor(0.1))
    assert normalisers.isfinite().tolist() == [[[True, False, True]]]


@pytest.mark.parametrize(("slices", "queries"), [(2, 0), (0, 3)])
def test_slices_without_keys_or_queries(slices, queries):
    q, k = torch.ones(slices, queries, 4), torch.ones(slices, 3, 4)
    context, _ = fused_module.fused_attention(q, k, k, None, None, noise=None, seed=0, causal=False)
    assert context.shape == (slices, queries, 4)


def table(noise, keys, shape):
    """The kernels' noise, ``[S, M, N]``; uniform for None."""
    from pyro_attention.blocked.ops import fused_kernels

    slices, rows, columns = shape
    out = torch.empty(shape)
    programs = slices * -(-rows // 64)
    fused_kernels.noise_kernel[(programs,)](*keys, out, rows, columns, NOISE=noise, FAST=False, BLOCK=64)
    return out


def test_noise_is_the_same_bit_by_bit():
    shape = (2, 70, 130)
    counter = CounterNoise("normal", SEED, shape)
    everything = slice(None)
    expected = counter._uniform(everything, everything, everything)
    assert torch.equal(table(None, counter.keys, shape), expected)


def keys_of(bits):
    """Keys of noise whose uniform numbers have given bits: the reverse of the mixer, for a multiplier of one."""
    x = bits.astype(np.uint32) << 9
    x ^= x >> 16
    x *= np.uint32(pow(0x846CA68B, -1, 2**32))
    x ^= (x >> 15) ^ (x >> 30)
    x ^= x >> 16
    zero = torch.zeros(1, 1, dtype=torch.int32)
    return zero, zero + 1, torch.from_numpy(x.view(np.int32))


@functools.cache
def grid():
    """Both ends, and what lies between, of the numbers that uniform noise is made of."""
    bits = np.unique(np.concatenate([np.arange(300), np.linspace(0, 2**23 - 1, 2000).astype(np.int64)]))
    bits = np.unique(np.concatenate([bits, 2**23 - 1 - bits]))
    return bits, torch.from_numpy((bits + 0.5) / 2**23)


@pytest.mark.parametrize("noise", [None, "log_exponential", "normal"])
def test_noise_is_accurate_to_the_ends(noise):
    bits, u = grid()
    actual = table(noise, keys_of(bits), (1, 1, len(bits)))[0, 0].double()
    if noise is None:
        torch.testing.assert_close(actual, u, rtol=0, atol=0)
    elif noise == "log_exponential":
        torch.testing.assert_close(actual, u.log().neg().log(), rtol=1e-6, atol=1e-6)
    else:
        torch.testing.assert_close(actual, 2**0.5 * (2 * u - 1).erfinv(), rtol=1e-6, atol=1e-7)
