"""Tensors inside the transforms of ``torch.func``, such as ``vmap`` and ``grad``."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["in_transform", "whole"]


def in_transform(*tensors: Tensor) -> bool:
    """Whether a tensor is inside a transform, or torch.export, which take no autograd function of the common kind.

    Example:
        >>> in_transform(torch.ones(3))
        False
    """
    if torch.compiler.is_exporting():
        return True
    return any(torch._C._functorch.is_functorch_wrapped_tensor(tensor) for tensor in tensors)


def whole(tensor: Tensor) -> Tensor:
    """The numbers of a tensor inside ``torch.func.vmap``, with the hidden dimension in front; others as they are.

    A check may look at these numbers, where a decision that depends on the tensor itself is not possible.

    Example:
        >>> torch.func.vmap(lambda x: x + whole(x).sum())(torch.ones(3)).tolist()
        [4.0, 4.0, 4.0]
    """
    while not torch.compiler.is_exporting() and torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        dim = torch._C._functorch.maybe_get_bdim(tensor)  # negative in other transforms
        tensor = torch._C._functorch.get_unwrapped(tensor)
        tensor = tensor if dim < 0 else tensor.movedim(dim, 0)
    return tensor
