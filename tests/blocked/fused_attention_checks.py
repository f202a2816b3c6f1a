"""The fused kernels in Triton's interpreter, on a CPU: run by test_fused_attention.py in a process of their own.

The interpreter has to be chosen before Triton is imported, and takes milliseconds for each operation: sizes are tiny.
"""

import warnings

import numpy as np
import pytest
import torch

from experiments.benchmarks import gpu_kernels
from pyro_attention.blocked.ops import blocked_attention as blocked_module
from pyro_attention.blocked.ops import fused_attention as fused_module
from pyro_attention.blocked.ops import fused_kernels as kernels
from pyro_attention.blocked.ops.blocked_attention import blocked_attention
from pyro_attention.blocked.ops.counter_noise import CounterNoise
from pyro_attention.blocked.ops.fused_attention import Tiles

triton, tl = pytest.importorskip("triton"), pytest.importorskip("triton.language")
HEADS, SEED = 2, 11


@pytest.fixture(scope="module", autouse=True)
def products_in_bfloat16():
    """The interpreter keeps bfloat16 as integers, and its products would be those of these."""
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


def evaluate(leaves, weights, *, fused, **options):
    """Outputs, and the gradients of one loss of those that have a weight."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocked_module, "unfused", lambda *tensors: None if fused else "not here")
        outputs = blocked_attention(*leaves[:3], noise_scale=leaves[3], seed=SEED, **options)
    pairs = zip(outputs, weights, strict=True)
    loss = sum((output.float() * weight).sum() for output, weight in pairs if weight is not None)
    return [*outputs, *torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)]


CASES = {
    "Weibull, causal": {"noise": "log_exponential", "causal": True},
    "LogNormal": {"noise": "normal"},
    "no noise": {"noise": None, "causal": True},
    "few keys": {"queries": 35, "keys": 3, "padded": False, "causal": True},
    "few queries": {"queries": 2, "keys": 33, "padded": False},
    "wide values and one scale": {"width": 16, "value_width": 33, "scale": 0.7},
    "one of each": {"queries": 1, "keys": 1, "width": 1, "value_width": 1, "padded": False},
    "no gradient of normalizers": {"weighted": (True, False), "causal": True},
    "nor of context": {"weighted": (False, True)},
    "bfloat16": {"noise": "normal", "dtypes": [torch.bfloat16] * 3, "tolerance": 2e-2},
    "autocast": {"noise": "normal", "dtypes": [torch.float32, torch.bfloat16, torch.bfloat16], "tolerance": 3e-2},
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_equals_blocked(case):
    case = {"queries": 19, "keys": 21, "width": 20, "value_width": 5, "noise": "log_exponential", **case}
    queries, keys, width, value_width = (case.pop(name) for name in ("queries", "keys", "width", "value_width"))
    tolerance, scale = case.pop("tolerance", 1e-5), case.pop("scale", (0.3, 1.2))
    dtypes, shapes = case.pop("dtypes", [torch.float32] * 3), ((queries, width), (keys, width), (keys, value_width))
    leaves = [torch.randn(1, HEADS, *shape).to(dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    leaves = [leaf.requires_grad_() for leaf in (*leaves, torch.tensor(scale))]
    if case.pop("padded", True):  # the first key that may be attended to comes late
        case["key_mask"] = (torch.rand(1, 1, keys) < 0.6) & (torch.arange(keys) > 1) | (torch.arange(keys) == 2)
    weights = torch.randn(1, HEADS, queries, value_width), torch.randn(1, HEADS, queries)
    weighted = case.pop("weighted", (True, True))
    weights = [weight if wanted else None for weight, wanted in zip(weights, weighted, strict=True)]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=RuntimeWarning)  # NumPy's, of infinities that meet
        actual = evaluate(leaves, weights, fused=True, **case)
    for a, b in zip(actual, evaluate(leaves, weights, fused=False, **case), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        largest = float(b.detach().abs().max().clamp(min=1))
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * largest)


@pytest.mark.parametrize(
    "name", ["LogNormal, causal, padding", "Weibull, causal, bfloat16", "Weibull, odd lengths", "Weibull, float16"]
)
def test_check_of_a_gpu(name, monkeypatch):
    """What the command of a GPU checks there: kernels against all pairs at once."""
    monkeypatch.setattr(blocked_module, "unfused", lambda *tensors: None)
    case = gpu_kernels.CHECKS[name] | ({"length": 5, "keys": 19} if "odd" in name else {})
    row = gpu_kernels.check(name, case, 19)
    assert (row["right"], row["equal"]) == ("yes", "yes")
    other_noise = lambda *tensors, seed, **options: blocked_attention(*tensors, seed=seed + 1, **options)  # noqa: E731
    monkeypatch.setattr(gpu_kernels, "blocked_attention", other_noise)
    assert gpu_kernels.check(name, case, 19)["right"] == "no"


@pytest.mark.parametrize("kernel", gpu_kernels.KERNELS)
def test_sweep_of_a_gpu(kernel, monkeypatch):
    """Its arguments are those that the kernel is called with in attention, which would not be right with others."""
    calls = {}
    launch = fused_module.launch
    for module in (fused_module, gpu_kernels):
        monkeypatch.setattr(
            module,
            "launch",
            lambda f, *args, module=module, **kw: (calls.__setitem__((module, f), args), launch(f, *args, **kw)),
        )
    assert gpu_kernels.sweep_row(kernel, 16, Tiles(16, 16, 4, 1), length=19, device="cpu")["ms"].mean > 0
    monkeypatch.setattr(blocked_module, "unfused", lambda *tensors: None)
    gpu_kernels.check("", {"noise": "log_exponential", "dtype": torch.bfloat16}, 19)
    function = getattr(kernels, kernel)
    swept, used = calls[gpu_kernels, function], calls[fused_module, function]
    describe = lambda x: (x.dtype, x.dim()) if isinstance(x, torch.Tensor) else type(x)  # noqa: E731
    assert [*map(describe, swept)] == [*map(describe, used)]


def test_scores_that_overflow_are_not_finite_in_their_rows(monkeypatch):
    """Products of finite vectors; a row whose first score alone is infinite is no row without keys."""
    queries, keys = torch.ones(1, 1, 3, 16), torch.ones(1, 1, 20, 16)
    queries[..., 1, :], keys[..., 0, :] = 1e30, 1e20
    options = {"noise": "normal", "noise_scale": torch.tensor(0.1)}
    for fused in (None, "not here"):
        monkeypatch.setattr(blocked_module, "unfused", lambda *tensors, fused=fused: fused)
        with np.errstate(all="ignore"):
            _, normalizers = blocked_attention(queries, keys, torch.ones(1, 1, 20, 4), **options)
        assert normalizers.isfinite().tolist() == [[[True, False, True]]]
    q, k, v = torch.full((1, 1, 3, 4), 1e6), torch.randn(1, 1, 5, 4), torch.randn(1, 1, 5, 2)
    leaves = [x.requires_grad_() for x in (q, k, v, torch.tensor(10.0))]
    weights = torch.randn(1, 1, 3, 2), torch.randn(1, 1, 3)
    assert all(x.isfinite().all() for x in evaluate(leaves, weights, fused=True, noise="log_exponential"))


@triton.jit
def noise_kernel(OFFSETS, MULTIPLIERS, COLUMNS, OUT, queries, keys, NOISE: tl.constexpr, FAST: tl.constexpr):
    """The table of CounterNoise itself, uniform when NOISE is None."""
    slice, block = kernels._slice_and_block(queries, 64, False)
    rows, columns = block * 64 + tl.arange(0, 64), tl.arange(0, 2048)
    offset = kernels._row(OFFSETS, slice, rows, queries, 0)
    multiplier = kernels._row(MULTIPLIERS, slice, rows, queries, 0)
    column = tl.load(COLUMNS + columns, mask=columns < keys, other=0)
    if NOISE is None:
        x = kernels._uniform(offset[:, None], multiplier[:, None], column[None, :])
    else:
        x = kernels._noise(offset[:, None], multiplier[:, None], column[None, :], NOISE, FAST)
        x *= 0.6931471805599453
    inside = (rows[:, None] < queries) & (columns[None, :] < keys)
    tl.store(OUT + slice * queries * keys + rows[:, None] * keys + columns[None, :], x, mask=inside)


def table(noise, keys, shape, *, fast=False):
    """The kernels' noise, ``[S, M, N]``; uniform for None."""
    out = torch.empty(shape)
    noise_kernel[(shape[0] * -(-shape[1] // 64),)](*keys, out, shape[1], shape[2], NOISE=noise, FAST=fast)
    return out


def test_noise_is_the_same_bit_by_bit():
    counter = CounterNoise("normal", SEED, (2, 70, 130))
    assert torch.equal(table(None, counter.keys, (2, 70, 130)), counter._uniform(*3 * (slice(None),)))


def keys_of(bits):
    """Keys of noise whose uniform numbers have given bits: the reverse of the mixer, for a multiplier of one."""
    x = bits.astype(np.uint32) << 9
    x *= np.uint32(pow(0x846CA68B, -1, 2**32))
    x ^= (x >> 15) ^ (x >> 30)
    x ^= x >> 16
    zero = torch.zeros(1, 1, dtype=torch.int32)
    return zero, zero + 1, torch.from_numpy(x.view(np.int32))


def bits_to_the_ends():
    """Both ends, and what lies between, of the numbers that uniform noise is made of; and these numbers."""
    bits = np.unique(np.concatenate([np.arange(200), np.linspace(0, 2**23 - 1, 500).astype(np.int64)]))
    bits = np.unique(np.concatenate([bits, 2**23 - 1 - bits]))
    return bits, torch.from_numpy((bits + 0.5) / 2**23)


@pytest.mark.parametrize("noise", [None, "log_exponential", "normal"])
def test_noise_is_accurate_to_the_ends(noise):
    bits, u = bits_to_the_ends()
    actual = table(noise, keys_of(bits), (1, 1, len(bits)))[0, 0].double()
    expected = {None: u, "log_exponential": u.log().neg().log(), "normal": 2**0.5 * (2 * u - 1).erfinv()}[noise]
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6 if noise else 0)


@triton.jit
def high_log2(x, FAST: tl.constexpr):
    """A logarithm with the largest error of a GPU's fast one."""
    return tl.log2(x) + 2.384185791015625e-07


@triton.jit
def low_log2(x, FAST: tl.constexpr):
    """A logarithm with the largest error of a GPU's fast one, to the other side."""
    return tl.log2(x) - 2.384185791015625e-07


@pytest.mark.parametrize("log2", [high_log2, low_log2], ids=["high", "low"])
def test_noise_by_the_fast_logarithm(log2, monkeypatch):
    """The instruction itself is not in the interpreter. A relative error of an exponential is one of its logarithm."""
    monkeypatch.setattr(kernels, "_log2", log2)
    bits, u = bits_to_the_ends()
    actual = table("log_exponential", keys_of(bits), (1, 1, len(bits)), fast=True)[0, 0].double()
    torch.testing.assert_close(actual, u.log().neg().log(), rtol=2**-23, atol=2**-16)
