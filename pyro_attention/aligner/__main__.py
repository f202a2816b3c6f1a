"""``pyro-align A B --out links.txt``: align the words of two files, and say how probable every link is."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import cast

import torch

from pyro_attention.aligner._options import check_options, keeps_aligner, make_parser
from pyro_attention.aligner._reading import (
    SentencePairs,
    TextFiles,
    check_languages,
    is_jsonl,
    read_anchors,
    read_dictionary,
    read_pairs,
)
from pyro_attention.aligner._writer import write_outputs
from pyro_attention.aligner.aligner import AlignedPair, Aligner, cross_fit
from pyro_attention.aligner.text import Preparation, SubwordStyle

__all__ = ["main"]

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
    options.jsonl = is_jsonl(options.out)
    check_options(options)
    aligner = Aligner.load(options.model) if keeps_aligner(options) else None
    preparation = _preparation(options, aligner)
    if options.max_memory is not None:
        write_outputs(options, _stream(options, aligner, preparation))
        return
    text = read_pairs(options.source, options.target, preparation, documents=options.documents)
    anchors = None if options.anchors is None else read_anchors(options.anchors, text)
    training = read_pairs(options.train[0], options.train[1], preparation) if options.train else text
    known = None if options.dictionary is None else read_dictionary(options.dictionary, preparation, training)
    if options.cross_fit is not None:
        _announce(training, options.cross_fit)
        pairs = cross_fit(
            *text.compared, parts=options.cross_fit, known=known, encoder=options.encoder,
            strings=not options.no_strings, progress=True,
        )  # fmt: skip
    else:
        if aligner is None:
            _announce(training, 1)
            aligner = Aligner.fit(*training.compared, known=known, parts=options.parts, progress=True)
            _keep(options, aligner, preparation)
        check_languages(aligner, text)
        pairs = aligner(
            *text.compared, anchors=anchors, encoder=options.encoder, strings=not options.no_strings,
            directions=bool(options.direction or options.symmetrize), progress=True,
        )  # fmt: skip
    written = zip(pairs, *text.written, text, strict=True)
    write_outputs(
        options, ((replace(pair, source=source, target=target), words) for pair, source, target, words in written)
    )


def _stream(
    options: argparse.Namespace, aligner: Aligner | None, preparation: Preparation
) -> Iterator[tuple[AlignedPair, Sequence[Sequence[str]]]]:
    """Train and align in bounded memory, and yield every pair with its words as they are compared."""
    text = TextFiles(options.source, options.target, preparation)
    training = TextFiles(options.train[0], options.train[1], preparation) if options.train else text
    text.check()
    if aligner is None:
        if training is not text:
            training.check()
        known = None if options.dictionary is None else read_dictionary(options.dictionary, preparation, training)
        with TemporaryDirectory(prefix="pyro-align-", dir=options.scratch) as folder:
            aligner = Aligner.fit_stream(
                training, folder, max_memory=options.max_memory, known=known, parts=options.parts,
                processes=options.processes, cluster=options.cluster, progress=True,
            )  # fmt: skip
        _keep(options, aligner, preparation)
    check_languages(aligner, text)
    pairs = aligner.align_stream(
        text, strings=not options.no_strings, directions=bool(options.direction or options.symmetrize)
    )
    for pair, (source, target) in zip(pairs, text.written(), strict=True):
        yield replace(pair, source=source, target=target), (pair.source, pair.target)


def _preparation(options: argparse.Namespace, aligner: Aligner | None) -> Preparation:
    """Return how the text is prepared: as the options say, or as the training text of a saved aligner was."""
    preparation = Preparation(options.tokenize, options.keep_case, options.subwords)
    if aligner is not None:
        settings = aligner.settings
        subwords = cast("SubwordStyle | None", settings.get("subwords") or None)  # checked below
        saved = Preparation(bool(settings.get("tokenize")), bool(settings.get("keep_case")), subwords)
        if preparation not in (saved, Preparation()):
            raise ValueError(
                f"the aligner in {options.model} was trained on text prepared by {saved.settings}, and the options ask "
                f"for {preparation.settings}; leave them out, or take another --model"
            )
        preparation = saved
    preparation.check()
    return preparation


def _keep(options: argparse.Namespace, aligner: Aligner, preparation: Preparation) -> None:
    aligner.settings = preparation.settings
    if options.model is not None:
        aligner.save(options.model)
        print(f"the aligner is kept in {options.model}", file=sys.stderr)


def _announce(text: SentencePairs, times: int) -> None:
    links = sum(len(s) * len(t) for s, t in text)
    seconds = max(1, round(links * times * _SECONDS))
    print(f"training both directions on {len(text)} pairs, about {seconds} seconds", file=sys.stderr)


if __name__ == "__main__":
    main()
