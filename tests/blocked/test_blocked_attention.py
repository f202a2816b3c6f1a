"""Blocked attention equals dense attention with the same noise, in values and gradients, whatever the blocks."""

import pytest
import torch

from pyro_attention.blocked.distributions import Pairs
from pyro_attention.blocked.ops import blocked_attention as blocked_module
from pyro_attention.blocked.ops.blocked_attention import blocked_attention
from pyro_attention.blocked.ops.counter_noise import CounterNoise

BATCH, HEADS, QUERIES, KEYS, WIDTH, VALUE_WIDTH = 3, 2, 5, 7, 4, 3
SEED = 11
# of the second, no key may be attended to; of the third, not the first, which under a causal mask is all there is
KEY_MASK = torch.rand(BATCH, 1, KEYS, generator=torch.Generator().manual_seed(0)) < 0.6
KEY_MASK[0], KEY_MASK[1], KEY_MASK[2, :, 0] = True, False, False


def inputs(dtype=torch.float64, queries=QUERIES):
    torch.manual_seed(1)
    shapes = (queries, WIDTH), (KEYS, WIDTH), (KEYS, VALUE_WIDTH)
    tensors = [torch.randn(BATCH, HEADS, *shape).to(dtype).requires_grad_() for shape in shapes]
    return *tensors, torch.tensor([0.3, 1.2], dtype=torch.float64).requires_grad_()


def dense(q, k, v, noise_scale, *, noise, key_mask, causal):
    """The same with all scores in memory."""
    scores = q @ k.transpose(-1, -2)
    mask = torch.ones(scores.shape, dtype=torch.bool)
    mask = mask if key_mask is None else mask & key_mask.unsqueeze(-2)
    mask = mask.tril() if causal else mask
    hidden, noised = torch.finfo(scores.dtype).min, scores
    if noise is not None:
        table = CounterNoise(noise, SEED, (BATCH * HEADS, *scores.shape[-2:])).block(dtype=scores.dtype)
        noised = scores + noise_scale[:, None, None] * table.view(scores.shape)
    weights = noised.masked_fill(~mask, hidden).softmax(-1).masked_fill(~mask, 0)
    return weights @ v, scores.masked_fill(~mask, hidden).logsumexp(-1).where(mask.any(-1), 0)


def gradients(outputs, leaves):
    torch.manual_seed(2)
    loss = sum((output * torch.randn_like(output)).sum() for output in outputs)
    return torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)


@pytest.mark.parametrize("key_mask", [None, KEY_MASK], ids=["all keys", "padded"])
@pytest.mark.parametrize("noise", ["log_exponential", "normal", None])
@pytest.mark.parametrize(("queries", "causal"), [(QUERIES, False), (QUERIES, True), (9, True)])
def test_equals_dense(key_mask, causal, noise, queries, monkeypatch):
    leaves = inputs(queries=queries)
    expected = dense(*leaves, noise=noise, key_mask=key_mask, causal=causal)
    expected = [*expected, *gradients(expected, leaves)]
    for entries in (2 * KEYS, 2**17):
        monkeypatch.setattr(blocked_module, "_ENTRIES", entries)
        outputs = blocked_attention(
            *leaves[:3], noise=noise, noise_scale=None if noise is None else leaves[3], seed=SEED,
            key_mask=key_mask, causal=causal,
        )  # fmt: skip
        actual = [*outputs, *gradients(outputs, leaves)]
        for a, b in zip(actual, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_low_precision_inputs(dtype):
    leaves = inputs(dtype)
    expected = dense(*(leaf.double() for leaf in leaves), noise="normal", key_mask=KEY_MASK, causal=False)
    with torch.autocast("cpu", torch.bfloat16):
        context, normalizers = blocked_attention(
            *leaves[:3], noise="normal", noise_scale=leaves[3], seed=SEED, key_mask=KEY_MASK
        )
    assert (context.dtype, normalizers.dtype) == (dtype, torch.float32)
    tolerance = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(normalizers.double(), expected[1], **tolerance)
    torch.testing.assert_close(context, expected[0].to(dtype), **({} if dtype == torch.bfloat16 else tolerance))
    assert [leaf.dtype for leaf in gradients((context, normalizers), leaves)] == [dtype] * 3 + [torch.float64]


def test_broadcasting_and_what_is_missing():
    q, k, v, scale = inputs()
    shared = blocked_attention(q, k[0], v[:1], noise="normal", noise_scale=scale[:1], seed=SEED)
    expanded = blocked_attention(
        q, k[:1].expand_as(k), v[:1].expand_as(v), noise="normal", noise_scale=scale[0].expand(2), seed=SEED
    )
    torch.testing.assert_close(shared, expanded)
    with pytest.raises(ValueError, match="noise is 'normal' without a noise_scale"):
        blocked_attention(q, k, v, noise="normal")


def test_blocks_are_larger_where_many_small_operations_take_longer():
    """The device "meta" stands for a GPU."""
    counts = {}
    for device in ("cpu", "meta"):
        q = torch.empty(8, 4096, 1, device=device)
        blocks = blocked_module._Plan(None, causal=False).blocks(q, q)
        counts[device] = sum(1 for _ in blocks), sum(1 for _ in Pairs(q, q).windows())
    assert counts == {"cpu": (1024, 128), "meta": (32, 16)}
