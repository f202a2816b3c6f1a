"""Checks of the attention weights of one sentence pair."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_attention.analysis.inputs import ROUNDING, check_samples

__all__ = ["check_map", "check_matrix", "check_weights"]


def check_weights(weights: Tensor, *, name: str = "weights", min_samples: int = 0, whole: bool = False) -> Tensor:
    """The weights as :func:`check_matrix`; the sums over the sources must be at most one, or ``whole`` exactly one."""
    checked = check_matrix(weights, name=name, min_samples=min_samples)
    sums = checked.sum(-1)
    if sums.max() > 1 + ROUNDING:
        raise ValueError(
            f"{name} of a target word sum to {sums.max().item():.4g} over the sources (the last dimension), expected "
            f"1, or less where special tokens were dropped; transpose [N, M] weights with .mT, apply .softmax(-1) to "
            f"scores, and give the samples of a graph, [S, E, H], to edge_intervals"
        )
    if whole and sums.min() < 1 - ROUNDING:
        raise ValueError(
            f"{name} of a target word sum to {sums.min().item():.4g}, expected 1; leave out padded rows, and "
            f"renormalise where special tokens were dropped, as merge_pieces(..., renormalise=True) does"
        )
    return checked


def check_matrix(entries: Tensor, *, name: str, min_samples: int = 0) -> Tensor:
    """The entries, ``[S, M, N]`` with S = 1 where there are no samples; they must lie in [0, 1], up to rounding."""
    remedy = "choose a sentence and a head, or average heads, of [samples, target words, source words] before"
    checked = check_samples(name, entries, axes="M, N", min_samples=min_samples, remedy=remedy)
    if not checked.isfinite().all():
        raise ValueError(f"{(~checked.isfinite()).sum().item()} of {checked.numel()} {name} are NaN or infinite")
    low, high = checked.min().item(), checked.max().item()
    if low < 0 or high > 1 + ROUNDING:
        raise ValueError(f"{name} run from {low:.4g} to {high:.4g}, expected 0 to 1; apply .softmax(-1) to scores")
    return checked


def check_map(name: str, words: object, pieces: int, count: int | None) -> Tensor:
    """Membership of pieces in words, ``[pieces, words]`` in float32; the map must give each piece a word or None."""
    if isinstance(words, str | Tensor) or not hasattr(words, "__len__") or not hasattr(words, "__iter__"):
        raise TypeError(f"{name} is a {type(words).__name__}, expected a sequence of int or None, one for each piece")
    numbers = list(words)
    for place, number in enumerate(numbers):
        if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
            raise TypeError(f"{name}[{place}] is {number!r}, expected the index of a word, or None for a special token")
    kept = [number for number in numbers if number is not None]
    if len(numbers) != pieces or not kept:
        raise ValueError(
            f"{name} maps {len(numbers)} pieces, {len(kept)} of them to words; expected {pieces} as in the weights, "
            f"and at least one word"
        )
    if min(kept) < 0 or (count is not None and max(kept) >= count):
        limit = "" if count is None else f" to {count - 1}"
        raise ValueError(f"{name} runs from {min(kept)} to {max(kept)}, expected word indices from 0{limit}")
    members = torch.zeros(pieces, max(kept) + 1 if count is None else count)
    members[[piece for piece, number in enumerate(numbers) if number is not None], kept] = 1.0
    return members
