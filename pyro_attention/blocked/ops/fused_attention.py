"""Blocked attention in fused Triton kernels, for :mod:`pyro_attention.blocked.ops.blocked_attention` on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pyro_attention._typing import Context
from pyro_attention.blocked.ops.counter_noise import CounterNoise, NoiseKind

__all__ = ["Tiles", "fused_attention", "kernel_options", "launch", "product_dtype", "tiles", "unfused"]

_WIDEST = 512  # bytes of a vector
_ENTRIES = 2**31  # of a slice: positions in it are 32-bit numbers


def unfused(queries: Tensor, keys: Tensor, values: Tensor) -> str | None:
    """Return why attention of these tensors does not run in the kernels; None if it does.

    It runs in the kernels on a GPU (NVIDIA's from compute capability 8.0 on) where Triton is installed, in bfloat16 and
    float16 for heads of width up to 256, in float32 up to 128: wider ones would not fit into the registers. Everything
    else, float64 first of all, is left to blocks in plain PyTorch, which compute the same function of the same noise.

    Example:
        >>> unfused(torch.zeros(5, 4), torch.zeros(5, 4), torch.zeros(5, 4))
        'the kernels run on a GPU alone'
    """
    tensors = queries, keys, values
    if not all(x.is_cuda for x in tensors):
        return "the kernels run on a GPU alone"
    for x in tensors:
        if x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            return f"dtype {x.dtype}, expected torch.float32, torch.bfloat16 or torch.float16"
    widths, longest = [x.size(-1) for x in tensors], max(x.size(-2) for x in tensors)
    dtype = product_dtype(keys, values)
    if min(widths) < 1 or max(widths) * dtype.itemsize > _WIDEST:
        return f"heads of widths {min(widths)} to {max(widths)}, expected 1 to {_WIDEST // dtype.itemsize} in {dtype}"
    if longest * max(widths) >= _ENTRIES:
        return f"{longest} positions of width {max(widths)}, expected a product below 2**31"
    if find_spec("triton") is None:
        return "Triton is not installed; pip install 'pyro-attention[triton]'"
    if torch.version.hip is None and torch.cuda.get_device_capability(queries.device) < (8, 0):
        return "the GPU has a compute capability below 8.0"
    return None


def product_dtype(keys: Tensor, values: Tensor) -> torch.dtype:
    """Return the dtype of the factors of all products: half precision where keys and values share it, else float32."""
    return torch.promote_types(keys.dtype, values.dtype)


@dataclass(frozen=True)
class Tiles:
    """Tile sizes of a kernel."""

    rows: int  # queries in a block
    columns: int  # keys in a block
    warps: int  # groups of 32 threads in a program
    stages: int  # blocks that are on their way from memory at a time


# By the size of a number and the widest vector: forward, backward_queries and backward_keys. Chosen by what ptxas says
# for compute capability 9.0, not by measurement: all fit into 99 KB of shared memory; no register is spilled in half
# precision, in float32 8 bytes a thread in backward_keys and up to 240 at width 128 (Triton 3.9, Weibull noise).
_TILES = {
    (2, 64): (Tiles(128, 64, 8, 2), Tiles(64, 64, 4, 2), Tiles(64, 64, 4, 2)),
    (2, 128): (Tiles(128, 64, 8, 2), Tiles(64, 32, 4, 2), Tiles(64, 32, 4, 2)),
    (2, 256): (Tiles(64, 32, 4, 2), Tiles(32, 32, 4, 2), Tiles(32, 16, 4, 2)),
    (4, 64): (Tiles(64, 32, 4, 2), Tiles(64, 32, 4, 2), Tiles(32, 32, 4, 2)),
    (4, 128): (Tiles(32, 32, 4, 2), Tiles(32, 32, 4, 2), Tiles(32, 16, 4, 2)),
}


def tiles(width: int, dtype: torch.dtype) -> tuple[Tiles, Tiles, Tiles]:
    """Return the tiles of forward, backward_queries and backward_keys; the width is the wider of heads and values."""
    widest = min(limit for size, limit in _TILES if size == dtype.itemsize and limit >= width)
    return _TILES[dtype.itemsize, widest]


def fused_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    noise_scale: Tensor | None,
    key_mask: Tensor | None,
    *,
    noise: CounterNoise | None,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    r"""Attend in S slices, batch and heads together; differentiable once, with reproducible gradients.

    .. math:: \nabla_{s_{ij}} = W_{ij} (g_i \cdot v_j - g_i \cdot O_i) + \nabla_{\ell_i} e^{s_{ij} - \ell_i}, \qquad
              \nabla_c = \sum_{ij} \varepsilon_{ij} W_{ij} (g_i \cdot v_j - g_i \cdot O_i)

    Products have factors in the dtype of the arguments and sums in float32; noise and softmax are in float32. Factors
    in float32 are rounded to TF32 only where torch's own products are, as after
    ``torch.set_float32_matmul_precision("high")``.

    Args:
        queries: ``[S, M, D]``, already scaled.
        keys: ``[S, N, D]``, in the queries' dtype.
        values: ``[S, N, Dv]``, in the queries' dtype.
        noise_scale: ``[S]`` in float32; needed where there is noise.
        key_mask: Boolean ``[S, N]``, True = may be attended to.
        noise: The noise of all pairs; None adds none.
        causal: Query i sees the keys 0 .. i alone.

    Returns:
        Context ``[S, M, Dv]`` in the same dtype, and the log-sum-exp of the unnoised scores ``[S, M]`` in float32.

    Raises:
        ModuleNotFoundError: Triton is not installed.

    Source: Dao (2023), FlashAttention-2; Tillet et al. (2019), Triton.
    """
    mask = None if key_mask is None else key_mask.view(torch.uint8)
    tensors = queries, keys, values, noise_scale, mask
    # expanded ones too, whose strides the kernels would not see
    contiguous = [None if x is None else x.contiguous() for x in tensors]
    return _fused(*contiguous, noise, causal)


def kernel_options(q: Tensor, v: Tensor, noise: NoiseKind | None, causal: bool, tile: Tiles) -> dict[str, Any]:
    """Return the compile-time options of a kernel: constants, its tile, and its launch.

    Args:
        q: ``[S, M, D]``.
        v: ``[S, N, Dv]``.
        noise: Kind of the noise; None for none.
        causal: Query i sees the keys 0 .. i alone.
        tile: Tile of the kernel.
    """
    widths = q.size(-1), v.size(-1)
    padded, value_padded = (max(16, 1 << (width - 1).bit_length()) for width in widths)
    return {
        "WIDTH": widths[0], "VALUE_WIDTH": widths[1], "PADDED": padded, "VALUE_PADDED": value_padded,
        "NOISE": noise, "FAST": q.is_cuda and torch.version.hip is None, "CAUSAL": causal,
        "PRECISION": _precision(), "enable_fp_fusion": True,
        "ROWS": tile.rows, "COLS": tile.columns, "num_warps": tile.warps, "num_stages": tile.stages,
    }  # fmt: skip


def _precision() -> str:
    """Return the precision of products in float32 on tensor cores.

    Three products of TF32 numbers are as good as one of float32 numbers.
    """
    matmul = torch.backends.cuda.matmul
    # before 2.9 torch has the other switch alone; later it raises where that is read after the new one was set
    if matmul.fp32_precision == "tf32" if hasattr(matmul, "fp32_precision") else matmul.allow_tf32:
        return "tf32"
    return "ieee" if torch.version.hip else "tf32x3"


def launch(kernel: Any, positions: Tensor, block: int, *arguments: Any, **options: Any) -> None:
    """Run one program of a kernel for each block of each slice ``[S, positions, width]``, on the tensors' device."""
    programs = positions.size(0) * -(-positions.size(1) // block)
    with torch.cuda.device_of(positions):
        kernel[(programs,)](*arguments, **options)


class _Fused(torch.autograd.Function):
    """Autograd function of tensors ``[S, M or N, width]``, with noise scale ``[S]`` and mask ``[S, N]``."""

    @staticmethod
    def forward(
        ctx: Context,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        noise_scale: Tensor | None,
        mask: Tensor | None,
        noise: CounterNoise | None,
        causal: bool,
    ) -> tuple[Tensor, Tensor]:
        from pyro_attention.blocked.ops import fused_kernels

        context = v.new_empty(*q.shape[:-1], v.size(-1))
        noisy, plain = q.new_empty(2, *q.shape[:-1], dtype=torch.float32)
        inputs = q, k, v, noise_scale, mask, *((None, None, None) if noise is None else noise.keys)
        kind, chosen = None if noise is None else noise.kind, tiles(max(q.size(-1), v.size(-1)), q.dtype)
        options, *ctx.options = [kernel_options(q, v, kind, causal, tile) for tile in chosen]
        lengths = q.size(1), k.size(1)
        launch(fused_kernels.forward, q, options["ROWS"], *inputs, context, noisy, plain, *lengths, **options)
        ctx.save_for_backward(*inputs, context, noisy, plain)
        ctx.set_materialize_grads(False)
        return context, plain

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad_context: Tensor | None, grad_plain: Tensor | None) -> tuple[Tensor | None, ...]:
        from pyro_attention.blocked.ops import fused_kernels

        *inputs, context, noisy, plain = ctx.saved_tensors
        q, k, v = inputs[:3]
        grad_context = torch.zeros_like(context) if grad_context is None else grad_context.contiguous()
        grad_plain = None if grad_plain is None else grad_plain.contiguous()
        inner = (grad_context.float() * context).sum(-1)
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        by_row = torch.zeros_like(plain) if ctx.needs_input_grad[3] else None
        by_queries, by_keys = ctx.options
        grad_scale = by_row if by_queries["NOISE"] is not None else None
        shared = *inputs, noisy, plain, grad_context, inner, grad_plain
        lengths = q.size(1), k.size(1)
        launch(
            fused_kernels.backward_queries, q, by_queries["ROWS"], *shared, grad_q, grad_scale, *lengths, **by_queries
        )
        launch(fused_kernels.backward_keys, k, by_keys["COLS"], *shared, grad_k, grad_v, *lengths, **by_keys)
        return grad_q, grad_k, grad_v, None if by_row is None else by_row.sum(-1), None, None, None


# torch leaves `apply` untyped in some releases
_fused: Callable[..., tuple[Tensor, Tensor]] = _Fused.apply
