"""Everything that ``pyro-align`` writes of the pairs that it aligns, pair by pair, so that few are in memory."""

from __future__ import annotations

import argparse
import heapq
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, TextIO

import torch

from pyro_attention.aligner._options import SHOWN
from pyro_attention.aligner.aligner import AlignedPair
from pyro_attention.aligner.output import (
    SCORES,
    STANDARD,
    TABLE,
    Lexicon,
    Links,
    link_line,
    pair_links,
    pair_record,
    score_line,
    table_lines,
    write_spooled,
)
from pyro_attention.viewer import AlignmentView, write_viewer

__all__ = ["write_outputs"]

_IN_MEMORY = 32 * 2**20  # bytes of an output beyond which it waits on disk


def write_outputs(options: argparse.Namespace, pairs: Iterable[tuple[AlignedPair, Sequence[Sequence[str]]]]) -> None:
    """Write links, tables, scores and a page; files appear when all pairs are there.

    Args:
        options: Of the command line.
        pairs: Every pair with its words as they are compared, of the source and of the target.
    """
    least = 0.0
    if options.coverage < 1:  # the surest words are known when all are
        pairs = list(pairs)
        least = _least_certainty([pair for pair, _ in pairs], options.coverage)
    with ExitStack() as stack:
        names = ("out", "tsv", "scores", "lexicon")
        spools: dict[str, IO[bytes]] = {
            name: stack.enter_context(SpooledTemporaryFile(_IN_MEMORY))
            for name in names
            if getattr(options, name) is not None
        }

        def write(name: str, *lines: str) -> None:
            if name in spools:
                spools[name].write("".join(f"{line}\n" for line in lines).encode())

        write("tsv", TABLE)
        write("scores", SCORES)
        lexicon, summary, shown = Lexicon(), _Summary(options.most_uncertain), dict[int, AlignedPair]()
        for number, (pair, compared) in enumerate(pairs, 1):
            links = _chosen(pair, options, least)
            if options.jsonl:
                write("out", pair_record(pair, links))
            else:
                write("out", link_line(pair, links, probabilities=options.probabilities, words=options.words))
            if "tsv" in spools:
                write("tsv", *table_lines(number, pair, links))
            if "scores" in spools:
                write("scores", score_line(pair))
            if "lexicon" in spools:
                lexicon.add(pair, compared)
            if options.html is not None and len(shown) < SHOWN and pair.links.numel():
                shown[number] = pair
            summary.add(number, pair, links)
        for line in lexicon.lines() if "lexicon" in spools else ():
            write("lexicon", line)
        for name, spool in spools.items():
            write_spooled(getattr(options, name), spool)
    if options.html is not None and shown:
        _write_page(options.html, shown)
    elif options.html is not None:
        print(f"pyro-align: no pair has words on both sides, so {options.html} is not written", file=sys.stderr)
    to = sys.stderr if STANDARD in (options.out, options.tsv, options.scores, options.lexicon) else sys.stdout
    for line in summary.lines(options.out):
        print(_printable(line, to), file=to)


def _printable(text: str, file: TextIO) -> str:
    """Return a text whose characters a terminal or a file has, with the codes of others: not all are in UTF-8."""
    encoding = file.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _least_certainty(pairs: Sequence[AlignedPair], coverage: float) -> float:
    certainty = torch.cat([pair.certainty for pair in pairs]) if pairs else torch.zeros(0)
    if not len(certainty):
        return 0.0
    return certainty.sort(descending=True).values[max(0, round(coverage * len(certainty)) - 1)].item()


def _chosen(pair: AlignedPair, options: argparse.Namespace, least: float) -> Links:
    """Return the links to write and their probabilities."""
    links = pair_links(pair, direction=options.direction, method=options.symmetrize, balance=options.balance)
    if least:
        sure = pair.certainty.ge(least).tolist()
        links = {link: p for link, p in links.items() if sure[link[1]]}
    if options.min_probability:
        links = {link: p for link, p in links.items() if p >= options.min_probability}
    return links


def _write_page(path: Path, pairs: Mapping[int, AlignedPair]) -> None:
    """Write a page of pairs by their numbers in the text, as in all other outputs."""
    views = [
        AlignmentView(title=str(number), source=pair.source, target=pair.target, posterior=pair.links, kind="links")
        for number, pair in pairs.items()
    ]
    write_viewer(path, views, title=f"Probabilities of links: {path.stem}")


class _Summary:
    """Summary for the terminal, with the pairs whose words are least certain on average."""

    def __init__(self, most_uncertain: int) -> None:
        self._count = most_uncertain
        self._uncertain: list[tuple[float, int, str]] = []  # a heap, of the least certain pairs
        self._pairs = self._links = 0
        self._right = 0.0

    def add(self, number: int, pair: AlignedPair, links: Links) -> None:
        """Count a pair."""
        self._pairs += 1
        self._links += len(links)
        self._right += sum(links.values())
        if self._count and pair.links.numel():
            certainty = pair.certainty.mean().item()
            text = " ||| ".join(map(" ".join, (pair.source, pair.target)))
            heapq.heappush(self._uncertain, (-certainty, -number, text))
            if len(self._uncertain) > self._count:
                heapq.heappop(self._uncertain)

    def lines(self, path: Path) -> Iterator[str]:
        """Yield the least certain pairs, and the numbers of links and pairs."""
        for certainty, number, text in sorted(self._uncertain, reverse=True):
            yield f"line {-number}, mean probability of the best links {-certainty:.2f}: {text}"
        mean = self._right / max(1, self._links)
        yield f"{path}: {self._links} links of {self._pairs} pairs, {mean:.0%} of which are expected to be right"
