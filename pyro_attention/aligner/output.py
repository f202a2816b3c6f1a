"""What an aligner writes: links, tables of words, scores of pairs, and where these go."""

from __future__ import annotations

import gzip
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isnan
from pathlib import Path

from pyro_attention.aligner.aligner import AlignedPair
from pyro_attention.analysis.alignments.links import SymmetrizeMethod, symmetrize
from pyro_attention.analysis.alignments.weights import Alignment, hard_alignment
from pyro_attention.atomic_write import write_atomic

__all__ = ["Links", "lexicon_lines", "link_line", "pair_links", "score_lines", "table_lines", "write_lines"]

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
    probability = pair.links
    if direction is None and method is None:
        found = pair.linked(balance)
    else:
        forward, backward = _hard(pair)
        if method is not None:
            found = symmetrize(forward, backward, method=method)
        else:
            found = forward if direction == "forward" else backward
            table = pair.forward if direction == "forward" else pair.backward
            probability = probability if table is None else table
    rows = probability.tolist()
    return {(s, t): rows[t][s] for s, t in sorted(found.links)}


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


def table_lines(pairs: Sequence[AlignedPair], links: Sequence[Links]) -> Iterator[str]:
    """Yield a table of links with their words and probabilities."""
    yield "pair\tsource\ttarget\tsource_word\ttarget_word\tprobability"
    for number, (pair, found) in enumerate(zip(pairs, links, strict=True), 1):
        for (s, t), p in found.items():
            yield f"{number}\t{s}\t{t}\t{pair.source[s]}\t{pair.target[t]}\t{p:.4f}"


def score_lines(pairs: Iterable[AlignedPair]) -> Iterator[str]:
    """Yield a table with a line a pair: gain and evidence in nats a word, and the expected share of linked words.

    The gain is what the other sentence adds to the log probability of a word; it is low where the sentences are no
    translations of each other. Pairs with an empty side have empty cells.
    """
    yield "gain\tlog_evidence\tlinked"
    for pair in pairs:
        if isnan(pair.log_gain):
            yield "\t\t"
        else:
            linked = 1 - (pair.source_null.mean() + pair.target_null.mean()).item() / 2
            yield f"{pair.log_gain:.4f}\t{pair.log_evidence:.4f}\t{linked:.4f}"


def lexicon_lines(pairs: Sequence[AlignedPair], compared: Sequence[Sequence[Sequence[str]]]) -> Iterator[str]:
    """Yield a table of word pairs: both probabilities of translation and the expected number of links in the text.

    Args:
        pairs: Aligned sentences.
        compared: Their words as they are compared, of the source and of the target.
    """
    counts: defaultdict[tuple[str, str], float] = defaultdict(float)
    totals: tuple[defaultdict[str, float], defaultdict[str, float]] = (defaultdict(float), defaultdict(float))
    for pair, source, target in zip(pairs, *compared, strict=True):
        places = (pair.links > _LEAST).nonzero()
        for (t, s), probability in zip(places.tolist(), pair.links[places[:, 0], places[:, 1]].tolist(), strict=True):
            counts[source[s], target[t]] += probability
            totals[0][source[s]] += probability
            totals[1][target[t]] += probability
    yield "source\ttarget\tp(target | source)\tp(source | target)\tlinks"
    for (s, t), count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if count >= _RARE:
            yield f"{s}\t{t}\t{count / totals[0][s]:.4f}\t{count / totals[1][t]:.4f}\t{count:.2f}"


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines in UTF-8, packed where the name ends with .gz, to standard output where it is ``-``."""
    content = "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogatepass")
    if path == STANDARD:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    if path.suffix == ".gz":
        content = gzip.compress(content, mtime=0)
    write_atomic(path, lambda file: file.write(content))
