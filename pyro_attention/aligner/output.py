"""Lines of the outputs of an aligner: links, tables of words, scores of pairs."""

from __future__ import annotations

import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from pathlib import Path
from shutil import copyfileobj
from typing import IO

import numpy as np
from torch import Tensor

from pyro_attention.aligner.aligner import AlignedPair
from pyro_attention.analysis.alignments.links import SymmetrizeMethod, symmetrize
from pyro_attention.analysis.alignments.weights import Alignment, hard_alignment
from pyro_attention.atomic_write import write_atomic

__all__ = [
    "SCORES",
    "STANDARD",
    "TABLE",
    "Lexicon",
    "Links",
    "link_line",
    "pair_links",
    "pair_record",
    "score_line",
    "table_lines",
    "write_spooled",
]

Links = Mapping[tuple[int, int], float]  # (source word, target word) and probability
STANDARD = Path("-")
_LEAST = 0.05  # probability of a link that counts for the lexicon
_RARE = 0.1  # expected number of links from which on a pair of words is in the lexicon


def pair_links(
    pair: AlignedPair, *, direction: str | None = None, method: SymmetrizeMethod | None = None, balance: float = 1.0
) -> Links:
    """Return links of a pair and their probabilities.

    Args:
        pair: With the probabilities of each direction where one is asked for.
        direction: "forward" links every target word to its most probable source word, or to none, "backward" every
            source word to its target word; by default both directions choose the links of the largest expected F.
        method: A way to combine the links of both directions, by :func:`pyro_attention.analysis.symmetrize`.
        balance: How many times as much recall counts as precision.
    """
    if not pair.links.numel():
        return {}
    if direction is None and method is None:
        return _largest_f(pair.links, balance)
    forward, backward = _hard(pair)
    probability = pair.links
    if method is not None:
        alignment = symmetrize(forward, backward, method=method)
    else:
        alignment = forward if direction == "forward" else backward
        table = pair.forward if direction == "forward" else pair.backward
        probability = probability if table is None else table
    rows = probability.tolist()
    return {(s, t): rows[t][s] for s, t in sorted(alignment.links)}


def _largest_f(probabilities: Tensor, balance: float) -> Links:
    """Return the links of :func:`pyro_attention.analysis.mbr_alignment`, in a fifth of its time.

    The largest expected F of the links above a threshold is a better threshold, until it is the best one (Dinkelbach
    1967, On Nonlinear Fractional Programming). So nothing is sorted, and only likely links are held in memory.
    """
    table = probabilities.numpy()
    weight = balance**2
    total = weight * table.sum(dtype=np.float64)
    best, likely = 0.0, table.ravel()
    better = table.max() / (1 + total)  # what the most probable link alone would make it
    while better > best:
        best = better
        likely = likely[likely > best]
        better = likely.sum(dtype=np.float64) / (len(likely) + total)
    source, target = (best * (1 + 1e-12) < table.T).nonzero()
    return dict(zip(zip(source.tolist(), target.tolist(), strict=True), table[target, source].tolist(), strict=True))


def _hard(pair: AlignedPair) -> tuple[Alignment, Alignment]:
    if pair.forward is None or pair.backward is None:
        raise ValueError("the pair has no probabilities of each direction; align it with directions=True")
    # sums of probabilities may exceed 1 by rounding, and where a word has several known links
    tables = [table / table.sum(-1, keepdim=True).clamp_min(1) for table in (pair.forward, pair.backward.mT)]
    return hard_alignment(tables[0]), hard_alignment(tables[1]).transposed()


def link_line(pair: AlignedPair, links: Links, *, probabilities: bool, words: bool) -> str:
    """Return the links of a pair as a line: ``i-j``, or ``i-j:p``; with words ``source|target`` in place of numbers."""
    items = []
    for (s, t), probability in links.items():
        item = f"{pair.source[s]}|{pair.target[t]}" if words else f"{s}-{t}"
        items.append(f"{item}:{probability:.3f}" if probabilities else item)
    return " ".join(items)


def pair_record(pair: AlignedPair, links: Links) -> str:
    """Return a pair in JSON: words, links with their probabilities, and scores, null where a side is empty."""
    record = {
        "source": pair.source,
        "target": pair.target,
        "links": [[s, t, round(probability, 4)] for (s, t), probability in links.items()],
        "gain": None if isnan(pair.log_gain) else round(pair.log_gain, 4),
        "log_evidence": None if isnan(pair.log_evidence) else round(pair.log_evidence, 4),
        "linked": None if isnan(pair.log_gain) else round(_linked_share(pair), 4),
    }
    return json.dumps(record, ensure_ascii=False)


TABLE = "pair\tsource\ttarget\tsource_word\ttarget_word\tprobability"  # first line of a table of links
SCORES = "gain\tlog_evidence\tlinked"  # first line of a table of scores


def table_lines(number: int, pair: AlignedPair, links: Links) -> Iterator[str]:
    """Yield the links of a pair of this number with their words and probabilities."""
    for (s, t), p in links.items():
        yield f"{number}\t{s}\t{t}\t{pair.source[s]}\t{pair.target[t]}\t{p:.4f}"


def score_line(pair: AlignedPair) -> str:
    """Return gain and evidence of a pair in nats a word, and the expected share of linked words.

    The gain is what the other sentence adds to the log probability of a word; it is low where the sentences are no
    translations of each other. A pair with an empty side has empty cells.
    """
    if isnan(pair.log_gain):
        return "\t\t"
    return f"{pair.log_gain:.4f}\t{pair.log_evidence:.4f}\t{_linked_share(pair):.4f}"


def _linked_share(pair: AlignedPair) -> float:
    return 1 - (pair.source_null.mean() + pair.target_null.mean()).item() / 2


class Lexicon:
    """Word pairs of a text, with both probabilities of translation and the expected number of links."""

    def __init__(self) -> None:
        self._counts: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._totals: tuple[defaultdict[str, float], defaultdict[str, float]] = defaultdict(float), defaultdict(float)

    def add(self, pair: AlignedPair, compared: Sequence[Sequence[str]]) -> None:
        """Count the links of a pair, whose words are compared as these, of the source and of the target."""
        source, target = compared
        likely = (pair.links > _LEAST).nonzero()
        for (t, s), probability in zip(likely.tolist(), pair.links[likely[:, 0], likely[:, 1]].tolist(), strict=True):
            self._counts[source[s], target[t]] += probability
            self._totals[0][source[s]] += probability
            self._totals[1][target[t]] += probability

    def lines(self) -> Iterator[str]:
        """Yield the table, the most frequent word pairs first."""
        yield "source\ttarget\tp(target | source)\tp(source | target)\tlinks"
        for (s, t), count in sorted(self._counts.items(), key=lambda item: (-item[1], item[0])):
            if count >= _RARE:
                yield f"{s}\t{t}\t{count / self._totals[0][s]:.4f}\t{count / self._totals[1][t]:.4f}\t{count:.2f}"


def write_spooled(path: Path, spool: IO[bytes]) -> None:
    """Write what a temporary file holds, packed where the name ends with .gz, to standard output where it is ``-``."""
    spool.seek(0)
    if path == STANDARD:
        sys.stdout.flush()
        copyfileobj(spool, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    else:
        write_atomic(path, lambda file: _copy(spool, file, packed=path.suffix == ".gz"))


def _copy(spool: IO[bytes], file: IO[bytes], *, packed: bool) -> None:
    if not packed:
        copyfileobj(spool, file)
        return
    with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as archive:
        copyfileobj(spool, archive)
