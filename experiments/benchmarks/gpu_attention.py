"""Attention on a GPU: fused with noise and KL, beside torch's softmax attention and flex_attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pyro
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

from experiments.benchmarks.layers import CONCENTRATION, LatentLayer
from experiments.benchmarks.stages import Item, Result
from experiments.benchmarks.throughput import Contestant, race
from experiments.files import UserError
from pyro_attention import AttentionELBO, AttentionGuide, Weibull
from pyro_attention.blocked.ops.blocked_attention import blocked_attention
from pyro_attention.blocked.ops.fused_attention import unfused

SDPA, FLASH, FLEX, HASHED = "SDPA", "SDPA, FlashAttention", "FlexAttention", "FlexAttention, hashed noise"
FUSED, ELBO = "fused, noise and normalizers", "fused, ELBO with its KL"
CONTESTANTS = (SDPA, FLASH, FLEX, HASHED, FUSED, ELBO)
SEED = 12345
_MIXER = 0x7FEB352D, 0x846CA68B - (1 << 32)  # the factors of lowbias32, as signed numbers

TIMED = (
    "Forward and backward, bfloat16, 2048 / width heads, 16384 positions together (32768 where that is the length). "
    "FlexAttention's noise is that of Weibull weights too, hashed from (b, h, i, j) and a seed by the mixer of this "
    'library\'s noise; it gives no KL. "fused, noise and normalizers" is the kernels alone, with gradients of the '
    'scale of the noise and of the normalizers; "fused, ELBO with its KL" a Pyro model with a contextual Gamma prior, '
    "its guide and the ELBO. Ratios are to the first row; MB is the memory of a step beyond its inputs."
)
BARS = (
    "Bars at n = 8192: the fused row at most 1.0 of FlexAttention with hashed noise, at most 2.0 (width 64) or 1.5 "
    "(width 128) of FlexAttention, at most 2.5 (width 64) or 2.0 (width 128) of SDPA; memory at most 1.1 of SDPA's."
)


def hashed_noise(heads: int, length: int, scale: float, seed: int) -> Callable[..., Tensor]:
    """Return a ``score_mod`` that adds ``scale * log(-log U)`` to each score, U a hash of its position and the seed.

    Example:
        >>> index = [torch.tensor(i, dtype=torch.int32) for i in (0, 1, 2, 3)]
        >>> bool(hashed_noise(2, 4, 0.1, 0)(torch.zeros(()), *index).isfinite())
        True
    """

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        row = _mixed(((b * heads + h) * length + i) ^ seed)
        column = _mixed(j ^ (seed ^ 0x2545F491))
        x = _multiplied(row + column)  # as the library's noise: of the product the upper bits are used
        uniform = ((x >> 9) & 0x7FFFFF).to(torch.float32) * 2.0**-23 + 2.0**-24
        return score + scale * torch.log(-torch.log(uniform))

    return score_mod


def _mixed(x: Tensor) -> Tensor:
    """Return lowbias32 of int32 numbers."""
    x = _multiplied(x)
    return x ^ ((x >> 16) & 0xFFFF)


def _multiplied(x: Tensor) -> Tensor:
    """Return lowbias32 of int32 numbers without its last shift; shifts of these copy the sign."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * _MIXER[0]
    return (x ^ ((x >> 15) & 0x1FFFF)) * _MIXER[1]


def attention_items(sizes: list[tuple[int, int]], device: str, *, seconds: float, rounds: int = 7) -> list[Item]:
    """Return a race of all engines for each length and width."""
    return [
        Item(
            "Attention",
            f"n = {length}, width {width}",
            partial(attention_race, length, width, device, rounds=rounds),
            seconds=seconds,
        )
        for length, width in sizes
    ]


def compile_items(sizes: list[tuple[int, int]], device: str) -> list[Item]:
    """Return items that compile the engines side by side, so that races find them in the caches on disk."""

    def item(name: str, length: int, width: int) -> Item:
        def measure() -> Result:
            with torch.device(device):
                contestant = make_contestant(name, length, width)
            if contestant is not None:
                contestant.step()
            return Result()

        return Item("Compilation", f"{name}, n = {length}, width {width}", measure, seconds=110)

    fused = [
        item(FUSED, length, width) for length, width in {width: (length, width) for length, width in sizes}.values()
    ]
    return [*fused, *(item(name, length, width) for length, width in sizes for name in (HASHED, FLEX))]


def attention_race(length: int, width: int, device: str, *, rounds: int = 7) -> Result:
    """Return the rows of all engines at one length and width."""
    torch.compiler.reset()  # torch limits how often a function is compiled, and engines of other sizes count

    def make(name: str) -> Contestant | None:
        with torch.device(device):  # not around the race: it takes time at every call of torch
            return make_contestant(name, length, width)

    makers = {name: partial(make, name) for name in CONTESTANTS}
    return race(makers, size=f"n = {length}, width {width}", seconds=15, rounds=rounds)


class Engine(nn.Module):
    """Loss of an attention function of queries, keys and values ``[3, B, H, N, D]``."""

    def __init__(self, vectors: Tensor, attend: Callable[..., Any]) -> None:
        super().__init__()
        self.vectors, self.attend = nn.Parameter(vectors), attend
        self.scale = nn.Parameter(torch.full((vectors.size(2),), 1 / CONCENTRATION))

    def forward(self) -> Tensor:
        result = self.attend(*self.vectors, self.scale)
        context, normalizers = result if isinstance(result, tuple) else (result, None)
        loss = context.square().mean(dtype=torch.float32)
        return loss if normalizers is None else loss + normalizers.mean()


def make_contestant(name: str, length: int, width: int) -> Contestant | None:
    """Make forward and backward of an engine on torch's default device; return None where it does not take part.

    Raises:
        UserError: The GPU has no bfloat16, or attention is not fused there.
    """
    on_gpu = torch.get_default_device().type == "cuda"
    if on_gpu and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise UserError("this GPU does not compute in bfloat16; its compute capability must be 8.0 or higher")
    if not on_gpu and name == FLASH:
        return None
    torch.manual_seed(0)
    tokens, heads = (max(16384, length), 2048 // width) if on_gpu else (length, 2)
    vectors = torch.randn(3, tokens // length, heads, length, width, dtype=torch.bfloat16)
    if on_gpu and (reason := unfused(*vectors)) is not None and name in (FUSED, ELBO):
        raise UserError(f"attention is not fused on this GPU: {reason}")
    if name == ELBO:
        return _elbo(vectors)
    engine = Engine(vectors, _attend(name, vectors))
    leaves = [engine.vectors] + [engine.scale] * (name == FUSED)

    def step() -> None:
        engine.vectors.grad = engine.scale.grad = None
        engine().backward()

    return Contestant(step, leaves)


def _attend(name: str, vectors: Tensor) -> Callable[..., Any]:
    if name == SDPA:
        return lambda q, k, v, _: scaled_dot_product_attention(q, k, v)
    if name == FLASH:

        def flash(q: Tensor, k: Tensor, v: Tensor, _: Tensor) -> Tensor:
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                return scaled_dot_product_attention(q, k, v)

        return flash
    if name == FUSED:

        def fused(q: Tensor, k: Tensor, v: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
            q = q / math.sqrt(q.size(-1))
            return blocked_attention(q, k, v, noise="log_exponential", noise_scale=scale, seed=SEED)

        return fused
    return _flex(name, vectors)


def _flex(name: str, vectors: Tensor) -> Callable[..., Any]:
    """Return compiled FlexAttention; on a CPU, where it has no backward pass, a forward pass without compilation."""
    heads, length = vectors.shape[2:4]
    options: dict[str, Any] = {}
    if name == HASHED:
        options["score_mod"] = hashed_noise(heads, length, 1 / CONCENTRATION, SEED)
    if vectors.is_cuda:
        compiled = torch.compile(flex_attention, dynamic=False)
        return lambda q, k, v, _: compiled(q, k, v, **options)

    def eager(q: Tensor, k: Tensor, v: Tensor, _: Tensor) -> Tensor:
        with torch.no_grad(), torch.device("cpu"):
            out: Tensor = flex_attention(q.detach(), k.detach(), v.detach(), **options)
        return out + 0 * (q + k + v)

    return eager


def _elbo(vectors: Tensor) -> Contestant:
    model = LatentLayer(vectors, blocked=True)
    family = Weibull(CONCENTRATION, learnable=True).to(vectors.device)
    loss = AttentionELBO()(model, AttentionGuide(model, family))

    def step() -> None:
        loss.zero_grad()
        with pyro.validation_enabled(False):
            loss().backward()

    return Contestant(step, list(loss.parameters()))
