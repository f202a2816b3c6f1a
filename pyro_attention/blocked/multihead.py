"""Multi-head attention for long sequences, whose scores and weights are never held."""

from __future__ import annotations

import math
import warnings
from typing import Any, NoReturn

from torch import Tensor

from pyro_attention._checks import as_float
from pyro_attention.attention import AttentionOutput
from pyro_attention.blocked.attention import attend_blocked, blocked_obstacle
from pyro_attention.blocked.ops.fused_attention import unfused
from pyro_attention.layers.multihead import Mask, MultiheadAttention
from pyro_attention.layers.scores import ScaledDotProduct

__all__ = ["BlockedMultiheadAttention"]


class BlockedMultiheadAttention(MultiheadAttention):
    """Multi-head attention in memory that grows as the lengths and not as their product.

    Scores and weights are made block by block, and again in the backward pass, with the same random numbers. It returns
    no weights: calls need ``need_weights=False`` (not the default). Nor does it take an ``attn_mask``, numbers in a
    ``key_padding_mask``, dropout in training mode, another normalizer than :class:`Softmax`, or priors other than the
    Gamma and LogNormal priors of this library and those in :data:`~pyro_attention.blocked.attention.READS`. The two
    layers load each other's state dicts.

    Args:
        args: Arguments of :class:`MultiheadAttention`.
        options: Options of :class:`MultiheadAttention`.

    Raises:
        ValueError: As for :class:`MultiheadAttention`; normalizer or prior are not supported. At a call: an argument is
            not supported by blocked attention.

    Example:
        >>> import torch
        >>> layer, x = BlockedMultiheadAttention(8, 2), torch.randn(5, 8)
        >>> layer(x, x, x, need_weights=False)[0].shape
        torch.Size([5, 8])
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        obstacle = blocked_obstacle(self.attention, training=False)
        if obstacle is not None:
            self._refuse(obstacle)

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
        if need_weights:
            self._refuse("need_weights=True; pass need_weights=False, draw some weights by sample_posterior")
        if attn_mask is not None:
            self._refuse("attn_mask, only key_padding_mask, query_padding_mask and is_causal")
        if keys.has_bias:
            self._refuse("a key_padding_mask with numbers other than 0 and -inf")
        if type(self.score) is not ScaledDotProduct:
            self._refuse(f"scores by {type(self.score).__name__}, only ScaledDotProduct")
        if q.is_cuda and (slow := unfused(q, k, v)) is not None:
            problem = f"site '{self.attention.name}': blocked attention is many times slower without kernels"
            warnings.warn(f"{problem}: {slow}", stacklevel=2)
        return attend_blocked(
            self.attention,
            as_float(q) / math.sqrt(q.size(-1)), k, v,
            key_mask=keys.allowed, query_mask=queries.allowed, causal=is_causal,
        )  # fmt: skip

    def _refuse(self, obstacle: str) -> NoReturn:
        """Raise ValueError that names what blocked attention does not support."""
        problem = f"site '{self.attention.name}': blocked attention does not support {obstacle}"
        raise ValueError(f"{problem}; or use MultiheadAttention")
