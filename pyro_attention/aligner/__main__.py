"""``pyro-align A B --out links.txt``: align the words of two files, and say how probable every link is."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import torch

from pyro_attention.aligner._input import check_anchors, check_lengths
from pyro_attention.aligner._storage import FILE
from pyro_attention.aligner.aligner import AlignedPair, Aligner, cross_fit
from pyro_attention.aligner.encoder import check_encoder
from pyro_attention.analysis.alignments.links import read_pharaoh
from pyro_attention.atomic_write import check_outputs, write_atomic
from pyro_attention.text_lines import read_lines
from pyro_attention.viewer import AlignmentView, write_viewer

__all__ = ["main"]

_WORDS = re.compile(r"\w+|[^\w\s]")
_ENTRY = re.compile(r"([^\t]+)\t([^\t]+)(?:\t(\d+\.?\d*))?")  # of a dictionary
_SHOWN = 200  # pairs on a page
_LEAD = (
    "Point at a word, or move to it with the Tab and arrow keys: the stronger the color of a word of the other "
    "language, the more probable is it that one translates the other."
)
_SECONDS = 0.0025  # of a pair with 25 words on each side, on one core


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pyro-align",
        description="Align the words of two files, whose lines are sentences and their translations, and say how "
        "probable every link is. Without --train or --model the aligner is trained on the two files themselves.",
    )
    parser.add_argument("source", type=Path, help="sentences, one a line, in UTF-8")
    parser.add_argument("target", type=Path, help="their translations")
    text = parser.add_argument_group("words")
    text.add_argument(
        "--tokenize", action="store_true", help="separate punctuation; otherwise words stand between blanks"
    )
    text.add_argument("--keep-case", action="store_true", help="do not lower-case words before they are compared")
    learn = parser.add_argument_group("training")
    learn.add_argument("--train", type=Path, nargs=2, metavar=("SOURCE", "TARGET"), help="train on these files instead")
    learn.add_argument(
        "--model", type=Path, help="folder to keep the aligner in; one that is there is used, not trained"
    )
    learn.add_argument(
        "--dictionary",
        type=Path,
        help="word pairs that are known, source, target and perhaps a number of observations (10), with tabs between",
    )
    learn.add_argument(
        "--cross-fit",
        type=int,
        metavar="PARTS",
        help="align each of so many parts by an aligner trained on the others, for probabilities that are not too sure",
    )
    learn.add_argument(
        "--encoder",
        type=Path,
        metavar="FOLDER",
        help="also ask the word vectors of a multilingual encoder of Hugging Face (needs the extra transformers)",
    )
    out = parser.add_argument_group("output")
    out.add_argument(
        "--out",
        type=Path,
        default=Path("links.txt"),
        help="links of every pair, `i-j` counted from 0 (Pharaoh format); default: %(default)s",
    )
    out.add_argument("--probabilities", action="store_true", help="write `i-j:p`")
    out.add_argument("--min-probability", type=float, default=0.0, help="leave out links that are less probable")
    out.add_argument(
        "--coverage",
        type=float,
        default=1.0,
        help="write only the links of this share of the target words, the surest ones",
    )
    out.add_argument("--anchors", type=Path, help="links that are known, in the format of --out; they are kept")
    out.add_argument("--tsv", type=Path, help="also write a table of links, with words and probabilities")
    out.add_argument("--html", type=Path, help=f"also write a page to look at the first {_SHOWN} pairs in a browser")
    out.add_argument("--overwrite", action="store_true", help="replace files of these names that are there already")
    out.add_argument(
        "--most-uncertain", type=int, default=0, metavar="N", help="print the N pairs with the least certain words"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(1)  # the sums are small, and more threads would wait for each other
    try:
        _run(options)
    except (ImportError, OSError, ValueError) as error:
        sys.exit(f"pyro-align: {error}")
    except KeyboardInterrupt:
        sys.exit("pyro-align: stopped")


def _run(options: argparse.Namespace) -> None:
    _check_files(options)
    sides = [_read(path, options) for path in (options.source, options.target)]
    _check_lines(sides, (options.source, options.target))
    known = _known(options)
    if not (0 < options.coverage <= 1 and 0 <= options.min_probability <= 1):
        seen = f"--coverage is {options.coverage}, --min-probability {options.min_probability}"
        raise ValueError(f"{seen}, expected a share above 0 and up to 1, and a probability")
    anchors = (
        None if options.anchors is None else [sorted(gold.sure) for gold in read_pharaoh(options.anchors).values()]
    )
    if anchors is not None and len(anchors) != len(sides[0]):
        raise ValueError(
            f"{options.anchors} has {len(anchors)} lines, {options.source} {len(sides[0])}; expected as many"
        )
    if anchors is not None:
        check_anchors(sides[0], sides[1], anchors, name=f"{options.anchors}, line", first=1)
    if options.cross_fit is not None:
        if anchors is not None or options.train or options.model:
            raise ValueError("--cross-fit trains on the text itself; leave out --train, --model and --anchors")
        _tell(options.cross_fit * len(sides[0]))
        pairs = cross_fit(*sides, parts=options.cross_fit, known=known, encoder=options.encoder, progress=True)
    else:
        aligner = _aligner(options, sides, known)
        _check_languages(aligner, sides, options)
        pairs = aligner(*sides, anchors=anchors, encoder=options.encoder, progress=True)
    chosen = _chosen(pairs, options)
    _write(options.out, (_pharaoh(links, with_probability=options.probabilities) for links in chosen))
    if options.tsv is not None:
        _write(options.tsv, _table(pairs, chosen))
    if options.html is not None:
        _page(options.html, pairs)
    _show_doubtful(pairs, options.most_uncertain)
    count = sum(map(len, chosen))
    mean = sum(sum(links.values()) for links in chosen) / max(1, count)
    print(f"{options.out}: {count} links of {len(pairs)} pairs, {mean:.0%} of which are expected to be right")


def _check_files(options: argparse.Namespace) -> None:
    """Raise unless everything that is written can be, and everything that is needed is there."""
    inputs = {
        "the source": options.source, "the target": options.target, "--dictionary": options.dictionary,
        "--anchors": options.anchors,
    }  # fmt: skip
    inputs |= dict(zip(("the source of --train", "the target of --train"), options.train or (), strict=False))
    outputs = {"--out": options.out, "--tsv": options.tsv, "--html": options.html}
    read, written = ({name: path for name, path in files.items() if path is not None} for files in (inputs, outputs))
    check_outputs(written, read, overwrite=options.overwrite)
    if options.model is not None:
        if options.model.exists() and not options.model.is_dir():
            raise ValueError(f"--model {options.model} is a file, expected a folder")
        nearest = next(path for path in (options.model, *options.model.absolute().parents) if path.exists())
        if not os.access(nearest, os.W_OK):
            raise PermissionError(f"--model {options.model} cannot be written in {nearest}; choose another folder")
        if find_spec("safetensors") is None:
            raise ImportError("--model needs safetensors: pip install 'pyro-attention[align]'")
    if options.encoder is not None:
        check_encoder(options.encoder)


def _aligner(options: argparse.Namespace, sides: list[list[list[str]]], known: dict[tuple[str, str], float]) -> Aligner:
    """The aligner that is there, or else one that is trained."""
    if options.model is not None and (options.model / FILE).is_file():
        if options.train or options.dictionary:
            raise ValueError(
                f"{options.model} holds an aligner already; leave out --train and --dictionary, or take another --model"
            )
        return Aligner.load(options.model)
    text = sides
    if options.train:
        text = [_read(path, options) for path in options.train]
        _check_lines(text, options.train)
    _tell(len(text[0]))
    aligner = Aligner.fit(*text, known=known, progress=True)
    if options.model is not None:
        aligner.save(options.model)
        print(f"the aligner is kept in {options.model}")
    return aligner


def _tell(pairs: int) -> None:
    print(
        f"training both directions on {pairs} pairs, about {max(1, round(pairs * _SECONDS))} seconds", file=sys.stderr
    )


def _lines(path: Path, options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Place and text of every line, in the case in which words are compared."""
    return ((place, line if options.keep_case else line.lower()) for place, line in read_lines(path))


def _read(path: Path, options: argparse.Namespace) -> list[list[str]]:
    return [_WORDS.findall(line) if options.tokenize else line.split() for _, line in _lines(path, options)]


def _check_lines(sides: Sequence[list[list[str]]], paths: Sequence[Path]) -> None:
    if len(sides[0]) != len(sides[1]):
        raise ValueError(
            f"{paths[0]} has {len(sides[0])} lines and {paths[1]} {len(sides[1])}; expected as many, each sentence and "
            f"its translation at the same line"
        )
    check_lengths(*sides, name=f"{paths[0]} and {paths[1]}, line", first=1)


def _check_languages(aligner: Aligner, sides: Sequence[Sequence[list[str]]], options: argparse.Namespace) -> None:
    """Each side has more words of its own language, in the training text, than of the other one."""
    counts = [
        [aligner.knows([word for line in side for word in line], language) for language in (0, 1)] for side in sides
    ]
    if counts[0][1] > counts[0][0] and counts[1][0] > counts[1][1]:
        raise ValueError(
            f"{options.source} has the words of the target that the aligner was trained on, and {options.target} those "
            f"of the source; swap the two files"
        )


def _known(options: argparse.Namespace) -> dict[tuple[str, str], float]:
    """Word pairs of the dictionary, prepared as the text is."""
    found: dict[tuple[str, str], float] = {}
    if options.dictionary is None:
        return found
    for place, line in _lines(options.dictionary, options):
        entry = _ENTRY.fullmatch(line.strip())
        if entry:
            found[entry[1].strip(), entry[2].strip()] = float(entry[3] or 10)
        elif line.strip():
            columns = "source, target and perhaps a number of observations, with tabs between"
            raise ValueError(f"{place} is {line[:80]!r}, expected {columns}")
    return found


def _chosen(pairs: list[AlignedPair], options: argparse.Namespace) -> list[dict[tuple[int, int], float]]:
    """Links to write and their probabilities."""
    certainty = torch.cat([pair.certainty for pair in pairs]) if pairs else torch.zeros(0)
    least = 0.0
    if options.coverage < 1 and len(certainty):
        least = certainty.sort(descending=True).values[max(0, round(options.coverage * len(certainty)) - 1)].item()
    return [
        {
            link: probability
            for link, probability in pair.probabilities.items()
            if probability >= options.min_probability and pair.certainty[link[1]] >= least
        }
        for pair in pairs
    ]


def _pharaoh(links: dict[tuple[int, int], float], *, with_probability: bool) -> str:
    return " ".join(f"{s}-{t}:{p:.3f}" if with_probability else f"{s}-{t}" for (s, t), p in links.items())


def _table(pairs: list[AlignedPair], chosen: list[dict[tuple[int, int], float]]) -> Iterator[str]:
    yield "pair\tsource\ttarget\tsource_word\ttarget_word\tprobability"
    for number, (pair, links) in enumerate(zip(pairs, chosen, strict=True), 1):
        for (s, t), p in links.items():
            yield f"{number}\t{s}\t{t}\t{pair.source[s]}\t{pair.target[t]}\t{p:.4f}"


def _write(path: Path, lines: Iterator[str]) -> None:
    text = "".join(f"{line}\n" for line in lines).encode()
    write_atomic(path, lambda file: file.write(text))


def _page(path: Path, pairs: list[AlignedPair]) -> None:
    shown = [pair for pair in pairs if pair.links.numel()][:_SHOWN]
    views = [
        AlignmentView(title=str(number), source=pair.source, target=pair.target, posterior=pair.links)
        for number, pair in enumerate(shown, 1)
    ]
    write_viewer(path, views, title=f"Probabilities of links: {path.stem}", text=_LEAD)


def _show_doubtful(pairs: list[AlignedPair], count: int) -> None:
    """The pairs whose words are least certain on average."""
    whole = [(pair.certainty.mean().item(), number, pair) for number, pair in enumerate(pairs, 1) if pair.links.numel()]
    for certainty, number, pair in sorted(whole, key=lambda one: one[0])[:count]:
        words = " ||| ".join(map(" ".join, (pair.source, pair.target)))
        print(f"line {number}, mean probability of the best links {certainty:.2f}: {words}")


if __name__ == "__main__":
    main()
