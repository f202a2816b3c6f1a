"""Comparison of word aligners that need no network, on text with gold links."""

from __future__ import annotations

import pickle
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.aligners.config import AlignersConfig
from experiments.aligners.drawn import drawn_text
from experiments.aligners.ibm import SentencePair, train_ibm1
from experiments.aligners.scores import (
    Aligned,
    bootstrap,
    calibration_error,
    chance_error,
    coverage_curve,
    link_counts,
    rarer_counts,
    rate_at,
    total_scores,
    written_links,
)
from experiments.cli import command_line
from experiments.data.text.parallel import load_parallel
from experiments.data.text.parallel_text import ParallelText
from experiments.files import UserError, user_errors
from experiments.folder import write_environment
from experiments.report.figures import reliability_panels, save
from experiments.report.report import Part, Report, source_of, write_results
from experiments.report.statistics import Difference, Estimate, Row
from pyro_attention.aligner import Aligner, cross_fit
from pyro_attention.analysis import Alignment, GoldAlignment, read_pharaoh

Align = Callable[[Sequence[SentencePair], Sequence[SentencePair]], Aligned]  # takes all pairs, and the pairs to align
_VOTES = 6  # runs of eflomal
_LONGEST = 200  # largest number of words of a training sentence
_RARE = 2  # times that a rare word stands in the text
_EFLOMAL = "eflomal"
_CROSS_FITTED = "pyro-align, cross-fitted"
_ONE_MODEL = "pyro-align, one model"
_ENCODER = "pyro-align + encoder"
_ENCODER_HELD_OUT = f"{_ENCODER}, not trained on the test"
_ON_REQUEST = (_CROSS_FITTED, _ONE_MODEL, _ENCODER_HELD_OUT)  # rows that are made only on request
_TEXT = (
    "AER in percent on {sentences} gold sentences with its 95 % interval over resampled sentences, and its difference "
    "from the votes of eflomal on the same sentences of each sample; below 0 is better. Every aligner is trained in "
    "both directions on {pairs} pairs and, as is the custom of these aligners, on the test text without its links. "
    "Links have minimum Bayes risk, so that no gold link is used to choose them. ECE: calibration error of the "
    "probabilities of the written links. Surest half: AER of the half of the target words with the most certain links. "
    "eflomal writes links without probabilities; its votes are the mean of {votes} runs with one sampler each. CPU s: "
    "seconds of the processor for training and alignment, in one run on a shared machine. MB: memory, with that of "
    "Python and the text."
)

_RARE_TEXT = (
    f"Of the written links, and of those whose rarer word the text has at most {_RARE} times, test pairs included: "
    "mean probability, share of gold links, and calibration error. With few links this error is above 0 even of right "
    "probabilities. What they would have by chance is the mean over links drawn by the stated probabilities, and the "
    "number below which 97.5 % of the draws lie."
)


# aligners: the pairs to align are the last ones of the text


def ibm1(text: Sequence[SentencePair], pairs: Sequence[SentencePair]) -> Aligned:
    """Align by IBM Model 1 in both directions."""
    forward, backward = train_ibm1(text), train_ibm1([(target, source) for source, target in text])
    return Aligned(
        [forward.link_probabilities(source, target) for source, target in pairs],
        [backward.link_probabilities(target, source) for source, target in pairs],
    )


def eflomal(program: str, text: Sequence[SentencePair], pairs: Sequence[SentencePair], *, samplers: int = 3) -> Aligned:
    """Align by eflomal, whose links are probabilities of 1."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for side, file in enumerate(("source", "target")):
            (folder / file).write_text("".join(f"{' '.join(pair[side])}\n" for pair in text), encoding="utf-8")
        files = ["-s", "source", "-t", "target", "-f", "forward", "-r", "backward", "--n-samplers", str(samplers)]
        subprocess.run([program, *files], cwd=folder, check=True)
        links = [list(read_pharaoh(folder / file).values())[-len(pairs) :] for file in ("forward", "backward")]
    forward, backward = (
        [Alignment(gold.sure, *map(len, pair)).to_matrix().float() for gold, pair in zip(side, pairs, strict=True)]
        for side in links
    )
    return Aligned(forward, [matrix.mT for matrix in backward])


def eflomal_votes(program: str, text: Sequence[SentencePair], pairs: Sequence[SentencePair]) -> Aligned:
    """Align by the mean of several runs of eflomal with one sampler each."""
    runs = [eflomal(program, text, pairs, samplers=1) for _ in range(_VOTES)]
    forward, backward = (
        [torch.stack(matrices).mean(0) for matrices in zip(*(getattr(run, side) for run in runs), strict=True)]
        for side in ("forward", "backward")
    )
    return Aligned(forward, backward)


def pyro_align(
    text: Sequence[SentencePair],
    pairs: Sequence[SentencePair],
    *,
    held_out: bool = False,
    encoder: Path | None = None,
    members: int | None = None,
    parts: int = 1,
) -> Aligned:
    """Align by the aligner of this library.

    Args:
        text: All sentence pairs, with those to align at the end.
        pairs: The sentence pairs to align.
        held_out: Train without the pairs to align.
        encoder: Folder of an encoder of Hugging Face.
        members: Models, each of which lacks one part of the text; 1 for one model of all of it.
        parts: Number of parts of cross-fitting on the whole text; 1 for none.
    """
    if parts > 1:
        aligned = cross_fit(*zip(*text, strict=True), parts=parts, encoder=encoder)[-len(pairs) :]
    else:
        aligner = Aligner.fit(*zip(*(text[: -len(pairs)] if held_out else text), strict=True), parts=members)
        aligned = aligner(*zip(*pairs, strict=True), encoder=encoder)
    links = [pair.links for pair in aligned]
    return Aligned(links, [matrix.mT for matrix in links], [pair.certainty for pair in aligned])


def aligners(encoder: Path | None = None) -> dict[str, Align]:
    """Return all aligners by name: eflomal if it is installed, and one with an encoder if its folder is given."""
    known: dict[str, Align] = {"IBM Model 1": ibm1}
    if (program := shutil.which("eflomal-align")) is not None:
        known[_EFLOMAL] = partial(eflomal, program)
        known[f"eflomal, votes of {_VOTES} runs"] = partial(eflomal_votes, program)
    known |= {"pyro-align": pyro_align, "pyro-align, not trained on the test": partial(pyro_align, held_out=True)}
    known[_CROSS_FITTED] = partial(pyro_align, parts=5)
    known[_ONE_MODEL] = partial(pyro_align, members=1)
    if encoder is not None:
        known[_ENCODER] = partial(pyro_align, encoder=encoder)
        known[_ENCODER_HELD_OUT] = partial(pyro_align, encoder=encoder, held_out=True)
    return known


# the table


def load_texts(config: AlignersConfig) -> tuple[ParallelText, ParallelText]:
    """Load the training text and the test text."""
    if config.dataset == "drawn-jumps" or config.dataset == "drawn-order":
        train, test = drawn_text(config.dataset, config.pairs or 20000)
        return train, test.joined(config.joined)
    source = "fr" if config.dataset == "hansards_fr_en" else "de"
    options: dict[str, Any] = {
        "source": source,
        "target": "en",
        "data_root": config.data_root,
        "words": "none",
        "lowercase": True,
    }
    with user_errors(ValueError, OSError):
        train = load_parallel(config.dataset, "train", **options, max_words=_LONGEST, skip=True)
        test = load_parallel(config.dataset, "test", **options, skip=False)
    return train if config.pairs is None else train.first(config.pairs), test.joined(config.joined)


def compare(config: AlignersConfig) -> list[Row]:
    """Print the table of aligners, and publish it if a folder of results is given.

    Raises:
        UserError: The text has too few gold links, an aligner is unknown, or one fails.
    """
    train, test = load_texts(config)
    if (gold := test.gold) is None or len(gold) < 2:
        raise UserError(f"{config.dataset} has gold links of {len(gold or ())} test pairs, expected at least 2")
    known = aligners(config.encoder)
    names = config.aligners or tuple(name for name in known if name not in _ON_REQUEST)
    if unknown := [name for name in names if name not in known]:
        raise UserError(f"aligners has {unknown[0]!r}, expected some of {', '.join(known)}")
    rows, counts, calibrations, rare = dict[str, Row](), {}, {}, list[Row]()
    pairs = test.word_pairs()
    text = [*train.word_pairs(), *pairs]
    for name in names:
        print(f"{name} ...", flush=True)
        aligned, cost = _run_measured(known[name], text, pairs)
        counts[name] = link_counts(aligned.links, gold)
        calibrations[name] = written_links(aligned, aligned.links, gold)
        rows[name] = {"aligner": name, **score_row(aligned, gold, counts[name], calibrations[name]), **cost}
        if name != _EFLOMAL:
            frequencies = rarer_counts(aligned.links, pairs, text)
            rare += [{"aligner": name, **row} for row in frequency_rows(*calibrations[name], frequencies)]
    votes = next((name for name in counts if "votes" in name), None)
    if votes is not None:
        for name, row in rows.items():
            row["- votes"] = "" if name == votes else _difference(counts[name], counts[votes], votes)
    shown = {name: links for name, links in calibrations.items() if name.startswith("pyro-align") or name == votes}
    _report(config, list(rows.values()), rare, shown, sentences=len(gold), pairs=len(train))
    return list(rows.values())


def score_row(
    aligned: Aligned, gold: Sequence[GoldAlignment], counts: Tensor, calibration: tuple[Tensor, Tensor]
) -> Row:
    """Return the scores of an aligner on gold links.

    Args:
        aligned: Probabilities of its links.
        gold: Gold links of the same sentence pairs.
        counts: Its :func:`link_counts`.
        calibration: Its :func:`written_links`.
    """
    rate, low, high = bootstrap(counts)
    scores = total_scores(counts)
    return {
        "AER": Estimate(rate, digits=1, low=low, high=high),
        "precision": round(100 * scores.precision, 1),
        "recall": round(100 * scores.recall, 1),
        "ECE": round(calibration_error(*calibration), 3),
        "surest half": round(100 * rate_at(coverage_curve(aligned, aligned.links, gold), 0.5), 1),
    }


def frequency_rows(probabilities: Tensor, right: Tensor, frequencies: Tensor) -> Iterator[Row]:
    """Yield how far the probabilities of links hold, of all links and of those of rare words.

    Args:
        probabilities: Probability of every written link.
        right: Whether it is a gold link.
        frequencies: How often the rarer of its words stands in the text.
    """
    for words, chosen in (("all", frequencies >= 0), (f"at most {_RARE} times", frequencies <= _RARE)):
        if not chosen.any():
            continue
        stated, share = probabilities[chosen], right[chosen]
        chance, most = chance_error(stated)
        yield {
            "words": words,
            "links": int(chosen.sum()),
            "stated": round(stated.mean().item(), 3),
            "right": round(share.mean().item(), 3),
            "ECE": round(calibration_error(stated, share), 3),
            "ECE by chance": round(chance, 3),
            "97.5 % below": round(most, 3),
        }


def _difference(counts: Tensor, baseline: Tensor, name: str) -> Difference:
    """Return the difference of the error rate from that of the baseline with this name."""
    return Difference(*bootstrap(counts, baseline), digits=1, metric="AER", against=name, better="lower", over="items")


def _report(
    config: AlignersConfig, rows: list[Row], rare: list[Row], calibrations: Mapping[str, tuple[Tensor, Tensor]],
    **counts: int,
) -> None:  # fmt: skip
    """Print the table, draw the calibration of written links, and publish both if a folder of results is given."""
    name = f"aligners-{config.dataset}-{counts['pairs']}{'-selected' if config.aligners else ''}"
    name += f"-joined-{config.joined}" * (config.joined > 1)
    folder = Path("runs", "aligners", name)
    diagram = reliability_panels(
        {aligner: (probabilities.clamp(0, 1), right) for aligner, (probabilities, right) in calibrations.items()},
        confidence="probability of the link", right="share of links that are right",
    )  # fmt: skip
    picture = save(diagram, (config.results / "pictures" if config.results else folder) / f"{name}-calibration.png")
    parts = [
        Part("", _TEXT.format(**counts, votes=_VOTES), rows),
        Part("Calibration by frequency", _RARE_TEXT, rare),
        Part("Calibration of the written links", picture=picture),
    ]
    report = Report(f"Aligners without a network: {config.dataset}", name, parts)
    write_environment(folder, torch.device("cpu"))
    command = command_line("experiments.aligners", config)
    command += " --encoder FOLDER" * (config.encoder is not None)
    source = source_of([folder], command)
    report.write(folder, source)
    if config.results is not None:
        print(write_results(config.results, report, source))


def _run_measured(align: Align, text: Sequence[SentencePair], pairs: Sequence[SentencePair]) -> tuple[Aligned, Row]:
    """Run an aligner in a separate process, and return its alignments, its processor time and its memory."""
    context = get_context("fork")  # it passes on functions that cannot be pickled
    receive, send = context.Pipe(duplex=False)

    def work() -> None:
        before = resource.getrusage(resource.RUSAGE_SELF)
        aligned = align(text, pairs)
        usage, programs = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        seconds = sum(used.ru_utime + used.ru_stime for used in (usage, programs)) - before.ru_utime - before.ru_stime
        megabytes = "" if programs.ru_maxrss else round(usage.ru_maxrss / 1024)  # memory of child programs is unknown
        # sent as bytes, since torch would share the memory of tensors in a pipe
        send.send_bytes(pickle.dumps((aligned, {"CPU s": round(seconds), "MB": megabytes})))

    child = context.Process(target=work)
    child.start()
    send.close()
    try:
        result: tuple[Aligned, Row] = pickle.loads(receive.recv_bytes())
    except EOFError as error:
        raise UserError("the aligner failed, see above") from error
    child.join()
    return result
