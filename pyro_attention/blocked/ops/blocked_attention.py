r"""Attention with random weights whose scores and noise are made block by block, and made again in backward.

.. math:: O_i = \sum_j \mathrm{softmax}_j(s_{ij} + c\,\varepsilon_{ij})\, v_j, \qquad
          \ell_i = \log \sum_j e^{s_{ij}}, \qquad s_{ij} = q_i \cdot k_j

The row normalizer of the unnoised scores is all that a closed-form KL needs of the scores, beyond sums that are linear
in them. Memory grows as the lengths, not as their product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pyro_attention._typing import Context
from pyro_attention.blocked.ops.counter_noise import CounterNoise, NoiseKind
from pyro_attention.blocked.ops.fused_attention import fused_attention, product_dtype, unfused

__all__ = ["blocked_attention"]

_ENTRIES = 2**17  # of a block: half a megabyte in float32, which stays in the cache
_ON_A_GPU = 32  # times as many there, where many small operations take longer than a few large ones


def blocked_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    noise: NoiseKind | None = None,
    noise_scale: Tensor | None = None,
    seed: int = 0,
    key_mask: Tensor | None = None,
    causal: bool = False,
) -> tuple[Tensor, Tensor]:
    """Attend with noisy scores, and return the log-sum-exp of each row of unnoised scores, too; differentiable once.

    On a GPU it runs in fused Triton kernels where :func:`unfused` gives no reason not to; else, as on a CPU, in blocks
    of plain PyTorch. The noise is the same in both. So are the results, up to rounding: the kernels multiply in half
    precision where keys and values share one, plain PyTorch always in float32 or float64.

    Args:
        queries: ``[..., H, M, D]``, already scaled.
        keys: ``[..., H, N, D]``.
        values: ``[..., H, N, Dv]``.
        noise: Distribution of the noise that is added to the scores; None adds none.
        noise_scale: Its factor c, a number or one per head ``[H]``; gets a gradient.
        seed: Seed of the noise, which depends on the position alone, not on blocks.
        key_mask: Boolean ``[..., H or 1, N]``, True = may be attended to.
        causal: Query i sees the keys 0 .. i alone.

    Returns:
        Context ``[..., H, M, Dv]`` in the dtype of the values, and row normalizers ``[..., H, M]`` in float32 or
        float64. A query that sees no key has zero in both, and gives no gradient.

    Raises:
        ValueError: A noise has no scale.

    Example:
        >>> q, k, v = torch.zeros(1, 2, 4), torch.zeros(1, 3, 4), torch.ones(1, 3, 5)
        >>> context, normalizers = blocked_attention(q, k, v)
        >>> context.shape, normalizers.exp()
        (torch.Size([1, 2, 5]), tensor([[3.0000, 3.0000]]))

    Source: Dao et al. (2022), FlashAttention, algorithms 1 and 4, for the blocks; Rabe and Staats (2021).
    """
    if noise is not None and noise_scale is None:
        raise ValueError(f"noise is '{noise}' without a noise_scale; pass a number or one per head")
    fused = unfused(queries, keys, values) is None
    exact = torch.float64 if queries.dtype == torch.float64 else torch.float32
    dtype = product_dtype(keys, values) if fused else exact
    batch = torch.broadcast_shapes(queries.shape[:-2], keys.shape[:-2], values.shape[:-2])
    q, k, v = (x.to(dtype).expand(*batch, *x.shape[-2:]).reshape(-1, *x.shape[-2:]) for x in (queries, keys, values))
    scale = None if noise_scale is None else noise_scale.to(queries.device, exact).expand(batch).reshape(-1)
    mask = None if key_mask is None else key_mask.expand(*batch, -1).reshape(len(q), -1)
    shape = len(q), q.size(1), k.size(1)
    table = None if noise is None else CounterNoise(noise, seed, shape, device=q.device)
    if fused:
        context, normalizers = fused_attention(q, k, v, scale, mask, noise=table, causal=causal)
    else:
        scale = None if scale is None else scale.reshape(-1, 1, 1)
        bias = None if mask is None else _bias(mask, dtype).unsqueeze(-2)
        context, normalizers = _blocked(q, k, v, scale, bias, _Plan(table, causal))
        normalizers = normalizers.squeeze(-1)
    return context.to(values.dtype).unflatten(0, batch), normalizers.unflatten(0, batch)


@dataclass(frozen=True)
class _Plan:
    """Options of a pass: its noise, and whether it is causal."""

    noise: CounterNoise | None
    causal: bool

    def blocks(self, q: Tensor, k: Tensor) -> Iterator[tuple[slice, slice, slice]]:
        """Yield slices and queries of each block, and the keys that these may see."""
        entries = _ENTRIES * (1 if q.is_cpu else _ON_A_GPU)
        count = min(q.size(1), max(1, entries // max(1, k.size(1))))
        together = max(1, entries // max(1, count * k.size(1)))
        for first in range(0, q.size(0), together):
            for row in range(0, q.size(1), count):
                stop = min(row + count, q.size(1))
                num_keys = min(k.size(1), stop) if self.causal else k.size(1)
                yield slice(first, first + together), slice(row, stop), slice(0, num_keys)

    def scores(self, q: Tensor, k: Tensor, bias: Tensor | None, rows: slice) -> Tensor:
        """Return scores of a block, -inf where masked."""
        scores = q @ k.transpose(-1, -2)
        if bias is not None:
            scores += bias[..., : k.size(1)]
        if self.causal:
            i, j = torch.arange(rows.start, rows.stop, device=q.device), torch.arange(k.size(1), device=q.device)
            scores += _bias(i[:, None] >= j, q.dtype)
        return scores


def _bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return zero where True and -inf where False: a sum is several times faster than masked_fill on a CPU."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -torch.inf)


def _normalizer(x: Tensor) -> Tensor:
    """Return the log-sum-exp of the rows; zero where a row saw nothing, whose exponentials are zero then too."""
    total = x.logsumexp(-1, keepdim=True)
    return total.masked_fill_(total == -torch.inf, 0)


class _Blocked(torch.autograd.Function):
    """Autograd function of tensors ``[S, M or N, width]``, S being batch and heads; noise scale ``[S, 1, 1]``."""

    @staticmethod
    def forward(
        ctx: Context, q: Tensor, k: Tensor, v: Tensor, noise_scale: Tensor | None, bias: Tensor | None, plan: _Plan
    ) -> tuple[Tensor, Tensor]:
        context = q.new_zeros(*q.shape[:-1], v.size(-1))
        noisy, plain = q.new_zeros(2, *q.shape[:-1], 1)
        with torch.autocast(q.device.type, enabled=False):
            for s, rows, columns in plan.blocks(q, k):
                noised = plan.scores(q[s, rows], k[s, columns], None if bias is None else bias[s], rows)
                plain[s, rows] = _normalizer(noised)
                if plan.noise is not None and noise_scale is not None:
                    noised.addcmul_(plan.noise.block(s, rows, columns, dtype=q.dtype), noise_scale[s])
                noisy[s, rows] = _normalizer(noised)
                torch.bmm(noised.sub_(noisy[s, rows]).exp_(), v[s, columns], out=context[s, rows])
        ctx.save_for_backward(q, k, v, noise_scale, bias, context, noisy, plain)
        ctx.plan = plan
        ctx.set_materialize_grads(False)
        return context, plain

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad_context: Tensor | None, grad_plain: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, noise_scale, bias, context, noisy, plain = ctx.saved_tensors
        plan: _Plan = ctx.plan
        grad_q, grad_k, grad_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        grad_scale = torch.zeros_like(noise_scale) if ctx.needs_input_grad[3] else None
        grad_context = torch.zeros_like(context) if grad_context is None else grad_context
        inner = (grad_context * context).sum(-1, keepdim=True)
        with torch.autocast(q.device.type, enabled=False):
            for s, rows, columns in plan.blocks(q, k):
                scores = plan.scores(q[s, rows], k[s, columns], None if bias is None else bias[s], rows)
                noise, noised = None, scores - noisy[s, rows]
                if plan.noise is not None and noise_scale is not None:
                    noise = plan.noise.block(s, rows, columns, dtype=q.dtype)
                    noised.addcmul_(noise, noise_scale[s])
                weights = noised.exp_()
                grad = torch.bmm(grad_context[s, rows], v[s, columns].transpose(-1, -2))
                grad.sub_(inner[s, rows]).mul_(weights)
                grad_v[s, columns].baddbmm_(weights.transpose(-1, -2), grad_context[s, rows])
                if grad_scale is not None and noise is not None:
                    grad_scale[s] += noise.mul_(grad).sum((-2, -1), keepdim=True)
                if grad_plain is not None:
                    grad.addcmul_(scores.sub_(plain[s, rows]).exp_(), grad_plain[s, rows])
                torch.bmm(grad, k[s, columns], out=grad_q[s, rows])
                grad_k[s, columns].baddbmm_(grad.transpose(-1, -2), q[s, rows])
        return grad_q, grad_k, grad_v, grad_scale, None, None


# torch leaves `apply` untyped in some releases
_blocked: Callable[..., tuple[Tensor, Tensor]] = _Blocked.apply
