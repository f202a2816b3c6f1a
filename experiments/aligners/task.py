"""Aligners that need no network, on text with gold links, also drawn: one table."""

from __future__ import annotations

import pickle
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from experiments.aligners.config import AlignersConfig
from experiments.aligners.drawn import drawn_text
from experiments.aligners.ibm import SentencePair, train_ibm1
from experiments.aligners.scores import (
    Aligned,
    bootstrap,
    calibration_error,
    coverage_curve,
    link_counts,
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
from pyro_attention.analysis import Alignment, read_pharaoh

Align = Callable[[Sequence[SentencePair], Sequence[SentencePair]], Aligned]  # all pairs, and those to align
_VOTES, _LONGEST = 6, 200
_CROSS_FITTED = "pyro-align, cross-fitted"  # a row that is made where it is asked for
_TEXT = (
    "AER in percent on {sentences} gold sentences with its 95 % interval over resampled sentences, and the difference "
    "to the votes of eflomal on the same sentences of each sample; below 0 is better. Every aligner is trained in both "
    "directions on {pairs} pairs and, as is the custom of these aligners, on the test text, without its links. Links "
    "are those of minimum Bayes risk, so that no gold link chooses anything. "
    "ECE: calibration error of the probabilities of the links that are written. Surest half: AER of the target words "
    "whose link is surest. eflomal writes links without probabilities; its votes are the mean of {votes} runs "
    "with one sampler each. CPU s: seconds of the processor, of one run, training and alignment, on a machine that was "
    "shared. MB: memory, with that of Python and of the text."
)


# aligners: those to align stand last in the text


def ibm1(text: Sequence[SentencePair], pairs: Sequence[SentencePair]) -> Aligned:
    """Align by IBM Model 1."""
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
        [torch.stack(some).mean(0) for some in zip(*(getattr(run, side) for run in runs), strict=True)]
        for side in ("forward", "backward")
    )
    return Aligned(forward, backward)


def pyro_align(
    text: Sequence[SentencePair],
    pairs: Sequence[SentencePair],
    *,
    held_out: bool = False,
    encoder: Path | None = None,
    parts: int = 1,
) -> Aligned:
    """Align by the library's aligner; with several parts the whole text is cross-fitted."""
    if parts > 1:
        aligned = cross_fit(*zip(*text, strict=True), parts=parts, encoder=encoder)[-len(pairs) :]
    else:
        aligner = Aligner.fit(*zip(*(text[: -len(pairs)] if held_out else text), strict=True))
        aligned = aligner(*zip(*pairs, strict=True), encoder=encoder)
    links = [pair.links for pair in aligned]
    return Aligned(links, [matrix.mT for matrix in links], [pair.certainty for pair in aligned])


def aligners(encoder: Path | None = None) -> dict[str, Align]:
    """Return all aligners by name: eflomal where it is installed, one with an encoder where its folder is given."""
    known: dict[str, Align] = {"IBM Model 1": ibm1}
    if (program := shutil.which("eflomal-align")) is not None:
        known["eflomal"] = partial(eflomal, program)
        known[f"eflomal, votes of {_VOTES} runs"] = partial(eflomal_votes, program)
    known |= {"pyro-align": pyro_align, "pyro-align, not trained on the test": partial(pyro_align, held_out=True)}
    known[_CROSS_FITTED] = partial(pyro_align, parts=5)
    return known if encoder is None else known | {"pyro-align + encoder": partial(pyro_align, encoder=encoder)}


# the table


def load_texts(config: AlignersConfig) -> tuple[ParallelText, ParallelText]:
    """Load the text to train on and the text to align."""
    if config.dataset == "drawn-jumps" or config.dataset == "drawn-order":
        return drawn_text(config.dataset, config.pairs or 20000)
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
    return train if config.pairs is None else train.first(config.pairs), test


def word_pairs(text: ParallelText) -> list[SentencePair]:
    """Return the words of every pair."""
    return [(source.split(), target.split()) for source, target in zip(text.source, text.target, strict=True)]


def compare(config: AlignersConfig) -> list[Row]:
    """Print the table, and publish it where a folder of results is given."""
    train, test = load_texts(config)
    if (gold := test.gold) is None or len(gold) < 2:
        raise UserError(f"{config.dataset} has gold links of {len(gold or ())} test pairs, expected 2 at least")
    pairs, known = word_pairs(test), aligners(config.encoder)
    names = config.aligners or tuple(name for name in known if name != _CROSS_FITTED)
    if unknown := [name for name in names if name not in known]:
        raise UserError(f"aligners has {unknown[0]!r}, expected some of {', '.join(known)}")
    rows, counts, certain = dict[str, Row](), {}, {}
    for name in names:
        print(f"{name} ...", flush=True)
        aligned, cost = _measured(known[name], [*word_pairs(train), *pairs], pairs)
        links = aligned.links
        counts[name], certain[name] = link_counts(links, gold), written_links(aligned, links, gold)
        rate, low, high = bootstrap(counts[name])
        scores = total_scores(counts[name])
        rows[name] = {
            "aligner": name,
            "AER": Estimate(rate, digits=1, low=low, high=high),
            "precision": round(100 * scores.precision, 1),
            "recall": round(100 * scores.recall, 1),
            "ECE": round(calibration_error(*certain[name]), 3),
            "surest half": round(100 * rate_at(coverage_curve(aligned, links, gold), 0.5), 1),
            **cost,
        }
    votes = next((name for name in counts if "votes" in name), None)
    for name, row in rows.items() if votes is not None else ():
        difference = Difference(
            *bootstrap(counts[name], counts[str(votes)]), digits=1, metric="AER", against=str(votes), better="lower",
            over="items",
        )  # fmt: skip
        row["- votes"] = "" if name == votes else difference
    title = f"Aligners without a network: {config.dataset}"
    name = f"aligners-{config.dataset}-{len(train)}{'-selected' if config.aligners else ''}"
    folder = Path("runs", "aligners", name)
    pictured = {name: links for name, links in certain.items() if name.startswith("pyro-align") or name == votes}
    diagram = reliability_panels(
        {name: (probabilities.clamp(0, 1), right) for name, (probabilities, right) in pictured.items()},
        confidence="probability of the link", right="right",
    )  # fmt: skip
    picture = save(diagram, (config.results / "pictures" if config.results else folder) / f"{name}-calibration.png")
    text = _TEXT.format(sentences=len(gold), pairs=len(train), votes=_VOTES)
    parts = [Part("", text, list(rows.values())), Part("Calibration of the written links", picture=picture)]
    report = Report(title, name, parts)
    print(report.terminal())
    if config.results is not None:
        write_environment(folder, torch.device("cpu"))
        command = command_line("experiments.aligners", config)
        command += " --encoder FOLDER" * (config.encoder is not None)
        print(write_results(config.results, report, source_of([folder], command)))
    return list(rows.values())


def _measured(align: Align, text: Sequence[SentencePair], pairs: Sequence[SentencePair]) -> tuple[Aligned, Row]:
    """Run an aligner in a process of its own: its alignments, its seconds of the processor and its memory."""
    context = get_context("fork")  # which passes on functions that cannot be pickled
    receive, send = context.Pipe(duplex=False)

    def work() -> None:
        before = resource.getrusage(resource.RUSAGE_SELF)
        aligned = align(text, pairs)
        usage, programs = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        seconds = sum(used.ru_utime + used.ru_stime for used in (usage, programs)) - before.ru_utime - before.ru_stime
        megabytes = "" if programs.ru_maxrss else round(usage.ru_maxrss / 1024)  # that of a program is not told apart
        # as bytes: torch would share the memory of what a pipe sends
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
