"""Whether a mask looks like that of causal attention."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_attention.ops.transforms import whole

__all__ = ["looks_causal"]


def looks_causal(mask: Tensor) -> bool:
    """Whether each query of a mask ``[..., M, N]``, True = may attend, seems to see the past alone.

    Padding alone never looks causal: only those entries of the batch and heads count whose queries do not all see the
    same keys. Each of these must look causal in one of three ways:

    - every query sees all that those before it see, and some see more;
    - query i sees no key behind key i, and some query sees a key before its own;
    - the last query stands at the last of more keys (behind a cache), no query sees a key behind its own place, and
      each sees its own place or the one before: so a window looks.

    The first way is what a few queries may do by chance, so in some entry it must take three steps. Queries that see
    nothing are padding and do not count.

    """
    mask = whole(mask)
    if mask.dim() < 2 or mask.size(-2) < 2 or not mask.numel():
        return False
    sees = mask.any(-1, keepdim=True)
    queries = mask.sum(-2, keepdim=True, dtype=torch.int32)  # that see each key
    different = ((queries > 0) & (queries < sees.sum(-2, keepdim=True))).flatten(-2).any(-1)
    if not different.any():  # as with padding alone: no need to look at every entry
        return False
    looks_back = mask.tril(-1).flatten(-2).any(-1) & ~mask.triu(1).flatten(-2).any(-1)
    behind = looks_back | _window(mask, sees)
    widens = _widens(mask, sees, queries)
    numbers = mask.sum(-1).sort(-1).values  # of keys that the queries of an entry see: how many different ones?
    steps = (numbers[..., 0] > 0) + (numbers.diff(dim=-1) > 0).sum(-1)
    enough = behind | (widens & (steps > 2))
    return bool((behind | widens | ~different).all() and (enough & different).any())


def _widens(mask: Tensor, sees: Tensor, queries: Tensor) -> Tensor:
    """For each entry, whether a query sees all that those before it see."""
    place = sees * sees.cumsum(-2, dtype=torch.int32)  # from one among the queries that count, zero for the others
    # what is seen stays seen if the n queries of a key are the last n; cummax takes more time and memory
    return (mask == (place > place.amax(-2, keepdim=True) - queries)).flatten(-2).all(-1)


def _window(mask: Tensor, sees: Tensor) -> Tensor:
    """For each entry, whether the queries look back from the last of more keys than queries."""
    first = mask.size(-1) - mask.size(-2)  # place of the first query
    if first <= 0:
        return torch.zeros(mask.shape[:-2], dtype=torch.bool, device=mask.device)
    near = mask.diagonal(first, -2, -1) | mask.diagonal(first - 1, -2, -1) | ~sees.squeeze(-1)
    return near.all(-1) & ~mask.triu(first + 1).flatten(-2).any(-1)
