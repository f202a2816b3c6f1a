"""Random numbers that are a function of a seed and a position, so that any block of them can be made again."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

__all__ = ["CounterNoise", "NoiseKind"]

NoiseKind = Literal["log_exponential", "normal"]

_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIXER = 0x7FEB352D, 0x846CA68B - (1 << 32)  # the factors of lowbias32, as signed numbers
_ROWS, _COLUMNS = 1, 2  # streams of one seed


class CounterNoise:
    r"""A table of independent draws ``[S, M, N]`` that is never held: :meth:`block` computes any part of it.

    .. math:: U_{ij} = (\lfloor h(a_i + c_j;\ m_i) / 2^9 \rfloor + \tfrac12) / 2^{23}, \qquad
              \log(-\log U) \text{ or } \Phi^{-1}(U)

    Every row has a random offset ``a`` and an odd multiplier ``m``, every column an offset ``c``; ``h`` mixes their sum
    in 32 bits, of which the upper 23 are kept. Columns that shared an offset would share all their noise, so no two
    do: a one-to-one map of 32-bit numbers gives them. Rows have 63 random bits, which two of a million share with a
    chance below 1e-7. A few passes of integer arithmetic take less time than torch's own generator on a CPU, and the
    value at a position depends on nothing but seed and position.

    Args:
        kind: "log_exponential", the logarithm of standard exponential draws, or "normal", standard normal ones.
        seed: Any integer; its lowest 64 bits count.
        shape: Slices S, rows M and columns N.
        device: Device of the result.

    Example:
        >>> noise = CounterNoise("normal", 0, (2, 5, 7))
        >>> bool((noise.block(slice(2), slice(1, 4), slice(3, 7)) == noise.block()[:, 1:4, 3:7]).all())
        True

    Source: Salmon et al. (2011), Parallel random numbers: as easy as 1, 2, 3, for the idea; Steele et al. (2014)
    (splitmix64) for the hash of seeds and rows; Wellons (2018), hash prospector (lowbias32) for columns, and for the
    mixer, which leaves out the last shift, as that would change the lower bits alone.
    """

    def __init__(
        self, kind: NoiseKind, seed: int, shape: tuple[int, int, int], *, device: torch.device | str | None = None
    ) -> None:
        slices, rows, columns = shape
        self.kind: NoiseKind = kind
        row_keys = _keys(seed, _ROWS, slices * rows, device).view(slices, rows, 2)
        self._offsets, self._multipliers = row_keys[..., :1], row_keys[..., 1:] | 1
        self._columns = _distinct(seed, _COLUMNS, columns, device)

    @property
    def keys(self) -> tuple[Tensor, Tensor, Tensor]:
        """All that the draws are made of: offsets and multipliers of the rows, offsets of the columns.

        ``[S, M]``, ``[S, M]`` and ``[N]``, int32 and contiguous: for kernels, which mix them where they need them.
        """
        return self._offsets[..., 0].contiguous(), self._multipliers[..., 0].contiguous(), self._columns

    def block(
        self,
        slices: slice = slice(None),
        rows: slice = slice(None),
        columns: slice = slice(None),
        *,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Return a part of the table, in float32 or float64, from one sequence of random bits."""
        uniform = self._uniform(slices, rows, columns).to(dtype)
        if self.kind == "log_exponential":
            return uniform.log_().neg_().log_()
        return uniform.mul_(2).sub_(1).erfinv_().mul_(math.sqrt(2))

    def _uniform(self, slices: slice, rows: slice, columns: slice) -> Tensor:
        """Return odd multiples of 2^-24 in (0, 1), in float32; 64-bit products are not vectorized on a CPU."""
        x = self._offsets[slices, rows] + self._columns[columns]
        spare = torch.empty_like(x)
        _xor_shifted(x, 16, spare).mul_(self._multipliers[slices, rows])
        _xor_shifted(x, 15, spare).mul_(_MIXER[1])
        # the upper bits of the product make the bits of a float32 in [1, 2)
        x.bitwise_right_shift_(9).bitwise_and_(0x7FFFFF).bitwise_or_(0x3F800000)
        return x.view(torch.float32).sub_(1 - 2**-24)


def _xor_shifted(x: Tensor, shift: int, spare: Tensor) -> Tensor:
    """Compute ``x ^= x >> shift`` of unsigned 32-bit numbers; copies of the sign by torch's shift are cleared."""
    torch.bitwise_right_shift(x, shift, out=spare)
    return x.bitwise_xor_(spare.bitwise_and_((1 << (32 - shift)) - 1))


def _distinct(seed: int, stream: int, count: int, device: torch.device | str | None) -> Tensor:
    """Return a random 32-bit integer for each of the numbers 0 .. count - 1, no two the same: int32 ``[count]``."""
    start = _start(seed, stream) >> 32
    x = torch.arange(count, dtype=torch.int32, device=device).add_(start - (1 << 31))
    spare = torch.empty_like(x)
    # each step can be undone: a shift folded in, a product with an odd number
    for shift, factor in zip((16, 15), _MIXER, strict=True):
        _xor_shifted(x, shift, spare).mul_(factor)
    return _xor_shifted(x, 16, spare)


def _keys(seed: int, stream: int, count: int, device: torch.device | str | None) -> Tensor:
    """Return two random 32-bit integers for each of the numbers 0 .. count - 1: int32 ``[count, 2]``."""
    z = torch.arange(count, device=device).mul_(_signed(_GOLDEN)).add_(_signed(_start(seed, stream)))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        z = (z ^ ((z >> shift) & ((1 << (64 - shift)) - 1))) * _signed(factor)
    return z.view(torch.int32).view(count, 2)


def _start(seed: int, stream: int) -> int:
    """Return 64 random bits of a stream of a seed."""
    return _splitmix(_splitmix(seed & _WORD) + stream)


def _splitmix(z: int) -> int:
    """Do one step of splitmix64, on Python integers."""
    z = (z + _GOLDEN) & _WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _WORD
    return z ^ (z >> 31)


def _signed(word: int) -> int:
    """Return the signed 64-bit integer of the same bits."""
    return word - (1 << 64) if word >> 63 else word
