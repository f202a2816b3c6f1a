"""Multi-head attention for long sequences, whose scores and weights are never held."""

from __future__ import annotations

import math
import warnings
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from pyro_attention._checks import as_float
from pyro_attention.attention import AttentionOutput
from pyro_attention.blocked.attention import attend_blocked, blocked_obstacle
from pyro_attention.blocked.ops.fused_attention import unfused
from pyro_attention.layers.multihead import Mask, MultiheadAttention, scores_shape
from pyro_attention.layers.scores import ScaledDotProduct

__all__ = ["BlockedMultiheadAttention", "Implementation"]

Implementation = Literal["dense", "blocked", "auto"]

_MANY_WEIGHTS = 2**25


class BlockedMultiheadAttention(MultiheadAttention):
    """:class:`MultiheadAttention` in memory that grows as the lengths and not as their product.

    Scores and weights are made block by block, and again in the backward pass, with the same random numbers. It returns
    no weights: calls need ``need_weights=False`` (not the default). Nor does it take an ``attn_mask``, numbers in a
    ``key_padding_mask``, dropout in training mode, another normalizer than :class:`Softmax`, or priors other than the
    Gamma and LogNormal priors of this library and those in :data:`~pyro_attention.blocked.attention.READS`.

    Args:
        args: Those of :class:`MultiheadAttention`.
        implementation: "blocked", or "dense" for what :class:`MultiheadAttention` does. "auto" is dense below 2**25
            weights a call (34 million), and from there on blocked where it can be, on a GPU by the fused kernels.
            Elsewhere it stays dense, and warns unless the weights were asked for.
        options: Options of :class:`MultiheadAttention`.

    Raises:
        ValueError: As there; the implementation is unknown, or it is "blocked" and normalizer or prior are not
            supported. At a call: what is asked for is not blocked.

    Example:
        >>> import torch
        >>> layer, x = BlockedMultiheadAttention(8, 2), torch.randn(5, 8)
        >>> layer(x, x, x, need_weights=False)[0].shape
        torch.Size([5, 8])
    """

    def __init__(self, *args: Any, implementation: Implementation = "blocked", **options: Any) -> None:
        super().__init__(*args, **options)
        if implementation not in get_args(Implementation):
            raise ValueError(f"implementation is '{implementation}', expected 'dense', 'blocked' or 'auto'")
        self.implementation: Implementation = implementation
        obstacle = blocked_obstacle(self.attention, training=False)  # dropout may be meant for dense training
        if implementation == "blocked" and obstacle is not None:
            raise self._unsupported(obstacle)

    def attend_heads(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        keys: Mask,
        queries: Mask,
        attn_mask: Tensor | None,
        *,
        is_causal: bool,
        need_weights: bool,
    ) -> AttentionOutput:
        if not self._is_blocked(q, k, v, self._obstacle(attn_mask, keys, need_weights), wanted=need_weights):
            return super().attend_heads(
                q, k, v, keys, queries, attn_mask, is_causal=is_causal, need_weights=need_weights
            )
        return attend_blocked(
            self.attention,
            as_float(q) / math.sqrt(q.size(-1)), k, v,
            key_mask=keys.allowed, query_mask=queries.allowed, causal=is_causal,
        )  # fmt: skip

    def _is_blocked(self, q: Tensor, k: Tensor, v: Tensor, obstacle: str | None, *, wanted: bool) -> bool:
        """Whether a call is blocked, with a warning where that is slow or where "auto" cannot choose it."""
        few = torch.compiler.is_exporting() or scores_shape(q, k).numel() < _MANY_WEIGHTS
        if self.implementation == "dense" or (self.implementation == "auto" and few):
            return False
        slow = unfused(q, k, v) if q.is_cuda else None  # on a CPU blocks are in plain PyTorch anyway
        site = f"site '{self.attention.name}'"
        if self.implementation == "blocked":
            if obstacle is not None:
                raise self._unsupported(obstacle)
            if slow is not None:
                warnings.warn(f"{site}: blocked attention is many times slower without kernels: {slow}", stacklevel=2)
            return True
        if obstacle is None and slow is None:
            return True
        if not wanted:
            reason = f"does not support {obstacle}" if obstacle else f"would be slow without the fused kernels: {slow}"
            warnings.warn(
                f"{site}: implementation='auto' keeps a large call dense, as blocked attention {reason}; change that, "
                f"or choose implementation='dense'",
                stacklevel=2,
            )
        return False

    def _unsupported(self, obstacle: str) -> ValueError:
        return ValueError(
            f"site '{self.attention.name}': implementation='blocked' does not support {obstacle}; or use "
            f"implementation='dense'"
        )

    def _obstacle(self, attn_mask: Tensor | None, keys: Mask, need_weights: bool) -> str | None:
        """What keeps a call from being blocked; None when nothing does."""
        if need_weights:
            return (
                "need_weights=True, of which it never holds all; pass need_weights=False, draw some by sample_posterior"
            )
        if attn_mask is not None:
            return "attn_mask, only key_padding_mask, query_padding_mask and is_causal"
        if self.implementation != "dense" and keys.has_bias:
            return "a key_padding_mask with numbers other than 0 and -inf"
        if type(self.score) is not ScaledDotProduct:
            return f"scores by {type(self.score).__name__}, only ScaledDotProduct"
        return blocked_obstacle(self.attention)
