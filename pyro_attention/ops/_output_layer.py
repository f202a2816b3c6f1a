"""What the log probabilities of tokens share: the output layer, its precision, and sums of products."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["OutputLayer", "add_product", "once_differentiable", "product_dtype"]


def product_dtype(features: Tensor, weight: Tensor) -> torch.dtype:
    """Precision of the matrix products: autocast's where it is on (it leaves float64 alone), else the inputs'."""
    device, dtype = features.device.type, torch.promote_types(features.dtype, weight.dtype)
    autocast = torch.is_autocast_enabled(device) and dtype != torch.float64
    return torch.get_autocast_dtype(device) if autocast else dtype


class OutputLayer:
    """A linear layer and the features it is given, as a matrix; products in one precision, sums in ``exact``."""

    def __init__(self, features: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        self.exact = torch.float64 if dtype == torch.float64 else torch.float32
        self.count = math.prod(features.shape[:-1])
        self.x = features.reshape(self.count, features.size(-1)).to(dtype)
        self.weight = weight.to(dtype)
        self.bias = None if bias is None else bias.to(self.exact)

    def new(self, *shape: int) -> Tensor:
        """Uninitialised, in float32 or float64."""
        return torch.empty(shape, dtype=self.exact, device=self.x.device)


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """``total += left @ right``; sums over chunks are not rounded to half precision."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total.add_(left @ right)


def once_differentiable() -> None:
    """Raise RuntimeError in a backward pass that is to be differentiated itself.

    torch's decorator of this name would take gradients of sums for constants, silently.
    """
    if torch.is_grad_enabled():
        raise RuntimeError(
            "token_log_prob is differentiable once, but create_graph=True asks for a second derivative; use "
            "Categorical(logits=...) on all logits, such as TokenLikelihood.logits"
        )
