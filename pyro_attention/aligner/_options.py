"""The options of ``pyro-align``, and checks of them before any work is done."""

from __future__ import annotations

import argparse
import os
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

from pyro_attention.aligner._chunk_files import Room
from pyro_attention.aligner._reading import STANDARD
from pyro_attention.aligner._storage import FILE
from pyro_attention.aligner.encoder import check_encoder
from pyro_attention.aligner.text import SubwordStyle
from pyro_attention.analysis.alignments.links import SymmetrizeMethod
from pyro_attention.atomic_write import check_outputs

__all__ = ["SHOWN", "check_options", "keeps_aligner", "make_parser"]

SHOWN = 200  # pairs on a page


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="pyro-align",
        description="Align the words of two files, whose lines are sentences and their translations, and say how "
        "probable every link is. Without --train or --model the aligner is trained on the two files themselves. Files "
        "whose names end with .gz are packed; - is standard input or output.",
    )
    parser.add_argument(
        "source", type=Path, help="sentences, one a line, in UTF-8; or, alone, `source ||| target` or .jsonl"
    )
    parser.add_argument("target", type=Path, nargs="?", help="their translations")
    _add_text(parser.add_argument_group("words"))
    _add_training(parser.add_argument_group("training"))
    _add_links(parser.add_argument_group("links"))
    _add_output(parser.add_argument_group("output"))
    return parser


def _add_text(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--tokenize", action="store_true", help="separate punctuation; otherwise words stand between blanks"
    )
    group.add_argument("--keep-case", action="store_true", help="do not lower-case words before they are compared")
    group.add_argument(
        "--subwords",
        choices=get_args(SubwordStyle),
        help="the text is in pieces of words, marked by this sign; links are between whole words",
    )
    group.add_argument(
        "--documents",
        action="store_true",
        help="align whole texts, of any numbers of sentences, with an empty line between; --train takes sentences",
    )


def _add_training(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--train", type=Path, nargs=2, metavar=("SOURCE", "TARGET"), help="train on these files instead")
    group.add_argument(
        "--model", type=Path, help="folder to keep the aligner in; one that is there is used, not trained"
    )
    group.add_argument(
        "--parts",
        type=int,
        help="members, each without one part of the text; 2 from 50 pairs on, else 1",
    )
    group.add_argument(
        "--dictionary",
        type=Path,
        help="word pairs that are known, source, target and perhaps a number of observations (10), with tabs between",
    )
    group.add_argument(
        "--cross-fit", type=int, metavar="PARTS", help="align each of so many parts by an aligner trained on the others"
    )
    group.add_argument(
        "--encoder",
        type=Path,
        metavar="FOLDER",
        help="also ask the word vectors of a multilingual encoder of Hugging Face (needs the extra transformers)",
    )
    group.add_argument(
        "--max-memory",
        type=int,
        metavar="MB",
        help="for texts of any size: train in so much memory, about, on chunks in files",
    )
    group.add_argument(
        "--scratch", type=Path, metavar="FOLDER", help="folder for the chunks of --max-memory; default: a temporary one"
    )
    group.add_argument("--processes", type=int, default=1, help="processes that read the chunks; default: %(default)s")
    group.add_argument(
        "--cluster", metavar="ADDRESS", help="let the workers of this Dask scheduler read the chunks in --scratch"
    )
    group.add_argument("--no-strings", action="store_true", help="do not ask the letters of the words")


def _add_links(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--anchors", type=Path, help="links that are known, in the format of --out; they are kept")
    group.add_argument("--min-probability", type=float, default=0.0, help="leave out links that are less probable")
    group.add_argument(
        "--coverage",
        type=float,
        default=1.0,
        help="write only the links of this share of the target words, the surest ones",
    )
    group.add_argument(
        "--balance", type=float, default=1.0, help="how many times as much recall counts as precision; default 1"
    )
    combination = group.add_mutually_exclusive_group()
    combination.add_argument(
        "--direction",
        choices=("forward", "backward"),
        help="links of one direction: a source word for every target word, or a target word for every source word",
    )
    combination.add_argument(
        "--symmetrize", choices=get_args(SymmetrizeMethod), help="combine the links of both directions so"
    )


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--out",
        type=Path,
        default=Path("links.txt"),
        help="links of every pair, `i-j` counted from 0 (Pharaoh format); where the name ends with .jsonl also words "
        "and scores, as JSON; default: %(default)s",
    )
    group.add_argument("--probabilities", action="store_true", help="write `i-j:p`")
    group.add_argument("--words", action="store_true", help="write `source|target` in place of `i-j`")
    group.add_argument("--tsv", type=Path, help="also write a table of links, with words and probabilities")
    group.add_argument("--scores", type=Path, help="also write how well the sentences of each pair fit")
    group.add_argument("--lexicon", type=Path, help="also write the word pairs of the text, with p(word | word)")
    group.add_argument("--html", type=Path, help=f"also write a page to look at the first {SHOWN} pairs in a browser")
    group.add_argument("--overwrite", action="store_true", help="replace files of these names that are there already")
    group.add_argument(
        "--most-uncertain", type=int, default=0, metavar="N", help="print the N pairs with the least certain words"
    )


def check_options(options: argparse.Namespace) -> None:
    """Raise unless everything that is written can be, and everything that is needed is there.

    Raises:
        ImportError: A package is missing.
        OSError: A place cannot be written.
        ValueError: Options that do not go together, or an output that is an input or is there already.
    """
    _check_places(options)
    if options.model is not None and find_spec("safetensors") is None:
        raise ImportError("--model needs safetensors: pip install 'pyro-attention[align]'")
    if options.encoder is not None:
        check_encoder(options.encoder)
    if not (0 < options.coverage <= 1 and 0 <= options.min_probability <= 1):
        raise ValueError(
            f"--coverage is {options.coverage}, --min-probability {options.min_probability}, expected a share above 0 "
            f"and up to 1, and a probability"
        )
    if not 0 < options.balance < float("inf"):
        raise ValueError(f"--balance is {options.balance}, expected a number above 0")
    if options.balance != 1 and (options.direction or options.symmetrize):
        raise ValueError("--balance chooses among the links of both directions; leave out --direction and --symmetrize")
    if options.cross_fit is not None and (options.anchors or options.train or options.model):
        raise ValueError("--cross-fit trains on the text itself; leave out --train, --model and --anchors")
    if options.cross_fit is not None and (options.direction or options.symmetrize or options.parts):
        raise ValueError("--cross-fit has no --direction, --symmetrize and --parts; leave them out")
    if options.jsonl and (options.words or options.probabilities):
        raise ValueError("--out is JSON, which has words and probabilities; leave out --words and --probabilities")
    _check_memory(options)
    if keeps_aligner(options) and (options.train or options.dictionary or options.parts):
        raise ValueError(
            f"{options.model} holds an aligner already; leave out --train, --parts and --dictionary, or take another "
            f"--model"
        )


def _check_memory(options: argparse.Namespace) -> None:
    if options.max_memory is None:
        if options.processes != 1 or options.cluster or options.scratch:
            raise ValueError("--processes, --cluster and --scratch are of --max-memory; pass it, such as 3000")
        return
    for name in ("cross_fit", "encoder", "anchors", "documents"):
        if getattr(options, name):
            raise ValueError(f"--max-memory has no --{name.replace('_', '-')}; leave out one of them")
    if options.coverage < 1:
        raise ValueError("--coverage needs all pairs in memory; take --min-probability with --max-memory")
    if STANDARD in (options.source, options.target, *(options.train or ())):
        raise ValueError("--max-memory reads the text several times; expected files in place of standard input")
    if options.scratch is not None and not options.scratch.is_dir():
        raise FileNotFoundError(f"--scratch {options.scratch} is no folder; make it first")
    if options.processes < 1:
        raise ValueError(f"--processes is {options.processes}, expected 1 at least")
    if options.processes > 1 and find_spec("joblib") is None:
        raise ImportError("--processes needs joblib: pip install 'pyro-attention[align]'")
    if options.cluster is not None:
        if options.scratch is None:
            raise ValueError("--cluster needs --scratch, a folder that this machine and all workers see")
        if find_spec("distributed") is None or find_spec("joblib") is None:
            raise ImportError("--cluster needs distributed and joblib: pip install 'pyro-attention[align,cluster]'")
    Room.of(options.max_memory)


def _check_places(options: argparse.Namespace) -> None:
    inputs = {
        "the source": options.source, "the target": options.target, "--dictionary": options.dictionary,
        "--anchors": options.anchors,
    }  # fmt: skip
    inputs |= dict(zip(("the source of --train", "the target of --train"), options.train or (), strict=False))
    outputs = {f"--{name}": getattr(options, name) for name in ("out", "tsv", "scores", "lexicon", "html")}
    read, written = (
        {name: path for name, path in files.items() if path is not None and path != STANDARD}
        for files in (inputs, outputs)
    )
    if options.html == STANDARD or list(outputs.values()).count(STANDARD) > 1:
        raise ValueError("more than one output, or a page, is standard output; expected one of links and tables")
    check_outputs(written, read, overwrite=options.overwrite)
    if options.model is not None:
        if options.model.exists() and not options.model.is_dir():
            raise ValueError(f"--model {options.model} is a file, expected a folder")
        nearest = next(path for path in (options.model, *options.model.absolute().parents) if path.exists())
        if not os.access(nearest, os.W_OK):
            raise PermissionError(f"--model {options.model} cannot be written in {nearest}; choose another folder")


def keeps_aligner(options: argparse.Namespace) -> bool:
    """Whether there is an aligner in the folder of --model."""
    return options.model is not None and (options.model / FILE).is_file()
