"""From attention between word pieces to attention between words."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

from torch import Tensor

from pyro_attention._checks import as_float
from pyro_attention.analysis.alignments.inputs import check_map
from pyro_attention.analysis.inputs import check_choice, check_floats

__all__ = ["PieceStyle", "merge_pieces", "word_map"]

PieceStyle = Literal["@@", "##", "▁", "Ġ"]


def word_map(pieces: Sequence[str], *, style: PieceStyle = "@@", special: Collection[str] = ()) -> list[int | None]:
    """Word of each piece, counted from 0; None for special tokens.

    The tokenizers and transformers libraries give the same as ``encoding.word_ids``, but split off punctuation there
    may count as a word of its own: the words must be those that the gold links count.

    Args:
        pieces: The pieces of one sentence.
        style: How words are marked: "@@" ends a piece that the next one continues (subword-nmt), "##" begins a piece
            that continues a word (WordPiece), "▁" (SentencePiece) or "Ġ" (byte-level BPE) begins a word.
        special: Pieces that belong to no word, such as ``{"<s>", "</s>", "<pad>"}``; a word ends before them.

    Raises:
        TypeError: Pieces or special are a string.
        ValueError: An unknown style.

    Example:
        >>> word_map(["<s>", "re@@", "vier@@", "verhalten", "."], special={"<s>"})
        [None, 0, 0, 0, 1]
        >>> word_map(["▁Tür", "en", "▁auf"], style="▁")
        [0, 0, 1]
    """
    if isinstance(pieces, str):
        raise TypeError(f"pieces is the string {pieces!r}, expected a sequence of pieces; split it before")
    if isinstance(special, str):
        raise TypeError(f"special is the string {special!r}, expected a collection of pieces such as {{{special!r}}}")
    check_choice("style", style, PieceStyle)
    words: list[int | None] = []
    word, inside = -1, False  # inside: the piece before belongs to a word that may go on
    for piece in pieces:
        if piece in special:
            words.append(None)
            inside = False
            continue
        # "@@" marks the piece before the joint, the other styles the one after it
        continues = {"@@": True, "##": piece.startswith("##")}.get(style, not piece.startswith(style))
        word += not (inside and continues)
        words.append(word)
        inside = piece.endswith("@@") if style == "@@" else True
    return words


def merge_pieces(
    weights: Tensor,
    *,
    source: Sequence[int | None],
    target: Sequence[int | None],
    num_source: int | None = None,
    num_target: int | None = None,
    renormalise: bool = False,
) -> Tensor:
    r"""Attention between words, :math:`W_{ji} = \frac{1}{|T_j|} \sum_{t \in T_j} \sum_{s \in S_i} w_{ts}`.

    The sum over the pieces of a source word and the mean over those of a target word: rows that sum to one still do.
    Special tokens (None in a map) are dropped by position; the weight on those of the source is then missing from the
    rows, and is the probability of no link for :func:`hard_alignment`.

    Args:
        weights: Between pieces, ``[..., M, N]``: one sentence pair, in front of it samples or heads.
        source: Word of each source piece, counted from 0, or None.
        target: Word of each target piece.
        num_source: Number of source words, where the last ones may have lost their pieces; the largest in the map
            plus one otherwise.
        num_target: Number of target words, likewise.
        renormalise: Divide the merged rows by their sums, so that none of their weight is missing.

    Returns:
        ``[..., target words, source words]``, in at least float32; zero in the rows and columns of words without
        pieces.

    Raises:
        TypeError: Weights are no floats, or a map holds something else than int and None.
        ValueError: Infinite weights or NaN, a map of another length than the weights, or words out of range.

    Example:
        >>> import torch
        >>> weights = torch.tensor([[0.2, 0.6, 0.1, 0.1], [0.0, 0.4, 0.4, 0.2]])
        >>> merge_pieces(weights, source=[0, 0, 1, None], target=[0, 0])
        tensor([[0.6000, 0.2500]])
        >>> merge_pieces(weights, source=[0, 0, 1, None], target=[0, 0], renormalise=True)
        tensor([[0.7059, 0.2941]])
    """
    check_floats("weights", weights)
    if weights.dim() < 2:
        raise ValueError(f"weights have shape {tuple(weights.shape)}, expected [..., M, N]: target and source pieces")
    if not weights.isfinite().all():
        raise ValueError(f"{(~weights.isfinite()).sum().item()} of {weights.numel()} weights are NaN or infinite")
    weights = as_float(weights)
    columns = check_map("source", source, weights.size(-1), num_source).to(weights)
    rows = check_map("target", target, weights.size(-2), num_target).to(weights)
    means = rows / rows.sum(0).clamp_min(1.0)
    merged = means.mT @ weights @ columns
    if not renormalise:
        return merged
    sums = merged.sum(-1, keepdim=True)
    return merged / sums.masked_fill(sums == 0, 1.0)
