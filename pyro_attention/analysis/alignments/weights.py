"""Attention between the words of a sentence pair: links, how certain they are, and word pieces made words."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pyro_attention._checks import as_float
from pyro_attention.analysis.inputs import ROUNDING, check_choice, check_floats, check_samples, equal_tailed

__all__ = [
    "Alignment",
    "CredibleIntervals",
    "Link",
    "check_matrix",
    "credible_intervals",
    "hard_alignment",
    "k_max",
    "mbr_alignment",
    "merge_pieces",
    "word_map",
]

Link = tuple[int, int]
_PieceStyle = Literal["@@", "##", "▁", "Ġ"]


@dataclass(frozen=True)
class Alignment:
    """Links between the words of a sentence pair; ``str`` writes them in Pharaoh format.

    Attributes:
        links: Pairs (source word, target word), both counted from 0; any iterable of pairs is taken.
        num_source: Number of source words N.
        num_target: Number of target words M.

    Raises:
        ValueError: A link outside the sentences.

    Example:
        >>> alignment = Alignment(frozenset({(1, 0), (0, 1)}), num_source=3, num_target=2)
        >>> print(alignment, "|", alignment.transposed())
        0-1 1-0 | 0-1 1-0
    """

    links: frozenset[Link]
    num_source: int
    num_target: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "links", frozenset(self.links))
        for source, target in sorted(self.links):
            if not (0 <= source < self.num_source and 0 <= target < self.num_target):
                raise ValueError(
                    f"link {(source, target)} lies outside of {self.num_source} source and {self.num_target} target "
                    f"words, expected pairs (source, target) counted from 0"
                )

    @staticmethod
    def from_matrix(matrix: Tensor) -> Alignment:
        """Make the alignment of a boolean matrix ``[M, N]``, target words by source words."""
        if matrix.dtype != torch.bool or matrix.dim() != 2:
            raise ValueError(f"matrix has dtype {matrix.dtype} and shape {tuple(matrix.shape)}, expected bool [M, N]")
        links = frozenset((source, target) for target, source in matrix.nonzero().tolist())
        return Alignment(links, num_source=matrix.size(1), num_target=matrix.size(0))

    def to_matrix(self) -> Tensor:
        """Return the boolean matrix ``[M, N]``, target words by source words."""
        matrix = torch.zeros(self.num_target, self.num_source, dtype=torch.bool)
        for source, target in self.links:
            matrix[target, source] = True
        return matrix

    def transposed(self) -> Alignment:
        """Return the links with source and target swapped."""
        return Alignment(frozenset((t, s) for s, t in self.links), self.num_target, self.num_source)

    def __str__(self) -> str:
        return " ".join(f"{source}-{target}" for source, target in sorted(self.links))


def hard_alignment(weights: Tensor) -> Alignment:
    r"""Link every target word to its most probable source word, the first of equal ones.

    The link probabilities :math:`p_{ji}` are the mean weights. What a row lacks to one, because special tokens were
    dropped, is the probability of no link; where that is the largest, there is none. :func:`mbr_alignment` maximizes
    the expected F1, and ``Alignment.from_matrix(p > 0.5)`` minimizes the expected number of wrong and missing links.

    Args:
        weights: ``[M, N]``, or samples of them ``[S, M, N]``.

    Raises:
        TypeError: Weights are no floats.
        ValueError: Wrong shape, entries outside [0, 1], or rows that sum to more than one.

    Example:
        >>> str(hard_alignment(torch.tensor([[0.5, 0.4, 0.1], [0.2, 0.1, 0.1]])))
        '0-0'
    """
    probabilities = _check_weights(weights).mean(0)
    best = probabilities.amax(-1, keepdim=True)
    none = 1 - probabilities.sum(-1, keepdim=True)
    # of the equal ones the first; torch's argmax does not promise which
    first = ((probabilities == best).cumsum(-1) == 1) & (probabilities == best)
    return Alignment.from_matrix(first & (best > 0) & (best >= none - 1e-6))


def mbr_alignment(probabilities: Tensor, *, balance: float = 1.0) -> Alignment:
    r"""Return the links A that maximize :math:`2 \sum_{(i,j) \in A} p_{ji} / (|A| + \sum_{ij} p_{ji})`.

    With a balance b of precision and recall it is
    :math:`(1 + b^2) \sum_{(i,j) \in A} p_{ji} / (|A| + b^2 \sum_{ij} p_{ji})`. For b = 1 this is F1 against a
    random true alignment G, with :math:`|A \cap G|` and :math:`|G|` replaced by their expectations; one minus it is AER
    with no merely possible links. It is the expected F1 itself where :math:`|G|` is certain, as for weights that sum to
    one, which give each target word exactly one source word; else an approximation through the link probabilities. The
    best set of a given size holds the most probable links, so the optimum is a threshold: the links more probable than
    the maximum over 1 + b^2, which is half of it for F1.

    Args:
        probabilities: Link probabilities ``[M, N]``, such as the mean of samples; rows may have any sum, as where
            those of both directions are averaged.
        balance: How many times as much recall counts as precision, above 0: the b of the F measure.

    Raises:
        TypeError: Probabilities are no floats.
        ValueError: Wrong shape, entries outside [0, 1], or a balance that is not above 0.

    Example:
        >>> str(mbr_alignment(torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.1, 0.9]])))  # 2 * 1.9 / (3 + 2), against 1.4 / 2
        '0-0 1-0 2-1'

    Source: the optimal threshold of F1: Lipton et al. (2014), Optimal Thresholding of Classifiers to Maximize F1
    Measure.
    """
    if not 0 < balance < float("inf"):
        raise ValueError(f"balance is {balance}, expected a number above 0, such as 1 for F1")
    exact = check_matrix(probabilities, name="probabilities").mean(0).double()
    falling = exact.flatten().sort(descending=True).values
    sizes = torch.arange(1, len(falling) + 1, device=exact.device)
    weight = balance**2
    best = (falling.cumsum(0) / (sizes + weight * falling.sum())).max()
    # a link at the threshold changes nothing; the margin keeps rounding from letting it in
    return Alignment.from_matrix(exact > best * (1 + 1e-12))


@dataclass(frozen=True)
class CredibleIntervals:
    """Mean and equal-tailed credible interval of every weight, each ``[M, N]``.

    Attributes:
        mean: Mean weights.
        low: Lower ends.
        high: Upper ends.
        level: Posterior mass of each interval.
    """

    mean: Tensor
    low: Tensor
    high: Tensor
    level: float

    @property
    def width(self) -> Tensor:
        """Upper minus lower ends, ``[M, N]``, 0 to 1."""
        return self.high - self.low


def credible_intervals(samples: Tensor, *, level: float = 0.9) -> CredibleIntervals:
    r"""Return the interval of every weight that leaves :math:`(1 - \mathrm{level}) / 2` of the samples on either side.

    The ends are interpolated between samples, as by :func:`torch.quantile`; they say little about a level beyond
    ``1 - 2 / S``. Each interval is that of one weight, not of all of a row at once. Samples of a graph, ``[S, E, H]``,
    are those of :func:`edge_intervals`.

    Args:
        samples: ``[S, M, N]``, S at least 2.
        level: Posterior mass in (0, 1).

    Raises:
        TypeError: Samples are no floats.
        ValueError: Wrong shape, a single sample, entries outside [0, 1], rows that sum to more than one, or a level
            outside (0, 1).

    Example:
        >>> samples = torch.linspace(0, 1, 11).view(11, 1, 1)
        >>> intervals = credible_intervals(torch.cat([samples, 1 - samples], -1), level=0.8)
        >>> intervals.low, intervals.width
        (tensor([[0.1000, 0.1000]]), tensor([[0.8000, 0.8000]]))
    """
    checked = _check_weights(samples, name="samples", min_samples=2)
    return CredibleIntervals(*equal_tailed(checked, level), level)


def k_max(weights: Tensor, k: int) -> Tensor:
    r"""Keep the k largest weights of each row, :math:`w_{ji} [i \in K_j] / \sum_{i' \in K_j} w_{ji'}`.

    Of equal weights the first are kept. Zeros, such as masked keys, stay exactly zero, and a row of zeros stays one.

    Args:
        weights: Attention weights ``[..., N]``, >= 0.
        k: Number of weights to keep; at least 1.

    Returns:
        Of the shape of weights, in at least float32; gradients flow through the kept weights.

    Raises:
        TypeError: Weights are no floats.
        ValueError: Negative or infinite weights or NaN, or a k below 1.

    Example:
        >>> k_max(torch.tensor([[0.5, 0.25, 0.25, 0.0], [1.0, 0.0, 0.0, 0.0]]), 2)
        tensor([[0.6667, 0.3333, 0.0000, 0.0000],
                [1.0000, 0.0000, 0.0000, 0.0000]])

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, section 5, K-max.
    """
    check_floats("weights", weights)
    if k < 1:
        raise ValueError(f"k is {k}, expected at least 1")
    if not (weights >= 0).all() or weights.isinf().any():
        raise ValueError("weights have an entry that is below 0, infinite or NaN, expected finite numbers >= 0")
    weights = as_float(weights)
    # stable: topk may take any of equal weights
    order = weights.detach().sort(dim=-1, descending=True, stable=True).indices[..., :k]
    largest = weights * torch.zeros_like(weights).scatter_(-1, order, 1.0)
    sums = largest.sum(-1, keepdim=True)
    return largest / sums.masked_fill(sums == 0, 1.0)


def word_map(pieces: Sequence[str], *, style: _PieceStyle = "@@", special: Collection[str] = ()) -> list[int | None]:
    """Return the word of each piece, counted from 0; None for special tokens.

    The tokenizers and transformers libraries have ``encoding.word_ids`` for it, but split off punctuation there
    may count as a word of its own: the words must be those that the gold links count.

    Args:
        pieces: The pieces of one sentence.
        style: How words are marked: "@@" ends a piece that the next one continues (subword-nmt), "##" begins a piece
            that continues a word (WordPiece), "▁" (SentencePiece) or "Ġ" (byte-level BPE) begins a word.
        special: Pieces that belong to no word, such as ``{"<s>", "</s>", "<pad>"}``; a word ends before them.

    Raises:
        ValueError: An unknown style.

    Example:
        >>> word_map(["<s>", "re@@", "vier@@", "verhalten", "."], special={"<s>"})
        [None, 0, 0, 0, 1]
        >>> word_map(["▁Tür", "en", "▁auf"], style="▁")
        [0, 0, 1]
    """
    check_choice("style", style, _PieceStyle)
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
    renormalize: bool = False,
) -> Tensor:
    r"""Compute the attention between words, :math:`W_{ji} = \frac{1}{|T_j|} \sum_{t \in T_j} \sum_{s \in S_i} w_{ts}`.

    The sum over the pieces of a source word and the mean over those of a target word: rows that sum to one still do.
    Special tokens (None in a map) are dropped by position; the weight on those of the source is then missing from the
    rows, and is the probability of no link for :func:`hard_alignment`.

    Args:
        weights: Weights between pieces, ``[..., M, N]``: one sentence pair, in front of it samples or heads.
        source: Word of each source piece, counted from 0, or None.
        target: Word of each target piece.
        renormalize: Divide the merged rows by their sums, so that none of their weight is missing.

    Returns:
        ``[..., target words, source words]``, in at least float32, of as many words as the maps have; zero in the rows
        and columns of words without pieces.

    Raises:
        TypeError: Weights are no floats.
        ValueError: Infinite weights or NaN, or a map of another length than the weights, or without words.

    Example:
        >>> weights = torch.tensor([[0.2, 0.6, 0.1, 0.1], [0.0, 0.4, 0.4, 0.2]])
        >>> merge_pieces(weights, source=[0, 0, 1, None], target=[0, 0])
        tensor([[0.6000, 0.2500]])
        >>> merge_pieces(weights, source=[0, 0, 1, None], target=[0, 0], renormalize=True)
        tensor([[0.7059, 0.2941]])
    """
    check_floats("weights", weights)
    if not weights.isfinite().all():
        raise ValueError(f"{(~weights.isfinite()).sum().item()} of {weights.numel()} weights are NaN or infinite")
    weights = as_float(weights)
    columns = _members("source", source, weights.size(-1)).to(weights)
    rows = _members("target", target, weights.size(-2)).to(weights)
    means = rows / rows.sum(0).clamp_min(1.0)
    merged = means.mT @ weights @ columns
    if not renormalize:
        return merged
    sums = merged.sum(-1, keepdim=True)
    return merged / sums.masked_fill(sums == 0, 1.0)


def _check_weights(weights: Tensor, *, name: str = "weights", min_samples: int = 0) -> Tensor:
    """Return the weights as :func:`check_matrix`; the sums over the sources must be at most one."""
    checked = check_matrix(weights, name=name, min_samples=min_samples)
    largest = checked.sum(-1).max().item()
    if largest > 1 + ROUNDING:
        raise ValueError(
            f"{name} of a target word sum to {largest:.4g} over the sources (the last dimension), expected 1, or less "
            f"where special tokens were dropped; transpose [N, M] weights with .mT, apply .softmax(-1) to scores, and "
            f"give the samples of a graph, [S, E, H], to edge_intervals"
        )
    return checked


def check_matrix(entries: Tensor, *, name: str, min_samples: int = 0) -> Tensor:
    """Return the entries as ``[S, M, N]``, with S = 1 where there are no samples.

    They must lie in [0, 1], up to rounding.
    """
    checked = check_samples(name, entries, axes="M, N", min_samples=min_samples)
    low, high = checked.min().item(), checked.max().item()
    if not (low >= 0 and high <= 1 + ROUNDING):
        raise ValueError(f"{name} run from {low:.4g} to {high:.4g}, expected 0 to 1; apply .softmax(-1) to scores")
    return checked


def _members(name: str, words: Sequence[int | None], pieces: int) -> Tensor:
    """Return the membership of pieces in words, ``[pieces, words]`` in float32.

    The map must give each piece a word or None.
    """
    word_indices = [number for number in words if number is not None]
    if len(words) != pieces or not word_indices:
        raise ValueError(
            f"{name} maps {len(words)} pieces, {len(word_indices)} of them to words; expected {pieces} as in the "
            f"weights, and at least one word"
        )
    members = torch.zeros(pieces, max(word_indices) + 1)
    members[[piece for piece, number in enumerate(words) if number is not None], word_indices] = 1.0
    return members
