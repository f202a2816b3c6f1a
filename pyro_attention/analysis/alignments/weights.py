"""From attention weights, or posterior samples of them, to word alignments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pyro_attention.analysis.alignments.inputs import check_matrix, check_weights
from pyro_attention.analysis.inputs import check_choice

__all__ = ["Alignment", "Link", "LinkMethod", "hard_alignment", "link_probabilities", "mbr_alignment"]

Link = tuple[int, int]
LinkMethod = Literal["argmax", "threshold", "mbr"]


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
        """Alignment of a boolean matrix ``[M, N]``, target words by source words."""
        if matrix.dtype != torch.bool or matrix.dim() != 2:
            raise ValueError(f"matrix has dtype {matrix.dtype} and shape {tuple(matrix.shape)}, expected bool [M, N]")
        links = frozenset((source, target) for target, source in matrix.nonzero().tolist())
        return Alignment(links, num_source=matrix.size(1), num_target=matrix.size(0))

    def to_matrix(self) -> Tensor:
        """Boolean matrix ``[M, N]``, target words by source words."""
        matrix = torch.zeros(self.num_target, self.num_source, dtype=torch.bool)
        for source, target in self.links:
            matrix[target, source] = True
        return matrix

    def transposed(self) -> Alignment:
        """The same links with source and target swapped."""
        return Alignment(frozenset((t, s) for s, t in self.links), self.num_target, self.num_source)

    def __str__(self) -> str:
        return " ".join(f"{source}-{target}" for source, target in sorted(self.links))


def link_probabilities(samples: Tensor, *, above: float | None = None) -> Tensor:
    r"""Posterior probability of every link, :math:`P(z_j = i) = \frac1S \sum_s W^{(s)}_{ji}`.

    Args:
        samples: Attention weights ``[S, M, N]``, or ``[M, N]`` for S = 1; one-hot ones where alignments were sampled.
        above: Instead of the mean weight, the fraction of samples with a weight above it: the probability that a
            target word attends to a source word by more than that. Then several links of a word may be probable.

    Returns:
        ``[M, N]``, in [0, 1].

    Raises:
        TypeError: Samples are no floats.
        ValueError: Wrong shape, entries outside [0, 1], or rows that sum to more than one; ``above`` outside [0, 1).

    Example:
        >>> samples = torch.tensor([[[0.9, 0.1]], [[0.5, 0.5]]])
        >>> link_probabilities(samples), link_probabilities(samples, above=0.4)
        (tensor([[0.7000, 0.3000]]), tensor([[1.0000, 0.5000]]))
    """
    checked = check_weights(samples, name="samples")
    if above is None:
        return checked.mean(0)
    if not 0 <= above < 1:
        raise ValueError(f"above is {above}, expected a weight in [0, 1)")
    return (checked > above).to(checked.dtype).mean(0)


def hard_alignment(weights: Tensor, *, method: LinkMethod = "argmax", threshold: float = 0.5) -> Alignment:
    r"""Choose links by their probabilities :math:`p_{ji}`, the mean weights.

    ``argmax`` links every target word to its most probable source word, the first of equal ones. What a row lacks to
    one, because special tokens were dropped, is the probability of no link; where that is the largest, there is none.
    ``threshold`` takes every :math:`p_{ji}` above the threshold; with 0.5 that minimises the expected number of wrong
    and missing links. ``mbr`` maximises the expected F1, as :func:`mbr_alignment`.

    Args:
        weights: ``[M, N]``, or samples of them ``[S, M, N]``.
        method: "argmax", "threshold" or "mbr".
        threshold: In [0, 1); for "threshold" alone.

    Raises:
        TypeError: Weights are no floats.
        ValueError: Wrong shape, entries outside [0, 1], rows that sum to more than one, or an unknown method.

    Example:
        >>> weights = torch.tensor([[0.5, 0.4, 0.1], [0.2, 0.1, 0.1]])
        >>> [str(hard_alignment(weights, method=method)) for method in ("argmax", "threshold", "mbr")]
        ['0-0', '', '0-0 1-0']
    """
    check_choice("method", method, LinkMethod)
    probabilities = check_weights(weights).mean(0)
    if method == "mbr":
        return mbr_alignment(probabilities)
    if method == "threshold":
        if not 0 <= threshold < 1:
            raise ValueError(f"threshold is {threshold}, expected a weight in [0, 1)")
        return Alignment.from_matrix(probabilities > threshold)
    best = probabilities.amax(-1, keepdim=True)
    none = 1 - probabilities.sum(-1, keepdim=True)
    # of the equal ones the first; torch's argmax does not promise which
    first = ((probabilities == best).cumsum(-1) == 1) & (probabilities == best)
    return Alignment.from_matrix(first & (best > 0) & (best >= none - 1e-6))


def mbr_alignment(probabilities: Tensor) -> Alignment:
    r"""Minimum Bayes risk: the links A that maximise :math:`2 \sum_{(i,j) \in A} p_{ji} / (|A| + \sum_{ij} p_{ji})`.

    This is F1 against a random true alignment G, with :math:`|A \cap G|` and :math:`|G|` replaced by their
    expectations; one minus it is AER with no merely possible links. It is the expected F1 itself where :math:`|G|` is
    certain, as for weights that sum to one, which give each target word exactly one source word; else an
    approximation through the link probabilities. The best set of a given size holds the most probable links, so the
    optimum is a threshold: the links more probable than half the maximum.

    Args:
        probabilities: Link probabilities ``[M, N]``, as of :func:`link_probabilities`; rows may have any sum, as where
            those of both directions are averaged.

    Raises:
        TypeError: Probabilities are no floats.
        ValueError: Wrong shape, or entries outside [0, 1].

    Example:
        >>> str(mbr_alignment(torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.1, 0.9]])))  # 2 * 1.9 / (3 + 2), against 1.4 / 2
        '0-0 1-0 2-1'

    Source: the optimal threshold of F1: Lipton et al. (2014), Optimal Thresholding of Classifiers to Maximize F1
    Measure.
    """
    exact = check_matrix(probabilities, name="probabilities").mean(0).double()
    falling = exact.flatten().sort(descending=True).values
    sizes = torch.arange(1, len(falling) + 1, device=exact.device)
    best = (2 * falling.cumsum(0) / (sizes + falling.sum())).max()
    # a link at the threshold changes nothing; the margin keeps rounding from letting it in
    return Alignment.from_matrix(exact > best / 2 * (1 + 1e-12))
