"""What the masks of torch.nn.MultiheadAttention say, for an attention that knows True = may attend and a bias."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from pyro_attention._checks import kind_of
from pyro_attention.ops.transforms import whole

__all__ = ["Mask", "read_attn_mask", "read_padding"]


@dataclass(frozen=True)
class Mask:
    """A mask in two parts.

    Attributes:
        allowed: True where a query may attend; None where nothing is masked.
        bias: Added to the scores; None for nothing.
    """

    allowed: Tensor | None = None
    bias: Tensor | None = None

    @classmethod
    def read(cls, name: str, mask: Tensor) -> Mask:
        """From torch's mask: boolean with True = ignore, or numbers to add, of which -inf = ignore.

        Raises:
            TypeError: The mask is no tensor, or neither boolean nor floating point.
            ValueError: An entry is NaN or infinite.
        """
        if isinstance(mask, Tensor) and mask.dtype == torch.bool:
            return cls(~mask)
        if not isinstance(mask, Tensor) or not mask.is_floating_point():
            raise TypeError(
                f"{name} is of type {kind_of(mask)}, expected a tensor: boolean with True = ignore, or floating point, "
                f"added to the scores; an integer mask is converted by {name}.bool()"
            )
        wrong = ~(whole(mask) < torch.inf)
        if torch.distributions.Distribution._validate_args and wrong.any():
            raise ValueError(
                f"{name} is NaN or infinite in {wrong.sum().item()} of {wrong.numel()} entries, expected numbers to "
                f"add to the scores, or -inf to ignore a key"
            )
        allowed = mask != -torch.inf  # a NaN that was not looked for goes on into the scores
        return cls(allowed, mask.masked_fill(~allowed, 0))

    def __getitem__(self, index: object) -> Mask:
        """Both parts indexed."""
        return Mask(*(None if part is None else part[index] for part in (self.allowed, self.bias)))  # type: ignore[index]

    def __and__(self, other: Mask) -> Mask:
        """Where both allow it, with the sum of what both add."""
        allowed = [part for part in (self.allowed, other.allowed) if part is not None]
        biases = [part for part in (self.bias, other.bias) if part is not None]
        return Mask(
            reduce(torch.logical_and, allowed) if allowed else None,
            reduce(torch.add, biases) if biases else None,
        )

    @property
    def has_bias(self) -> bool:
        """Whether it adds anything but zero."""
        return self.bias is not None and bool(whole(self.bias).any())


def read_attn_mask(mask: Tensor | None, shape: torch.Size) -> Mask:
    """Torch's ``attn_mask``, broadcastable to scores ``[..., H, M, N]``; errors are those of :meth:`Mask.read`."""
    if mask is None:
        return Mask()
    read = Mask.read("attn_mask", mask)
    *batch, heads, queries, keys = shape
    if mask.shape == (queries, keys) or (mask.dim() > 3 and mask.shape in _suffixes(shape)):
        return read
    flat: dict[tuple[int, ...], tuple[int, ...]] = {
        (heads * torch.Size(part).numel(), queries, keys): part for part in _suffixes(batch)
    }
    part = flat.get(tuple(mask.shape))
    if part is None:
        expected = " or ".join(map(str, [(queries, keys), *flat, *([tuple(shape)] if batch else [])]))
        seen = f"attn_mask has shape {tuple(mask.shape)}, expected {expected}"
        raise ValueError(f"{seen}: [queries, keys], the same with batch * heads in front, or with both apart")
    apart = (*part, heads, queries, keys)
    return Mask(*(None if half is None else half.reshape(apart) for half in (read.allowed, read.bias)))


def read_padding(name: str, mask: Tensor | None, shape: torch.Size, dim: int) -> Mask:
    """Torch's padding mask ``[..., M or N]`` of a dimension of scores ``[..., H, M, N]``; errors: :meth:`Mask.read`."""
    if mask is None:
        return Mask()
    read, (*batch, _, _, _) = Mask.read(name, mask), shape
    expected = [(*part, shape[dim]) for part in _suffixes(batch)]
    if tuple(mask.shape) not in expected:
        raise ValueError(f"{name} has shape {tuple(mask.shape)}, expected {' or '.join(map(str, expected))}")
    return read


def _suffixes(batch: torch.Size | list[int]) -> list[tuple[int, ...]]:
    """A batch shape, and what is left of it without leading dimensions, which vectorised particles may have put there.

    At least one dimension is left; the shape of a single input, where there is none.
    """
    return [tuple(batch[start:]) for start in range(len(batch))] or [()]
