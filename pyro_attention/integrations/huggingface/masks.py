"""The masks that transformers makes for the attention function, once a forward pass for all layers."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

__all__ = ["compact_mask"]


def compact_mask(*, dtype: torch.dtype = torch.float32, **kwargs: Any) -> Tensor | None:
    """The mask that eager attention adds to its scores, with one row where all queries may attend to the same keys.

    A contextual prior is then one distribution a key, and not one a query and key, which costs many times as much.

    Args:
        dtype: Of the mask.
        kwargs: What the mask interface of transformers passes.

    Returns:
        ``[B, 1, T, K]``, or ``[B, 1, 1, K]`` as for padding alone: 0 where a query attends, the least number elsewhere.
        None where nothing is masked in attention that is not causal.
    """
    masking = import_module("transformers.masking_utils")
    # a decoder always gets one: without, it would be causal only by what its module says
    allowed = masking.sdpa_mask(**kwargs | {"allow_is_causal_skip": False})
    if allowed is None:
        return None
    row = allowed[..., :1, :]
    if torch.equal(allowed, row.expand_as(allowed)):
        allowed = row
    return torch.where(allowed, torch.zeros((), dtype=dtype, device=allowed.device), torch.finfo(dtype).min)
