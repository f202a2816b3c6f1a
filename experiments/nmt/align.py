"""Align a file: links by posterior or prior, of one direction or of both, against gold links, as table and pictures."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from experiments.datasets.text.parallel_text import ParallelText
from experiments.datasets.text.word_rules import WordRule
from experiments.files import UserError, user_errors
from experiments.nmt.alignments import PairAlignment, aligned_pairs, combine_pairs, link_both
from experiments.nmt.config import AlignConfig, ProbabilityCombineName
from experiments.nmt.data import read_gold, read_pairs
from experiments.nmt.evaluation import perplexity
from experiments.nmt.figures import MOST_PAIRS, alignment_views, pair_figure, write_page
from experiments.nmt.model import Trained, load_trained
from experiments.report.figures import save
from experiments.sequence.own_text import refuse_to_replace, write_lines
from pyro_attention.analysis import Alignment, alignment_error_rate, hard_alignment
from pyro_attention.analysis.inputs import equal_tailed
from pyro_attention.families.alignment import CategoricalAlignment

COLUMNS = ("line", "source", "target", "source_word", "target_word", "prior", "posterior", "low", "high", "link")
_LEAST = 0.01  # links whose prior and posterior are below it are left out
_SAMPLES = 100


def align_file(config: AlignConfig) -> Path:
    """Write the alignments and the pictures, print where they are and, against gold links, the error rate."""
    if config.method == "argmax" and config.combines:
        raise UserError(f"--symmetrise {config.symmetrise} combines probabilities; expected --method mbr or threshold")
    trained = load_trained(config.run, device=config.device)
    reverse = None if config.reverse is None else _other(config.reverse, config, trained, turned=True)
    others = [_other(folder, config, trained) for folder in config.compare]
    # gold links count the words between blanks
    words: WordRule | None = None if config.gold is None else "none"
    text = read_pairs(config.source, config.target, trained.config, max_words=config.max_words, words=words)
    gold = None if config.gold is None else read_gold(config.gold, text, config)
    out = config.out or Path("alignments")
    links_file, table, page = (out / name for name in ("alignments.txt", "probabilities.tsv", "alignments.html"))
    pictures = [out / f"pair-{number + 1}.png" for number in range(min(config.pictures, len(text)))]
    sides = dict[Path, list[str]]()  # the words that links count, where these are others than those between blanks
    if gold is None and trained.config.words != "none":
        sides = {out / f"words.{text.languages[0]}": text.source, out / f"words.{text.languages[1]}": text.target}
    with_page = config.html or bool(others)
    asked = [table] * config.table + [page] * with_page
    refuse_to_replace([links_file, *sides, *pictures, *asked], overwrite=config.overwrite)
    _warn_of_order(config, trained, text.first(100))
    shown = pairs = _pairs(config, trained, text)
    if reverse is None:
        links = [_links(config, pair) for pair in pairs]
    else:
        both = list(zip(pairs, _pairs(config, reverse, text.turned()), strict=True))
        links = [_links(config, *pair) for pair in both]
        # the product if links are chosen by it, else what is calibrated best, by the results page
        combine: ProbabilityCombineName = "product" if config.symmetrise == "product" else "mean"
        shown = [combine_pairs(*pair, combine=combine) for pair in both]
    write_lines(links_file, links)
    for path, sentences in sides.items():
        write_lines(path, sentences)
    print(f"{len(links)} sentence pairs: {links_file}", *sides, sep="\n")
    if config.table:
        write_lines(table, table_lines(shown, links))
        print(table)
    if gold is not None:
        scores = alignment_error_rate(links, gold)
        rates = {"AER": scores.aer, "precision": scores.precision, "recall": scores.recall}
        print(", ".join(f"{name} {100 * rate:.1f} %" for name, rate in rates.items()))
    for place, picture in enumerate(pictures):
        truth = None if gold is None else gold[place]
        print(save(pair_figure(pairs[place], gold=truth, title=picture.stem, languages=text.languages), picture))
    if with_page:
        some = text.first(MOST_PAIRS)
        if len(some) < len(text):
            print(f"{page.name} has the first {len(some)} of {len(text)} pairs")
        schemes = {_name(trained): pairs[: len(some)]}
        schemes |= {_name(other): aligned_pairs(other, some, num_samples=_SAMPLES) for other in others}
        views = alignment_views(schemes, languages=text.languages, gold=gold)
        print(write_page(page, views, title=f"{config.source.name} and {config.target.name}, aligned"))
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


def _name(trained: Trained) -> str:
    return f"{trained.config.guide} ({trained.config.out})"


def _other(folder: Path, config: AlignConfig, trained: Trained, *, turned: bool = False) -> Trained:
    """Another network, which must read text as the first one does, and have the same languages or swapped ones."""
    other = load_trained(folder, device=config.device)
    ours, theirs = (
        {"from": one.source, "to": one.target, "tokenize": one.words, "lowercase": one.lowercase}
        for one in (trained.config, other.config)
    )
    if turned:
        ours |= {"from": ours["to"], "to": ours["from"]}
    if theirs != ours:
        seen, expected = (", ".join(f"{name} {value}" for name, value in one.items()) for one in (theirs, ours))
        raise UserError(f"{folder} was trained {seen}; expected {expected}, to go with {config.run}")
    return other


def _warn_of_order(config: AlignConfig, trained: Trained, text: ParallelText) -> None:
    """Warn where the network predicts the pairs far better when source and target change places."""
    if perplexity(trained, text) > 2 * perplexity(trained, text.turned()):
        print(
            f"warning: the network reads {trained.config.source} and writes {trained.config.target}, and predicts far "
            f"better when {config.source} and {config.target} change places; were they given the wrong way round?",
            file=sys.stderr,
        )


def _pairs(config: AlignConfig, trained: Trained, text: ParallelText) -> list[PairAlignment]:
    """Alignments of the text, with the exact posterior in place of an inference network's where that is asked for."""
    exact = config.weights == "exact"
    if exact and trained.family.kind != CategoricalAlignment.kind:
        raise UserError(
            f"--weights exact: {trained.config.out} was trained with guide {trained.config.guide}, whose weights "
            f"cannot be summed out; expected --weights posterior"
        )
    found = aligned_pairs(trained, text, num_samples=_SAMPLES, exact=exact, progress=True)
    return [pair if pair.exact is None else replace(pair, posterior=pair.exact.unsqueeze(0)) for pair in found]


def _links(config: AlignConfig, forward: PairAlignment, backward: PairAlignment | None = None) -> Alignment:
    pairs = [forward] if backward is None else [forward, backward]
    weights = [pair.prior if config.weights == "prior" else pair.posterior.mean(0) for pair in pairs]
    given = [one for one in weights if one is not None]
    if len(given) < len(pairs):
        raise UserError("soft attention and fixed priors know no words; expected --weights posterior")
    with user_errors(ValueError):
        if len(given) == 1:
            return hard_alignment(given[0], method=config.linking, threshold=config.threshold)
        return link_both(*given, combine=config.symmetrise, method=config.linking, threshold=config.threshold)
