"""One alignment out of those of both directions of translation."""

from __future__ import annotations

from typing import Literal

from pyro_attention.analysis.alignments.weights import Alignment, Link
from pyro_attention.analysis.inputs import check_choice

__all__ = ["SymmetriseMethod", "symmetrise"]

SymmetriseMethod = Literal["intersection", "union", "grow-diag", "grow-diag-final", "grow-diag-final-and"]

_NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))


def symmetrise(forward: Alignment, backward: Alignment, *, method: SymmetriseMethod) -> Alignment:
    r"""Combine the alignments of two directions, :math:`F \cap B \subseteq A \subseteq F \cup B`.

    ``grow-diag`` starts from the intersection and adds, until nothing changes, links of the union that touch a link
    of A (the diagonals count) and have a source or a target word without a link in A. ``grow-diag-final`` then adds
    the links of F, then of B, that have such a word; ``grow-diag-final-and`` only those with both words without a
    link. Links are visited by target word, then by source word, as in Koehn's pseudo-code and in Moses' symal, and
    one that was just added counts for those visited after it.

    Args:
        forward: Of the model whose target words choose source words.
        backward: Of the model of the other direction, turned round to the same source and target by
            :meth:`Alignment.transposed`.
        method: "intersection", "union", "grow-diag", "grow-diag-final" or "grow-diag-final-and".

    Raises:
        TypeError: An argument is no Alignment.
        ValueError: Sentences of different lengths, or an unknown method.

    Example:
        >>> forward = Alignment(frozenset({(0, 0), (0, 1), (2, 2)}), 4, 4)
        >>> backward = Alignment(frozenset({(0, 0), (2, 3), (3, 1)}), 4, 4)
        >>> for method in ("intersection", "grow-diag", "grow-diag-final-and", "grow-diag-final"):
        ...     print(symmetrise(forward, backward, method=method))
        0-0
        0-0 0-1
        0-0 0-1 2-2
        0-0 0-1 2-2 2-3 3-1

    Source: Koehn, Och and Marcu (2003), Statistical Phrase-Based Translation; Koehn et al. (2005), Edinburgh System
    Description for the 2005 IWSLT Speech Translation Evaluation.
    """
    for name, alignment in (("forward", forward), ("backward", backward)):
        if not isinstance(alignment, Alignment):
            raise TypeError(f"{name} is a {type(alignment).__name__}, expected an Alignment")
    check_choice("method", method, SymmetriseMethod)
    sizes, others = ((a.num_source, a.num_target) for a in (forward, backward))
    if sizes != others:
        raise ValueError(
            f"forward has {sizes[0]} source and {sizes[1]} target words, backward {others[0]} and {others[1]}; "
            f"expected the same: turn the alignment of the other direction round with .transposed()"
        )
    if method == "union":
        return Alignment(forward.links | backward.links, *sizes)
    common = forward.links & backward.links
    if method == "intersection":
        return Alignment(common, *sizes)
    links = _grown(common, forward.links | backward.links)
    if method != "grow-diag":
        for direction in (forward.links, backward.links):
            for link in _by_target(direction):
                taken = _taken(link, links)
                if not (any(taken) if method == "grow-diag-final-and" else all(taken)):
                    links.add(link)
    return Alignment(frozenset(links), *sizes)


def _by_target(links: frozenset[Link]) -> list[Link]:
    return sorted(links, key=lambda link: (link[1], link[0]))


def _taken(link: Link, links: set[Link]) -> tuple[bool, bool]:
    """Whether the source word and the target word of a link have one."""
    return any(source == link[0] for source, _ in links), any(target == link[1] for _, target in links)


def _grown(common: frozenset[Link], union: frozenset[Link]) -> set[Link]:
    """Links and their neighbours in the union that have a free word, until nothing changes."""
    links, before = set(common), -1
    while before < len(links):
        before = len(links)
        for source, target in _by_target(union):
            for down, right in _NEIGHBOURS if (source, target) in links else ():
                near = (source + right, target + down)
                if near in union and near not in links and not all(_taken(near, links)):
                    links.add(near)
    return links
