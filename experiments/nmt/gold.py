"""Gold links of a file: which word counts as the first, which side stands on the left, and whether the text fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from experiments.files import UserError, read_text, user_errors
from experiments.nmt.config import GoldIndex, GoldOrder
from pyro_attention.analysis import Alignment, GoldAlignment, alignment_error_rate, read_naacl, read_pharaoh

__all__ = ["GoldLinks", "better_reading", "read_gold"]


@dataclass(frozen=True)
class _Reading:
    """A way to read the numbers of a gold file."""

    index: GoldIndex
    order: GoldOrder

    def apply(self, links: GoldAlignment) -> GoldAlignment:
        """Links (source, target) counted from 0; some may be below 0."""
        parts = ([(i - self.index, j - self.index) for i, j in part] for part in (links.sure, links.possible))
        found = GoldAlignment(*map(frozenset, parts))
        return found.transposed() if self.order == "target-source" else found

    def misfit(self, written: Mapping[str, GoldAlignment], sizes: Sequence[tuple[int, int]]) -> str:
        """What is wrong with the first link that lies outside of its sentences; nothing where all fit."""
        for (place, links), (num_source, num_target) in zip(written.items(), sizes, strict=True):
            for left, right in sorted(links.possible):
                pair = (right, left) if self.order == "target-source" else (left, right)
                source, target = (number - self.index for number in pair)
                if min(source, target) < 0:
                    return f"{place}: link {left}-{right} has a word 0"
                if source >= num_source or target >= num_target:
                    outside = f"lies outside of {num_source} source and {num_target} target words"
                    return f"{place}: link {left}-{right} {outside}"
        return ""

    def options(self, other: _Reading) -> str:
        """The options that choose this reading instead of another."""
        pairs = (("--gold-index", self.index, other.index), ("--gold-order", self.order, other.order))
        return " ".join(f"{name} {value}" for name, value, chosen in pairs if value != chosen)

    def __str__(self) -> str:
        return f"words counted from {self.index}, the {self.order.partition('-')[0]} word on the left"


@dataclass(frozen=True)
class GoldLinks:
    """Gold links of every sentence pair of a text.

    Attributes:
        links: As they were asked to be read.
        others: The same links read in other ways in which they lie inside of the sentences too, by the options that
            choose these ways.
    """

    links: list[GoldAlignment]
    others: dict[str, list[GoldAlignment]]


def read_gold(
    path: Path, sizes: Sequence[tuple[int, int]], *, index: GoldIndex | None = None, order: GoldOrder = "source-target"
) -> GoldLinks:
    """Read gold links in Pharaoh or NAACL format, one sentence for each of the text, of these numbers of words.

    Raises:
        UserError: No such file, what is no link, other sentences than those of the text, or links to words that the
            sentences do not have; the message names file, line and, where another reading fits, its options.
    """
    if not path.is_file():
        raise UserError(f"{path} is missing; expected gold links, a line for each sentence pair")
    text = read_text(path, "convert or replace it", expected="UTF-8: gold links in Pharaoh or NAACL format")
    first_line = text.removeprefix("\ufeff").lstrip().partition("\n")[0]
    naacl = "-" not in first_line and "p" not in first_line
    with user_errors(ValueError):
        written = _naacl(path, len(sizes)) if naacl else _pharaoh(path, len(sizes))
    if not any(links.possible for links in written.values()):
        raise UserError(f"{path} holds no links; expected i-j or ipj (Pharaoh), or lines of sentence, source, target")
    first: GoldIndex = 1 if naacl else 0
    chosen = _Reading(first if index is None else index, order)
    readings = [_Reading(number, side) for side in get_args(GoldOrder) for number in get_args(GoldIndex)]
    fits = {other.options(chosen): other for other in readings if other != chosen and not other.misfit(written, sizes)}
    if misfit := chosen.misfit(written, sizes):
        none = "no --gold-index and --gold-order fit; is it of this text?"
        remedy = f"all links fit with {' or with '.join(fits)}" if fits else none
        raise UserError(f"{path}, {misfit} ({chosen}); {remedy}")
    others = {options: [other.apply(links) for links in written.values()] for options, other in fits.items()}
    return GoldLinks([chosen.apply(links) for links in written.values()], others)


def _pharaoh(path: Path, count: int) -> dict[str, GoldAlignment]:
    """Links by the place of a sentence in the file, as they are written."""
    found = list(read_pharaoh(path).values())
    if len(found) != count:
        raise UserError(f"{path} has {len(found)} sentences, the text {count}; expected as many, a line for each pair")
    return {f"line {number}": links for number, links in enumerate(found, 1)}


def _naacl(path: Path, count: int) -> dict[str, GoldAlignment]:
    found = read_naacl(path, index=0)
    numbers = {name: int(name) for name in found if name.isdecimal()}
    for name in found:
        if not 1 <= numbers.get(name, 0) <= count:
            raise UserError(f"{path} has a sentence {name}; expected numbers from 1 to {count}, the last of the text")
    links = {f"sentence {number}": GoldAlignment(frozenset()) for number in range(1, count + 1)}
    return links | {f"sentence {numbers[name]}": gold for name, gold in found.items()}


def better_reading(links: Sequence[Alignment], gold: GoldLinks) -> str | None:
    """A warning where predicted links agree much better with the gold links read in another way that fits too."""
    chosen = alignment_error_rate(links, gold.links)
    others = {options: alignment_error_rate(links, other).aer for options, other in gold.others.items()}
    if not others:
        return None
    options = min(others, key=others.__getitem__)
    # Few links agree by chance; the rates of n of them differ by little more than 2 / sqrt(n).
    margin = max(0.1, 2 / max(chosen.num_predicted + chosen.num_sure, 1) ** 0.5)
    if others[options] > chosen.aer - margin:
        return None
    rates = f"the AER would be {100 * others[options]:.1f} % instead of {100 * chosen.aer:.1f} %"
    return f"with {options} {rates}; look how the gold file counts words and which side stands on the left"
