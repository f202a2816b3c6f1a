"""Checks of user input, shared by the modules: each error names what was seen, what was expected and the remedy."""

from __future__ import annotations

from numbers import Real

import torch
from torch import Tensor, nn

from pyro_attention._compat import is_mapped, validates_distributions

IGNORED_SCORE = -1e4
"""Number of a mask that, as all smaller ones, takes a key out: the softmax of such a score is zero."""


def as_float(value: Tensor | float) -> Tensor:
    """Return a value as a tensor in float32 or float64: noise, softmax and KL are never computed in half precision."""
    # not as_tensor of a tensor, which would move it to torch's default device
    tensor = value if isinstance(value, Tensor) else torch.as_tensor(value)
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def check_kind(name: str, value: object, kind: type, example: str) -> None:
    """Raise TypeError unless a value is of a kind, such as a posterior family."""
    if not isinstance(value, kind):
        shown = f"a {type(value).__name__}" if isinstance(value, nn.Module) else repr(value)  # networks are long
        raise TypeError(f"{name} is {shown}, expected a {kind.__name__} such as {example}")


def check_positive(name: str, value: Tensor | float) -> None:
    """Raise ValueError unless every entry is positive and finite, TypeError where there are no numbers."""
    if not isinstance(value, Tensor | Real):
        raise TypeError(f"{name} is {value!r}, expected a positive number, or a tensor where it may be one per head")
    value = torch.as_tensor(value)
    good = (value > 0) & value.isfinite()
    if not good.all():
        raise ValueError(f"{name} has an entry {value[~good][0].item()}, expected positive finite numbers")


def check_count(name: str, value: object) -> None:
    """Raise ValueError unless a value is an integer of at least 1."""
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}, expected an integer of at least 1")


def check_scores(scores: Tensor, *, site: str, name: str = "scores", mask: Tensor | None = None) -> None:
    """Raise ValueError unless attention scores are finite numbers; the remedy depends on the mask."""
    if validates_distributions() and not in_transform(scores) and not scores.isfinite().all():
        bad = ~scores.isfinite()
        if mask is not None and broadcasts_to(mask.shape, scores.shape) and not (bad & mask).any():
            remedy = (
                "all of them at masked positions, whose features are NaN or infinite, and zero times NaN is NaN in the "
                "context; put numbers in their place ahead of the attention: x.masked_fill(padding[..., None], 0)"
            )
        elif mask is not None and broadcasts_to(mask.shape, scores.shape) and scores.isnan().any():
            remedy = (
                "a NaN in the features of one position reaches all of its scores, also where others mask it; put "
                "numbers in the place of padding (x.masked_fill(padding[..., None], 0)), and check the features and "
                "the learning rate"
            )
        else:
            remedy = "check the features and the learning rate, and forbid positions by a mask instead of -inf scores"
        raise ValueError(f"site '{site}': {bad.sum().item()} of {scores.numel()} {name} are NaN or infinite; {remedy}")


def check_boolean_mask(mask: Tensor | None) -> None:
    """Raise TypeError unless the mask is boolean."""
    if mask is not None and mask.dtype != torch.bool:
        raise TypeError(
            f"mask has dtype {mask.dtype}, expected torch.bool with True = may attend; convert an additive mask by "
            f"mask > -1e4, an integer one by mask.bool()"
        )


def check_mask_fits(mask: Tensor | None, scores: Tensor, *, site: str) -> None:
    """Raise ValueError unless the mask broadcasts to the scores."""
    if mask is not None and not broadcasts_to(mask.shape, scores.shape):
        shapes = f"mask of shape {tuple(mask.shape)} does not broadcast to scores of shape {tuple(scores.shape)}"
        raise ValueError(f"site '{site}': {shapes}; expected [..., heads or 1, queries or 1, keys] if dense")


def broadcasts_to(shape: torch.Size, larger: torch.Size) -> bool:
    """Return whether a tensor of a shape broadcasts to another shape."""
    try:
        return bool(torch.broadcast_shapes(shape, larger) == larger)
    except RuntimeError:
        return False


def in_transform(*tensors: Tensor) -> bool:
    """Return whether a tensor is inside a transform of torch.func or torch.export, where it has no numbers.

    They do not support autograd functions of the usual form, either.
    """
    wrapped = map(is_mapped, tensors)
    return torch.compiler.is_exporting() or any(wrapped)
