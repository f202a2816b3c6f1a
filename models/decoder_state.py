"""Sizes of a decoder, what it remembers between two words, and what one step of it gives."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

__all__ = ["DecoderSizes", "DecoderState", "InputFeed", "Step"]

InputFeed = Literal["expected", "sampled", "none"]  # what the decoder goes on with


@dataclass(frozen=True)
class DecoderSizes:
    """Sizes of the network.

    Attributes:
        embedding: Width of a word vector.
        memory: Width of what is attended to: an embedded region, or an encoded word, both directions together.
        decoder: Width of the decoder's state.
        attention: Width of the attention's hidden layer.
    """

    embedding: int = 128
    memory: int = 128
    decoder: int = 128
    attention: int = 128


@dataclass(frozen=True)
class DecoderState:
    """All that the next word depends on, a row for each sequence of words; nothing in it is ever changed in place.

    Attributes:
        memory: What is attended to, ``[B, N, memory]``.
        keys: What the attention makes of them, once for all words, ``[B, N, attention]``.
        mask: True at what is no padding, ``[B, N]``.
        cells: Hidden and cell state ``[B, decoder]`` of each layer.
        context: Context of the last word, ``[B, memory]``.
        seen: What a :class:`~models.temporal.TemporalNormalizer` remembers of the words before, ``[B, N]``; else None.
        place: Number of words before, counted for a :class:`~models.diagonal.DiagonalBias` alone.
        belief: What :class:`~models.jumps.Jumps` remember of where the last but one word was aligned, and then
        log_prior: log probabilities that the last word's alignment had before it was seen; else None.
    """

    memory: Tensor
    keys: Tensor
    mask: Tensor
    cells: tuple[tuple[Tensor, Tensor], ...]
    context: Tensor
    seen: Tensor | None = None
    place: int = 0
    belief: Tensor | None = None
    log_prior: Tensor | None = None

    def reorder(self, rows: Tensor) -> DecoderState:
        """Row ``rows[i]`` in the place of row i, which must belong to the same source."""
        cells = tuple((hidden[rows], cell[rows]) for hidden, cell in self.cells)
        kept = {name: getattr(self, name) for name in ("seen", "belief", "log_prior")}
        kept = {name: tensor if tensor is None else tensor[rows] for name, tensor in kept.items()}
        return replace(self, cells=cells, context=self.context[rows], **kept)

    def select(self, rows: Tensor) -> DecoderState:
        """These rows, source and all; a row may be left out or come many times."""
        ordered = self.reorder(rows)
        return replace(ordered, memory=self.memory[rows], keys=self.keys[rows], mask=self.mask[rows])


@dataclass(frozen=True)
class Step:
    """One step of a decoder: what the next word is drawn from, before the attention has looked anywhere.

    Attributes:
        state: State after the step.
        queries: All that the next word needs besides a context, ``[B, width]``.
        scores: Attention scores, padding included, ``[B, N]``.
    """

    state: DecoderState
    queries: Tensor
    scores: Tensor

    @property
    def log_prior(self) -> Tensor:
        """Log probabilities ``[B, N]`` by a dense prior, in at least float32; -inf at the padding."""
        scores = self.scores.to(torch.promote_types(self.scores.dtype, torch.float32))
        return scores.masked_fill(~self.state.mask, -math.inf).log_softmax(-1)
