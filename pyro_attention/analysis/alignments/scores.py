"""Alignment error rate, and how far alignments agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import TypeVar

import torch
from torch import Tensor

from pyro_attention.analysis.alignments.weights import Alignment, Link

__all__ = ["AlignmentScores", "GoldAlignment", "agreement", "alignment_error_rate"]

T = TypeVar("T", Alignment, "GoldAlignment")


@dataclass(frozen=True)
class GoldAlignment:
    """Links that annotators gave a sentence pair.

    Attributes:
        sure: Links (source word, target word), counted from 0, that an alignment must have.
        possible: Links that it may have; the sure ones are always among them.

    Example:
        >>> gold = GoldAlignment(sure=frozenset({(0, 0)}), possible=frozenset({(1, 0)}))
        >>> sorted(gold.possible)
        [(0, 0), (1, 0)]
    """

    sure: frozenset[Link]
    possible: frozenset[Link] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "sure", frozenset(self.sure))
        object.__setattr__(self, "possible", self.sure | frozenset(self.possible))

    def transposed(self) -> GoldAlignment:
        """The same links with source and target swapped."""
        sure, possible = (frozenset((t, s) for s, t in links) for links in (self.sure, self.possible))
        return GoldAlignment(sure, possible)

    def __str__(self) -> str:
        links = sorted((*link, "-" if link in self.sure else "p") for link in self.possible)
        return " ".join(f"{source}{mark}{target}" for source, target, mark in links)


@dataclass(frozen=True)
class AlignmentScores:
    """Counts of links over all sentence pairs, and what follows from them; counts may be added, ``first + second``.

    Attributes:
        num_sentences: Number of sentence pairs.
        num_predicted: Predicted links, ``|A|``.
        num_sure: Sure links, ``|S|``.
        num_predicted_sure: Predicted links that are sure, ``|A n S|``.
        num_predicted_possible: Predicted links that are sure or possible, ``|A n P|``.
    """

    num_sentences: int
    num_predicted: int
    num_sure: int
    num_predicted_sure: int
    num_predicted_possible: int

    @property
    def aer(self) -> float:
        """Alignment error rate, 0 to 1, lower is better; 0 when nothing is predicted and nothing is sure."""
        total = self.num_predicted + self.num_sure
        return 1 - (self.num_predicted_sure + self.num_predicted_possible) / total if total else 0.0

    @property
    def precision(self) -> float:
        """Fraction of the predicted links that are possible; 1 when nothing is predicted."""
        return self.num_predicted_possible / self.num_predicted if self.num_predicted else 1.0

    @property
    def recall(self) -> float:
        """Fraction of the sure links that are predicted; 1 when nothing is sure."""
        return self.num_predicted_sure / self.num_sure if self.num_sure else 1.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall; 1 - AER where every possible link is sure."""
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0

    def __add__(self, other: AlignmentScores) -> AlignmentScores:
        if not isinstance(other, AlignmentScores):
            return NotImplemented
        return AlignmentScores(*(own + others for own, others in zip(astuple(self), astuple(other), strict=True)))


def alignment_error_rate(
    predicted: Mapping[str, Alignment] | Sequence[Alignment],
    gold: Mapping[str, GoldAlignment] | Sequence[GoldAlignment],
) -> AlignmentScores:
    r"""Score predicted links A, :math:`\mathrm{AER} = 1 - (|A \cap S| + |A \cap P|) / (|A| + |S|)`.

    The counts are summed over the sentence pairs before they are divided. Some report AER in percent.

    Args:
        predicted: Alignments by sentence id, or in a sequence.
        gold: Sure links S and possible links P of the same sentences, in the same form.

    Raises:
        TypeError: One is a mapping and the other is not, or holds something else than alignments.
        ValueError: Other sentences in one than in the other, none at all, or a gold link outside of a sentence.

    Example:
        >>> gold = GoldAlignment(sure=frozenset({(0, 0), (1, 1)}), possible=frozenset({(2, 1)}))
        >>> scores = alignment_error_rate([Alignment(frozenset({(0, 0), (2, 1), (2, 0)}), 3, 2)], [gold])
        >>> scores.aer, scores.precision, scores.recall  # 1 - (1 + 2) / (3 + 2)
        (0.4, 0.66667, 0.5)

    Source: Och and Ney (2003), A Systematic Comparison of Various Statistical Alignment Models, section 5.1.
    """
    scores = AlignmentScores(0, 0, 0, 0, 0)
    for name, links, truth in _pairs(predicted, gold):
        if not isinstance(links, Alignment) or not isinstance(truth, GoldAlignment):
            raise TypeError(
                f"sentence {name} has a predicted {type(links).__name__} and a gold {type(truth).__name__}, expected "
                f"an Alignment and a GoldAlignment"
            )
        for source, target in sorted(truth.possible):
            if not (0 <= source < links.num_source and 0 <= target < links.num_target):
                raise ValueError(
                    f"sentence {name}: gold link {(source, target)} lies outside of the {links.num_source} source and "
                    f"{links.num_target} target words of the prediction, expected pairs (source, target) counted from "
                    f"0; look for swapped sides, pieces instead of words, or links counted from 1"
                )
        scores += AlignmentScores(
            num_sentences=1,
            num_predicted=len(links.links),
            num_sure=len(truth.sure),
            num_predicted_sure=len(links.links & truth.sure),
            num_predicted_possible=len(links.links & truth.possible),
        )
    return scores


def _pairs(
    first: Mapping[str, Alignment] | Sequence[Alignment], second: Mapping[str, T] | Sequence[T]
) -> Iterator[tuple[str, Alignment, T]]:
    """Name, and what both hold for it."""
    kind = Mapping if isinstance(first, Mapping) else Sequence
    if not all(isinstance(alignments, kind) and not isinstance(alignments, str) for alignments in (first, second)):
        raise TypeError(
            f"got a {type(first).__name__} and a {type(second).__name__}, expected two mappings from sentence ids, or "
            f"two sequences"
        )
    by_name, others = _named(first), _named(second)
    if by_name.keys() != others.keys() or not by_name:
        differing = sorted(by_name.keys() ^ others.keys())
        raise ValueError(
            f"got {len(by_name)} and {len(others)} sentences, expected the same ones and at least one; "
            f"{len(differing)} are in one of them only: {', '.join(map(str, differing[:5]))}"
        )
    for name, alignment in by_name.items():
        yield name, alignment, others[name]


def _named(alignments: Mapping[str, T] | Sequence[T]) -> Mapping[str, T]:
    return alignments if isinstance(alignments, Mapping) else {str(i): x for i, x in enumerate(alignments)}


def agreement(alignments: Mapping[str, Sequence[Alignment]]) -> Tensor:
    r"""F1 between the alignments of every two schemes, :math:`2 |A \cap B| / (|A| + |B|)`.

    Args:
        alignments: Alignments of the same sentences by scheme.

    Returns:
        Symmetric float64 ``[schemes, schemes]``, summed over sentences before the division; 1 where neither has links.

    Raises:
        TypeError: A scheme has something else than alignments.
        ValueError: No schemes, other numbers of sentences, or of their words.

    Example:
        >>> one, two = ([Alignment(frozenset(links), 2, 2)] for links in ({(0, 0), (1, 1)}, {(0, 0)}))
        >>> agreement({"soft": one, "hard": two})
        tensor([[1.0000, 0.6667],
                [0.6667, 1.0000]], dtype=torch.float64)
    """
    names = list(alignments)
    if not names:
        raise ValueError("alignments is empty, expected the alignments of at least one scheme")
    table = torch.ones(len(names), len(names), dtype=torch.float64)
    for row, name in enumerate(names):
        for column, other in enumerate(names[: row + 1]):
            common = total = 0
            for sentence, first, second in _pairs(alignments[name], alignments[other]):
                if not isinstance(first, Alignment):  # others have been the first before
                    raise TypeError(
                        f"sentence {sentence} of '{name}' has a {type(first).__name__}, expected an Alignment"
                    )
                sizes = [(a.num_source, a.num_target) for a in (first, second)]
                if sizes[0] != sizes[1]:
                    raise ValueError(
                        f"sentence {sentence} has {sizes[0]} source and target words in '{name}', {sizes[1]} in "
                        f"'{other}'; expected the same"
                    )
                common += len(first.links & second.links)
                total += len(first.links) + len(second.links)
            table[row, column] = table[column, row] = 2 * common / total if total else 1.0
    return table
