"""Align a file: links by the posterior, of one direction or of both, against gold links, as table and page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from experiments.datasets.text.parallel_text import ParallelText
from experiments.files import UserError
from experiments.nmt.alignments import PairAlignment, aligned_pairs, combine_pairs, hard_links, link_both
from experiments.nmt.config import AlignConfig, ProbabilityCombineName
from experiments.nmt.data import read_gold, read_pairs
from experiments.nmt.model import Trained, load_trained
from experiments.nmt.views import SAMPLES, alignment_views, write_alignments
from experiments.sequence.own_text import refuse_to_replace, write_lines
from pyro_attention.analysis import Alignment, alignment_error_rate
from pyro_attention.analysis.inputs import equal_tailed
from pyro_attention.families.alignment import CategoricalAlignment
from pyro_attention.families.distribution import LogWeights

COLUMNS = ("line", "source", "target", "source_word", "target_word", "prior", "posterior", "low", "high", "link")
_LEAST = 0.01  # links whose prior and posterior are below it are left out
_MOST_PAIRS = 200  # on the page


def align_file(config: AlignConfig) -> Path:
    """Write the alignments and the page, print where they are and, against gold links, the error rate."""
    trained = load_trained(config.run, device=config.device)
    # gold links count the words between blanks
    words = trained.config.words if config.gold is None else "none"
    text = read_pairs(config.source_file, config.target_file, trained.config, max_words=config.max_words, words=words)
    gold = None if config.gold is None else read_gold(config.gold, text, config)
    out = config.out or Path("alignments")
    links_file, table, page = (out / name for name in ("alignments.txt", "probabilities.tsv", "alignments.html"))
    sides = dict[Path, list[str]]()  # the words that links count, where these are others than those between blanks
    if words != "none":
        sides = {out / f"words.{text.languages[0]}": text.source, out / f"words.{text.languages[1]}": text.target}
    refuse_to_replace([links_file, page, *sides, *[table] * config.table], overwrite=config.overwrite)
    pairs = _pairs(config, trained, text)
    if config.reverse is None:
        links = [hard_links(pair.posterior.mean(0), config.threshold) for pair in pairs]
    else:
        others = _pairs(config, _turned(config, trained), text.turned())
        both = [(one.posterior.mean(0), other.posterior.mean(0)) for one, other in zip(pairs, others, strict=True)]
        links = [link_both(*pair, combine=config.symmetrize, threshold=config.threshold) for pair in both]
        # the product if links are chosen by it, else what is calibrated best, by the results page
        combine: ProbabilityCombineName = "product" if config.symmetrize == "product" else "mean"
        pairs = [combine_pairs(one, other, combine=combine) for one, other in zip(pairs, others, strict=True)]
    write_lines(links_file, links)
    for path, sentences in sides.items():
        write_lines(path, sentences)
    some = text.first(_MOST_PAIRS)
    views = alignment_views({trained.config.guide: pairs[: len(some)]}, some, gold)
    write_alignments(page, views, title=f"{config.source_file.name} and {config.target_file.name}, aligned")
    print(f"{len(links)} sentence pairs: {links_file}", *sides, f"the first {len(some)}: {page}", sep="\n")
    if config.table:
        write_lines(table, table_lines(pairs, links))
        print(table)
    if gold is not None:
        scores = alignment_error_rate(links, gold)
        rates = {"AER": scores.aer, "precision": scores.precision, "recall": scores.recall}
        print(", ".join(f"{name} {100 * rate:.1f} %" for name, rate in rates.items()))
    return links_file


def table_lines(pairs: Sequence[PairAlignment], links: Sequence[Alignment], *, level: float = 0.9) -> Iterator[str]:
    """Lines of the table, its header first, with tabs between the columns; lines count from 1 and words from 0.

    A prior that there is none of is an empty cell, and so are the ends of an interval where the posterior is exact. The
    last column is 1 for links that were chosen, else 0.
    """
    yield "\t".join(COLUMNS)
    for number, (pair, chosen) in enumerate(zip(pairs, links, strict=True), 1):
        mean = pair.posterior.mean(0)
        ends: list[Tensor | None] = [None, None]
        if len(pair.posterior) > 1:
            ends = list(equal_tailed(pair.posterior, level)[1:])
        likely = (mean if pair.prior is None else mean.maximum(pair.prior)) >= _LEAST
        for target, source in (likely.cpu() | chosen.to_matrix()).nonzero().tolist():
            cells = ["" if part is None else f"{part[target, source]:.4f}" for part in (pair.prior, mean, *ends)]
            place = [str(number), str(source), str(target), pair.source[source], pair.target[target]]
            yield "\t".join([*place, *cells, str(int((source, target) in chosen.links))])


def _turned(config: AlignConfig, trained: Trained) -> Trained:
    """The network of the other direction, which must read text as this one does."""
    other = load_trained(Path(str(config.reverse)), device=config.device)
    ours, theirs = trained.config, other.config
    seen = {"from": theirs.source, "to": theirs.target, "tokenize": theirs.words, "lowercase": theirs.lowercase}
    wanted = {"from": ours.target, "to": ours.source, "tokenize": ours.words, "lowercase": ours.lowercase}
    if seen != wanted:
        found, expected = (", ".join(f"{name} {value}" for name, value in one.items()) for one in (seen, wanted))
        raise UserError(f"{config.reverse} was trained {found}; expected {expected}, to go with {config.run}")
    return other


def _pairs(config: AlignConfig, trained: Trained, text: ParallelText) -> list[PairAlignment]:
    """Alignments of the text, with the posterior of z in place of another where that is asked for."""
    if config.exact and trained.model.attention.prior.kind not in (CategoricalAlignment.kind, LogWeights.kind):
        raise UserError(
            f"{trained.config.out} was trained with guide {trained.config.guide}, whose weights cannot be summed out; "
            f"leave out --exact"
        )
    found = aligned_pairs(trained, text, num_samples=SAMPLES, exact=config.exact, progress=True)
    return [pair if pair.exact is None else replace(pair, posterior=pair.exact.unsqueeze(0)) for pair in found]
