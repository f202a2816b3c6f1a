"""What LatentAttention, and the method attend of the layers, return."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["AttentionOutput"]


@dataclass(frozen=True)
class AttentionOutput:
    """What :class:`LatentAttention` and the method ``attend`` of the other layers return.

    Attributes:
        context: Weighted sum of the values: of :class:`LatentAttention` ``[..., H, M, D]``, ``[..., H, D]`` where
            queries lie in plates, or ``[..., N, H, D]`` on a graph; of other layers their output.
        weights: Weights that produced it, ``[..., H, M, N]``, ``[..., H, N]`` or ``[..., E, H]``; None when not asked
            for. They are normalised; dropout in training mode then sets some to zero and scales the others, and what is
            returned is what dropout left, as in torch's and PyG's layers.
        self_loop_weights: Weights of the self loops a graph layer added, ``[..., N, H]``; None elsewhere.
    """

    context: Tensor
    weights: Tensor | None
    self_loop_weights: Tensor | None = None
