"""Links of many sentence pairs: files, error rate against gold links, and both directions made one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pyro_attention.analysis.alignments.weights import Alignment, Link
from pyro_attention.analysis.inputs import check_choice
from pyro_attention.text_lines import read_lines

__all__ = [
    "AlignmentScores",
    "GoldAlignment",
    "SymmetrizeMethod",
    "alignment_error_rate",
    "read_naacl",
    "read_pharaoh",
    "read_sentences",
    "symmetrize",
]

_Links = tuple[set[Link], set[Link]]  # sure and possible ones

_LINK = re.compile(r"(\d{1,9})([-p])(\d{1,9})", re.ASCII)
_COLUMNS = re.compile(r"\s*(\S+)\s+(\d{1,9})\s+(\d{1,9})(?:\s+([SP]))?(?:\s+\d+(?:\.\d*)?)?\s*", re.ASCII)
SymmetrizeMethod = Literal["intersection", "union", "grow-diag", "grow-diag-final", "grow-diag-final-and"]

_NEIGHBORS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))


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
        """Return the links with source and target swapped."""
        sure, possible = (frozenset((t, s) for s, t in links) for links in (self.sure, self.possible))
        return GoldAlignment(sure, possible)

    def __str__(self) -> str:
        links = sorted((*link, "-" if link in self.sure else "p") for link in self.possible)
        return " ".join(f"{source}{mark}{target}" for source, target, mark in links)


@dataclass(frozen=True)
class AlignmentScores:
    """Counts of links over all sentence pairs, and what follows from them.

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
        """Harmonic mean of precision and recall; 1 - AER where every possible link is sure, as of two alignments."""
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0


def alignment_error_rate(predicted: Sequence[Alignment], gold: Sequence[GoldAlignment]) -> AlignmentScores:
    r"""Score predicted links A, :math:`\mathrm{AER} = 1 - (|A \cap S| + |A \cap P|) / (|A| + |S|)`.

    The counts are summed over the sentence pairs before they are divided. Some report AER in percent.

    Args:
        predicted: Alignments of sentence pairs.
        gold: Sure links S and possible links P of the same sentence pairs.

    Raises:
        ValueError: No sentence pairs, others in one than in the other, or a gold link outside of a sentence.

    Example:
        >>> gold = GoldAlignment(sure=frozenset({(0, 0), (1, 1)}), possible=frozenset({(2, 1)}))
        >>> scores = alignment_error_rate([Alignment(frozenset({(0, 0), (2, 1), (2, 0)}), 3, 2)], [gold])
        >>> scores.aer, scores.precision, scores.recall  # 1 - (1 + 2) / (3 + 2)
        (0.4, 0.66667, 0.5)

    Source: Och and Ney (2003), A Systematic Comparison of Various Statistical Alignment Models, section 5.1.
    """
    if isinstance(gold, dict) or len(predicted) != len(gold) or not gold:
        mismatch = f"predicted is a {type(predicted).__name__} of {len(predicted)} sentence pairs and gold a"
        expected = "sequences of the same ones, at least one; of a file: list(read_pharaoh(path).values())"
        raise ValueError(f"{mismatch} {type(gold).__name__} of {len(gold)}, expected {expected}")
    pairs = list(zip(predicted, gold, strict=True))
    for sentence, (links, truth) in enumerate(pairs):
        for source, target in sorted(truth.possible):
            if not (0 <= source < links.num_source and 0 <= target < links.num_target):
                raise ValueError(
                    f"sentence {sentence}: gold link {(source, target)} lies outside of the {links.num_source} source "
                    f"and {links.num_target} target words of the prediction, expected pairs (source, target) counted "
                    f"from 0; look for swapped sides, pieces instead of words, or links counted from 1"
                )
    return AlignmentScores(
        num_sentences=len(pairs),
        num_predicted=sum(len(links.links) for links, _ in pairs),
        num_sure=sum(len(truth.sure) for _, truth in pairs),
        num_predicted_sure=sum(len(links.links & truth.sure) for links, truth in pairs),
        num_predicted_possible=sum(len(links.links & truth.possible) for links, truth in pairs),
    )


def symmetrize(forward: Alignment, backward: Alignment, *, method: SymmetrizeMethod) -> Alignment:
    r"""Combine the alignments of two directions, :math:`F \cap B \subseteq A \subseteq F \cup B`.

    ``grow-diag`` starts from the intersection and adds, until nothing changes, links of the union that touch a link
    of A (the diagonals count) and have a source or a target word without a link in A. ``grow-diag-final`` then adds
    the links of F, then of B, that have such a word; ``grow-diag-final-and`` only those with both words without a
    link. Links are visited by target word, then by source word, as in Koehn's pseudo-code and in Moses' symal, and
    one that was just added counts for those visited after it.

    Args:
        forward: Alignment by the model whose target words choose source words.
        backward: Alignment by the model of the other direction, with the same source and target after
            :meth:`Alignment.transposed`.
        method: "intersection", "union", "grow-diag", "grow-diag-final" or "grow-diag-final-and".

    Raises:
        ValueError: Sentences of different lengths, or an unknown method.

    Example:
        >>> forward = Alignment(frozenset({(0, 0), (0, 1), (2, 2)}), 4, 4)
        >>> backward = Alignment(frozenset({(0, 0), (2, 3), (3, 1)}), 4, 4)
        >>> for method in ("intersection", "grow-diag", "grow-diag-final-and", "grow-diag-final"):
        ...     print(symmetrize(forward, backward, method=method))
        0-0
        0-0 0-1
        0-0 0-1 2-2
        0-0 0-1 2-2 2-3 3-1

    Source: Koehn, Och and Marcu (2003), Statistical Phrase-Based Translation; Koehn et al. (2005), Edinburgh System
    Description for the 2005 IWSLT Speech Translation Evaluation.
    """
    check_choice("method", method, SymmetrizeMethod)
    sizes, backward_sizes = ((a.num_source, a.num_target) for a in (forward, backward))
    if sizes != backward_sizes:
        raise ValueError(
            f"forward has {sizes[0]} source and {sizes[1]} target words, "
            f"backward {backward_sizes[0]} and {backward_sizes[1]}; "
            f"expected the same: turn the alignment of the other direction round with .transposed()"
        )
    if method == "union":
        return Alignment(forward.links | backward.links, *sizes)
    common = forward.links & backward.links
    if method == "intersection":
        return Alignment(common, *sizes)
    links = _grown(common, forward.links | backward.links)
    if method != "grow-diag":
        enough = all if method == "grow-diag-final-and" else any
        for link in [*_by_target(forward.links), *_by_target(backward.links)]:
            if enough(_free_words(link, links)):
                links.add(link)
    return Alignment(frozenset(links), *sizes)


def _by_target(links: frozenset[Link]) -> list[Link]:
    """Return links in the order in which they are visited: by target word, then by source word."""
    return sorted(links, key=lambda link: (link[1], link[0]))


def _free_words(link: Link, links: set[Link]) -> tuple[bool, bool]:
    """Return whether the source word and the target word of a link are in none of the links."""
    return all(source != link[0] for source, _ in links), all(target != link[1] for _, target in links)


def _grown(common: frozenset[Link], union: frozenset[Link]) -> set[Link]:
    """Add neighbors of links in the union that have a word without a link, until nothing changes."""
    links, before = set(common), -1
    while before < len(links):
        before = len(links)
        for source, target in _by_target(union):
            if (source, target) not in links:
                continue
            for down, right in _NEIGHBORS:
                neighbor = (source + right, target + down)
                if neighbor in union and neighbor not in links and any(_free_words(neighbor, links)):
                    links.add(neighbor)
    return links


def read_pharaoh(path: str | Path, *, index: int = 0, target_first: bool = False) -> dict[str, GoldAlignment]:
    r"""Read one sentence pair a line, ``i-j`` sure links and ``ipj`` possible ones, as ``str`` writes them.

    Args:
        path: The file, in UTF-8. Its lines may begin with an id and a tab.
        index: 0 or 1, the number of the first word.
        target_first: The target word stands on the left of a link.

    Returns:
        Links by sentence id; the number of the line, from 0, where there are no ids.

    Raises:
        ValueError: What is no link, a position 0 where words are counted from 1, or an id that two lines have; with
            file and line.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "gold.txt")
        >>> _ = path.write_text("7\t0-0 1p0\n9\t\n")
        >>> {name: str(gold) for name, gold in read_pharaoh(path).items()}
        {'7': '0-0 1p0', '9': ''}
    """
    links: dict[str, _Links] = {}
    for location, name, text in _named_lines(Path(path)):
        links[name] = (set(), set())
        for item in text.split():
            match = _LINK.fullmatch(item)
            if match is None:
                raise ValueError(
                    f"{location}: {item[:80]!r} is no link, expected i-j for a sure one or ipj for a possible one"
                )
            link = _link(location, (match[1], match[3]), index, target_first)
            links[name][match[2] == "p"].add(link)
    return {name: GoldAlignment(*map(frozenset, pair)) for name, pair in links.items()}


def read_naacl(path: str | Path, *, index: int = 1, target_first: bool = False) -> dict[str, GoldAlignment]:
    r"""Read one link a line, ``sentence source target [S|P] [confidence]``: the format of the Hansards' gold links.

    Args:
        path: The file, in UTF-8. A link without S or P is sure; the confidence is not used.
        index: 0 or 1, the number of the first word.
        target_first: The target word is the second column.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "gold.wa")
        >>> _ = path.write_text("0001 1 1 S\n0001 2 1 P\n")
        >>> {name: str(gold) for name, gold in read_naacl(path).items()}
        {'0001': '0-0 1p0'}

    Source: Mihalcea and Pedersen (2003), An Evaluation Exercise for Word Alignment.
    """
    links: dict[str, _Links] = {}
    for location, line in read_lines(Path(path)):
        if not line.strip():
            continue
        match = _COLUMNS.fullmatch(line)
        if match is None:
            raise ValueError(
                f"{location} is {line[:200]!r}, expected the columns sentence, source, target, S or P, confidence"
            )
        name, kind = match[1], match[4]
        link = _link(location, (match[2], match[3]), index, target_first)
        links.setdefault(name, (set(), set()))[kind == "P"].add(link)
    return {name: GoldAlignment(*map(frozenset, pair)) for name, pair in links.items()}


def read_sentences(path: str | Path) -> dict[str, list[str]]:
    r"""Read one sentence a line, its words between spaces; an id and a tab may stand before it.

    Args:
        path: The file, in UTF-8.

    Ids are as in :func:`read_pharaoh`.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "de.txt")
        >>> _ = path.write_text("7\tDas stimmt nicht !\n", encoding="utf-8")
        >>> read_sentences(path)
        {'7': ['Das', 'stimmt', 'nicht', '!']}
    """
    return {name: text.split() for _, name, text in _named_lines(Path(path))}


def _named_lines(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield location, id and text of every line; ValueError where two lines have one id."""
    locations: dict[str, str] = {}
    for number, (location, line) in enumerate(read_lines(path)):
        name, tab, text = line.partition("\t")
        name, text = (name.strip(), text) if tab else (str(number), line)
        if name in locations:
            raise ValueError(
                f"{location} has the id {name!r}, as {locations[name]} has; expected an id for each sentence pair: "
                f"rename or remove one of them"
            )
        locations[name] = location
        yield location, name, text


def _link(location: str, numbers: tuple[str, str], index: int, target_first: bool) -> Link:
    """Return a link (source, target) counted from 0."""
    first, second = (int(number) - index for number in numbers)
    if min(first, second) < 0:
        raise ValueError(
            f"{location}: a link has position 0 where words are counted from 1; pass index=0 if they are counted "
            f"from 0, or take the gold file without links to NULL"
        )
    return (second, first) if target_first else (first, second)
