"""Align a file: links by posterior or prior, of one direction or of both, against gold links, as table and pictures."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from experiments.datasets.text.parallel_text import ParallelText
from experiments.files import UserError, user_errors
from experiments.nmt.alignments import PairAlignment, aligned_pairs, combine_pairs, link_both
from experiments.nmt.config import AlignConfig, ProbabilityCombineName
from experiments.nmt.evaluation import perplexity
from experiments.nmt.figures import MOST_PAIRS, alignment_views, pair_figure, write_page
from experiments.nmt.gold import better_reading, read_gold
from experiments.nmt.input import check_divided, read_pairs
from experiments.nmt.model import Trained, load_trained
from experiments.report.figures import save
from experiments.sequence.own_text import refuse_to_replace, write_lines
from pyro_attention.analysis import Alignment, GoldAlignment, alignment_error_rate, hard_alignment
from pyro_attention.analysis.inputs import equal_tailed
from pyro_attention.families.alignment import CategoricalAlignment

__all__ = ["COLUMNS", "align_file", "table_lines"]


COLUMNS = ("line", "source", "target", "source_word", "target_word", "prior", "posterior", "low", "high", "link")
_LEAST = 0.01  # links whose prior and posterior are below it are left out


def align_file(config: AlignConfig) -> Path:
    """Write the alignments and the pictures, print where they are and, against gold links, the error rate."""
    if config.method == "argmax" and config.combines:
        raise UserError(f"--symmetrise {config.symmetrise} combines probabilities; expected --method mbr or threshold")
    if config.compare and not config.html:
        raise UserError("--compare is about the page of --html; pass both, or neither")
    trained = load_trained(config.run, device=config.device)
    networks = _compared(config, trained)
    reverse = None if config.reverse is None else _load_reverse(config, trained)
    _check_weights(config, trained, reverse)
    text = _read(config, trained, (config.source, config.target))
    check_divided(text, (config.source, config.target))
    _warn_of_order(config, trained, text.first(100))
    turned = None if reverse is None else _read(config, reverse, (config.target, config.source))
    count = min(config.pictures, len(text))
    pictures = [config.out / f"pair-{number}.png" for number in range(1, count + 1)]
    # the words that links count, where these are others than those between blanks
    words: dict[Path, list[str]] = {}
    if config.gold is None and trained.config.words != "none":
        sides = zip(text.languages, (text.source, text.target), strict=True)
        words = {config.out / f"words.{language}": side for language, side in sides}
    path, table, page = (config.out / name for name in ("alignments.txt", "probabilities.tsv", "alignments.html"))
    files = [path, *words, *pictures, *([table] if config.table else []), *([page] if config.html else [])]
    refuse_to_replace(files, overwrite=config.overwrite)
    gold = None
    if config.gold is not None:
        pairs_of_lines = zip(text.source, text.target, strict=True)
        sizes = [(len(source.split()), len(target.split())) for source, target in pairs_of_lines]
        gold = read_gold(config.gold, sizes, index=config.gold_index, order=config.gold_order)
    pairs = _pairs(config, trained, text)
    shown = pairs
    if reverse is not None and turned is not None:
        both = list(zip(pairs, _pairs(config, reverse, turned), strict=True))
        links = [_links_of_both(*pair, config) for pair in both]
        shown = [combine_pairs(*pair, combine=_probabilities(config)) for pair in both]
    else:
        links = [_links(pair, config) for pair in pairs]
    write_lines(path, links)
    for file, sentences in words.items():
        write_lines(file, sentences)
    print(f"{len(links)} sentence pairs: {path}", *words, sep="\n")
    if config.table:
        write_lines(table, table_lines(shown, links))
        print(table)
    if gold is not None:
        scores = alignment_error_rate(links, gold.links)
        rates = {"AER": scores.aer, "precision": scores.precision, "recall": scores.recall}
        print(", ".join(f"{name} {100 * rate:.1f} %" for name, rate in rates.items()))
        if (warning := better_reading(links, gold)) is not None:
            print(f"warning: {config.gold}: {warning}", file=sys.stderr)
    known = None if gold is None else gold.links
    for place, picture in enumerate(pictures):
        chosen = None if known is None else known[place]
        print(save(pair_figure(pairs[place], gold=chosen, title=picture.stem, languages=text.languages), picture))
    if config.html:
        _write_html(page, config, networks, text, pairs, known)
    return path


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


def _write_html(
    path: Path,
    config: AlignConfig,
    networks: dict[str, Trained],
    text: ParallelText,
    pairs: list[PairAlignment],
    gold: list[GoldAlignment] | None,
) -> None:
    """The page of the first pairs, of which the first network's alignments are there already."""
    shown = text.first(MOST_PAIRS)
    if len(shown) < len(text):
        print(f"{path.name} has the first {len(shown)} of {len(text)} pairs")
    first, *others = networks
    schemes = {first: pairs[: len(shown)]}
    schemes |= {name: aligned_pairs(networks[name], shown, num_samples=config.num_samples) for name in others}
    views = alignment_views(schemes, languages=text.languages, gold=gold)
    print(write_page(path, views, title=f"{config.source.name} and {config.target.name}, aligned"))


def _read(config: AlignConfig, trained: Trained, files: tuple[Path, Path]) -> ParallelText:
    # gold links count the words between blanks
    return read_pairs(files, trained.config, max_words=config.max_words, words=None if config.gold is None else "none")


def _load_reverse(config: AlignConfig, trained: Trained) -> Trained:
    """The network of the other direction, which must be one, and divide text into words in the same way."""
    other = load_trained(Path(str(config.reverse)), device=config.device)
    ours, theirs = trained.config, other.config
    if (theirs.source, theirs.target) != (ours.target, ours.source):
        raise UserError(
            f"--reverse {config.reverse} translates from {theirs.source} to {theirs.target}; expected a network from "
            f"{ours.target} to {ours.source}, the other direction of {config.run}"
        )
    if config.gold is None and ours.words != theirs.words:
        raise UserError(
            f"--reverse {config.reverse} was trained with --tokenize {theirs.words}, {config.run} with --tokenize "
            f"{ours.words}; expected the same, as links count words"
        )
    return other


def _warn_of_order(config: AlignConfig, trained: Trained, text: ParallelText) -> None:
    """Warn where the network predicts the pairs far better when source and target change places.

    Word pieces are shared by both languages, so that no word is unknown by itself.
    """
    turned = replace(text, source=text.target, target=text.source)
    given, exchanged = perplexity(trained, text), perplexity(trained, turned)
    if given > 2 * exchanged:
        print(
            f"warning: the network reads {trained.config.source} and writes {trained.config.target}; most words of "
            f"{config.source} and {config.target} are unknown to it there (perplexity {given:.0f}), and known when the "
            f"files change places ({exchanged:.0f}): were they given the wrong way round?",
            file=sys.stderr,
        )


def _check_weights(config: AlignConfig, *networks: Trained | None) -> None:
    for folder, trained in zip((config.run, config.reverse), networks, strict=True):
        if config.weights == "exact" and trained is not None and trained.family.kind != CategoricalAlignment.kind:
            raise UserError(
                f"--weights exact: {folder} was trained with guide {trained.config.guide}, whose weights cannot be "
                f"summed out; expected --weights posterior, or a network of marginal, hard or categorical alignments"
            )


def _compared(config: AlignConfig, trained: Trained) -> dict[str, Trained]:
    """The network and those to compare it with, by their guide, and their folder where two have the same one."""
    found = [trained, *(load_trained(folder, device=config.device) for folder in config.compare)]
    folders = [config.run, *config.compare]
    for folder, other in zip(folders, found, strict=True):
        for name, option in (("source", "source"), ("target", "target"), ("words", "tokenize"), ("lowercase",) * 2):
            ours, theirs = getattr(trained.config, name), getattr(other.config, name)
            if ours != theirs:
                raise UserError(
                    f"--compare {folder} was trained with {option} {theirs}, {config.run} with {ours}; expected the "
                    f"same, as both are to align the same words"
                )
    guides: list[str] = [one.config.guide for one in found]
    names = [
        guide if guides.count(guide) == 1 else f"{guide} ({folder.name})"
        for guide, folder in zip(guides, folders, strict=True)
    ]
    if len(set(names)) < len(names):
        raise UserError(f"the networks to compare would be called {names}; give their folders names of their own")
    return dict(zip(names, found, strict=True))


def _pairs(config: AlignConfig, trained: Trained, text: ParallelText) -> list[PairAlignment]:
    """Alignments of the text, with the exact posterior in place of an inference network's where that is asked for."""
    exact = config.weights == "exact"
    found = aligned_pairs(trained, text, num_samples=config.num_samples, exact=exact, progress=True)
    return [pair if pair.exact is None else replace(pair, posterior=pair.exact.unsqueeze(0)) for pair in found]


def _probabilities(config: AlignConfig) -> ProbabilityCombineName:
    """How the probabilities of both directions are shown: their product if links are chosen by it, else the mean.

    The mean is what is calibrated best, by the results page.
    """
    return "product" if config.symmetrise == "product" else "mean"


def _weights(pair: PairAlignment, config: AlignConfig, run: Path | None) -> Tensor:
    """The weights ``[M, N]`` by which links are chosen."""
    if config.weights != "prior":
        return pair.posterior.mean(0)
    if pair.prior is None:
        raise UserError(f"{run} is soft or has a fixed prior, which knows no words; expected --weights posterior")
    return pair.prior


def _links(pair: PairAlignment, config: AlignConfig) -> Alignment:
    with user_errors(ValueError):
        return hard_alignment(_weights(pair, config, config.run), method=config.linking, threshold=config.threshold)


def _links_of_both(forward: PairAlignment, backward: PairAlignment, config: AlignConfig) -> Alignment:
    weights = _weights(forward, config, config.run), _weights(backward, config, config.reverse)
    with user_errors(ValueError):
        return link_both(*weights, combine=config.symmetrise, method=config.linking, threshold=config.threshold)
