"""``pyro-align A B --out links.txt``: align the words of two files, and say how probable every link is."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from pyro_attention.aligner._member import member_count
from pyro_attention.aligner._options import SHOWN, check_options, keeps_aligner, make_parser
from pyro_attention.aligner._reading import (
    STANDARD,
    SentencePairs,
    check_languages,
    read_anchors,
    read_dictionary,
    read_pairs,
)
from pyro_attention.aligner.aligner import AlignedPair, Aligner, cross_fit
from pyro_attention.aligner.output import (
    Links,
    lexicon_lines,
    link_line,
    pair_links,
    score_lines,
    table_lines,
    write_lines,
)
from pyro_attention.aligner.text import Preparation
from pyro_attention.viewer import AlignmentView, write_viewer

__all__ = ["main"]

_LEAD = (
    "Point at a word, or move to it with the Tab and arrow keys: the stronger the color of a word of the other "
    "language, the more probable is it that one translates the other."
)
_SECONDS = 1.5e-6  # of a possible link, to train on it, on one core


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    options = make_parser().parse_args(arguments)
    torch.set_num_threads(1)  # the sums are small, and more threads would wait for each other
    try:
        _run(options)
    except (ImportError, OSError, ValueError) as error:
        sys.exit(f"pyro-align: {error}")
    except KeyboardInterrupt:
        sys.exit("pyro-align: stopped")


def _run(options: argparse.Namespace) -> None:
    check_options(options)
    aligner = Aligner.load(options.model) if keeps_aligner(options) else None
    preparation = _preparation(options, aligner)
    text = read_pairs(options.source, options.target, preparation, documents=options.documents)
    anchors = None if options.anchors is None else read_anchors(options.anchors, text)
    training = read_pairs(options.train[0], options.train[1], preparation) if options.train else text
    known = None if options.dictionary is None else read_dictionary(options.dictionary, preparation, training)
    if options.cross_fit is not None:
        _tell(training, options.cross_fit)
        pairs = cross_fit(
            *text.compared, parts=options.cross_fit, known=known, encoder=options.encoder, progress=True
        )  # fmt: skip
    else:
        if aligner is None:
            aligner = _trained(options, training, preparation, known)
        check_languages(aligner, text)
        pairs = aligner(
            *text.compared, anchors=anchors, encoder=options.encoder, strings=not options.no_strings,
            directions=bool(options.direction or options.symmetrize), progress=True,
        )  # fmt: skip
    written = zip(pairs, *text.written, strict=True)
    _write(options, text, [replace(pair, source=source, target=target) for pair, source, target in written])


def _preparation(options: argparse.Namespace, aligner: Aligner | None) -> Preparation:
    """How the text is prepared: as the options say, or as that of an aligner which is there."""
    preparation = Preparation(options.tokenize, options.keep_case, options.subwords)
    if aligner is not None:
        settings = aligner.settings
        kept = Preparation(
            bool(settings.get("tokenize")), bool(settings.get("keep_case")), settings.get("subwords") or None
        )  # fmt: skip
        if preparation not in (kept, Preparation()):
            raise ValueError(
                f"the aligner in {options.model} was trained on text prepared by {kept.settings}, and the options ask "
                f"for {preparation.settings}; leave them out, or take another --model"
            )
        preparation = kept
    preparation.check()
    return preparation


def _trained(
    options: argparse.Namespace,
    text: SentencePairs,
    preparation: Preparation,
    known: Mapping[tuple[str, str], float] | None,
) -> Aligner:
    parts = member_count(len(text)) if options.parts is None else options.parts
    _tell(text, parts - 1 if parts > 1 else 1)
    aligner = Aligner.fit(*text.compared, known=known, parts=parts, progress=True)
    aligner.settings = preparation.settings
    if options.model is not None:
        aligner.save(options.model)
        print(f"the aligner is kept in {options.model}", file=sys.stderr)
    return aligner


def _tell(text: SentencePairs, times: int) -> None:
    links = sum(len(s) * len(t) for s, t in zip(*text.compared, strict=True))
    seconds = max(1, round(links * times * _SECONDS))
    print(f"training both directions on {len(text)} pairs, about {seconds} seconds", file=sys.stderr)


def _write(options: argparse.Namespace, text: SentencePairs, pairs: list[AlignedPair]) -> None:
    chosen = _chosen(pairs, options)
    lines = (
        link_line(pair, links, probabilities=options.probabilities, words=options.words)
        for pair, links in zip(pairs, chosen, strict=True)
    )
    write_lines(options.out, lines)
    if options.tsv is not None:
        write_lines(options.tsv, table_lines(pairs, chosen))
    if options.scores is not None:
        write_lines(options.scores, score_lines(pairs))
    if options.lexicon is not None:
        write_lines(options.lexicon, lexicon_lines(pairs, text.compared))
    if options.html is not None:
        _page(options.html, pairs)
    to = sys.stderr if STANDARD in (options.out, options.tsv, options.scores, options.lexicon) else sys.stdout
    for line in _doubtful(pairs, options.most_uncertain):
        print(line, file=to)
    count = sum(map(len, chosen))
    mean = sum(sum(links.values()) for links in chosen) / max(1, count)
    print(f"{options.out}: {count} links of {len(pairs)} pairs, {mean:.0%} of which are expected to be right", file=to)


def _chosen(pairs: list[AlignedPair], options: argparse.Namespace) -> list[Links]:
    """Links to write and their probabilities."""
    certainty = torch.cat([pair.certainty for pair in pairs]) if pairs else torch.zeros(0)
    least = 0.0
    if options.coverage < 1 and len(certainty):
        least = certainty.sort(descending=True).values[max(0, round(options.coverage * len(certainty)) - 1)].item()
    found: list[Links] = []
    for pair in pairs:
        links = pair_links(pair, direction=options.direction, method=options.symmetrize, balance=options.balance)
        sure = pair.certainty.ge(least).tolist()
        found.append({link: p for link, p in links.items() if p >= options.min_probability and sure[link[1]]})
    return found


def _page(path: Path, pairs: list[AlignedPair]) -> None:
    shown = [pair for pair in pairs if pair.links.numel()][:SHOWN]
    views = [
        AlignmentView(title=str(number), source=pair.source, target=pair.target, posterior=pair.links, kind="links")
        for number, pair in enumerate(shown, 1)
    ]
    write_viewer(path, views, title=f"Probabilities of links: {path.stem}", text=_LEAD)


def _doubtful(pairs: list[AlignedPair], count: int) -> list[str]:
    """The pairs whose words are least certain on average."""
    whole = [(pair.certainty.mean().item(), number, pair) for number, pair in enumerate(pairs, 1) if pair.links.numel()]
    return [
        f"line {number}, mean probability of the best links {certainty:.2f}: "
        + " ||| ".join(map(" ".join, (pair.source, pair.target)))
        for certainty, number, pair in sorted(whole, key=lambda entry: entry[0])[:count]
    ]


if __name__ == "__main__":
    main()
