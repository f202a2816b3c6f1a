"""Sparsemax: from scores to probabilities most of which are exactly zero."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_attention._checks import as_float

__all__ = ["check_most_keys", "sparsemax"]


def check_most_keys(k: object) -> None:
    """Raise ValueError unless k is a number of keys, or None."""
    if k is not None and (isinstance(k, bool) or not isinstance(k, int) or k < 1):
        raise ValueError(f"k is {k!r}, expected an integer of at least 1, or None for as many keys as sparsemax has")


def sparsemax(scores: Tensor, *, mask: Tensor | None = None, k: int | None = None) -> Tensor:
    r"""Project each row of scores on the simplex, :math:`\arg\min_{p \in \Delta} \lVert p - z \rVert^2`.

    .. math:: p_i = \max(z_i - \tau, 0), \qquad \tau = \left(\sum_{j \in S} z_j - 1\right) / |S|

    S are the keys with p > 0. The gradient is exact, that of the linear map on S (there the incoming gradient less its
    mean, elsewhere zero), and may be differentiated again. Top-k sparsemax is sparsemax over the k largest scores of a
    row; where sparsemax has at most k keys, both are the same. Which of equal scores at the cut are kept is up to
    :func:`torch.topk`.

    Args:
        scores: z, ``[..., N]``; an entry of -inf has the probability zero.
        mask: True where a probability may be positive; boolean, broadcastable to the scores.
        k: Most keys with a positive probability; None for as many as sparsemax has.

    Returns:
        ``[..., N]``, in float32 or float64. Rows sum to one; a row that may be positive nowhere is zero.

    Raises:
        ValueError: k is no integer of at least 1.

    Example:
        >>> sparsemax(torch.tensor([[0.5, 0.25, -1.0], [3.0, 0.0, 0.0]])).tolist()
        [[0.625, 0.375, 0.0], [1.0, 0.0, 0.0]]
        >>> sparsemax(torch.zeros(4), k=2).sort().values.tolist()
        [0.0, 0.0, 0.5, 0.5]

    Source: Martins and Astudillo (2016), From Softmax to Sparsemax; top-k: Correia et al. (2020), Efficient
    Marginalization of Discrete and Structured Latent Variables via Sparsity, section 3.
    """
    check_most_keys(k)
    scores = as_float(scores)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    with torch.no_grad():
        highest = scores.amax(-1, keepdim=True)
        highest.masked_fill_(highest == -torch.inf, 0)
        support = _support(scores - highest, k)
        size = support.sum(-1, keepdim=True).clamp_(min=1)
    scores = (scores - highest).where(support, 0)  # a shift of all scores changes nothing, so none is too large
    threshold = (scores.sum(-1, keepdim=True) - 1) / size
    return (scores - threshold).where(support, 0).relu()


def _support(scores: Tensor, k: int | None) -> Tensor:
    """Return True at the keys with a positive probability; NaN counts as one, so that it is seen in the result."""
    keys = scores.size(-1)
    ordered, places = scores.topk(keys if k is None else min(k, keys), dim=-1)
    ranks = torch.arange(1, ordered.size(-1) + 1, dtype=scores.dtype, device=scores.device)
    inside = (1 + ranks * ordered <= ordered.cumsum(-1)).logical_not_()
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, places, inside)
