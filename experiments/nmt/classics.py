"""Aligners that need no network, on text with gold links: IBM models, eflomal, and the library's own, in one table."""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from experiments.datasets.text.parallel_text import ParallelText
from experiments.files import UserError, user_errors
from experiments.harness.folder import write_environment
from experiments.nmt.agreement import network_align
from experiments.nmt.aligners import (
    Align,
    Aligned,
    aligned_words,
    bootstrap,
    calibration_error,
    classics,
    coverage_curve,
    eflomal,
    link_all,
    linked_words,
    pyro_align,
    rate_at,
)
from experiments.nmt.config import ClassicsConfig, TranslationConfig
from experiments.nmt.data import load_text, word_pairs
from experiments.nmt.drawn import drawn_text
from experiments.nmt.em_aligners import SentencePair
from experiments.report.figures import reliability_panels, save
from experiments.report.report import Part, Report, source_of, write_results
from experiments.report.statistics import Difference, Estimate, Row

_WAY = "geometric, mbr"  # chooses nothing by gold links
_VOTES, _LONGEST = 6, 200
_NETWORKS = ("marginal", "marginal in agreement")
_MEAN, _CROSS_FITTED = "mean of pyro-align and marginal in agreement", "pyro-align, cross-fitted"
_BY_NAME = (*_NETWORKS, _MEAN, _CROSS_FITTED)  # rows that are made where they are asked for
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


def compare(config: ClassicsConfig) -> list[Row]:
    """Print the table, and publish it where a folder of results is given."""
    train, test = _texts(config)
    if (gold := test.gold) is None or len(gold) < 2:
        raise UserError(f"{config.dataset} has gold links of {len(gold or ())} test pairs, expected 2 at least")
    own = word_pairs(test)
    text = [*word_pairs(train), *own]
    found, counts, certain, known = dict[str, Row](), {}, {}, dict[str, Aligned]()
    aligners = _aligners(config.encoder)
    aligners |= {
        name: partial(network_align, agree=agree) for name, agree in zip(_NETWORKS, (False, True), strict=True)
    }
    # of aligners that stand above it
    aligners[_MEAN] = lambda _, own: _mean([known["pyro-align"], known[_NETWORKS[-1]]], own)
    if unknown := [name for name in config.aligners if name not in aligners]:
        raise UserError(f"aligners has {unknown[0]!r}, expected some of {', '.join(aligners)}")
    for name in config.aligners or [name for name in aligners if name not in _BY_NAME]:
        print(f"{name} ...", flush=True)
        aligned, cost = _measured(aligners[name], text, own)
        known[name] = aligned
        linked = link_all(aligned.weights("posterior"), _WAY, gold)
        links, curve = linked_words(aligned, linked.links, gold), coverage_curve(aligned, linked.links, gold)
        counts[name], certain[name] = linked.counts[None], (links["mean"].clamp(0, 1), links["right"])
        rate, low, high = bootstrap(counts[name])
        found[name] = {
            "aligner": name,
            "AER": Estimate(rate, digits=1, low=low, high=high),
            "precision": round(100 * linked.scores.precision, 1),
            "recall": round(100 * linked.scores.recall, 1),
            "ECE": round(calibration_error(links, "mean"), 3),
            "surest half": round(100 * rate_at(curve, 0.5), 1),
            **cost,
        }
    votes = next((name for name in counts if "votes" in name), None)
    for name, row in found.items() if votes is not None else ():
        difference = Difference(
            *bootstrap(counts[name], counts[str(votes)]), digits=1, metric="AER", against=str(votes), better="lower",
            over="items",
        )  # fmt: skip
        row["- votes"] = "" if name == votes else difference
    said = _TEXT.format(sentences=len(gold), pairs=len(train), votes=_VOTES)
    title = f"Aligners without a network: {config.dataset}"
    name = f"aligners-{config.dataset}-{len(train)}{'-selected' if config.aligners else ''}"
    folder = Path("runs", "nmt", name)
    folder.mkdir(parents=True, exist_ok=True)
    shown = {name: certain[name] for name in certain if name.startswith("pyro-align") or name == votes}
    diagram = reliability_panels(shown, confidence="probability of the link", right="right")
    pictures = folder if config.results is None else config.results / "pictures"
    pictures.mkdir(parents=True, exist_ok=True)
    picture = save(diagram, pictures / f"{name}-calibration.png")
    parts = [Part("", said, list(found.values())), Part("Calibration of the written links", picture=picture)]
    report = Report(title, name, parts)
    print(report.terminal())
    if config.results is not None:
        write_environment(folder, torch.device("cpu"))
        pairs = "" if config.pairs is None else f" --pairs {config.pairs}"
        rows = f" --aligners '{json.dumps(config.aligners)}'" if config.aligners else ""
        encoder = "" if config.encoder is None else " --encoder FOLDER"
        command = f"python -m experiments.nmt classics --dataset {config.dataset}{pairs}{rows}{encoder}"
        print(write_results(config.results, report, source_of([folder], command)))
    return list(found.values())


def _texts(config: ClassicsConfig) -> tuple[ParallelText, ParallelText]:
    """Text to train on and to align."""
    if config.dataset == "drawn-jumps" or config.dataset == "drawn-order":
        return drawn_text(config.dataset, config.pairs or 20000)
    with user_errors(ValueError, OSError):
        options = TranslationConfig(
            dataset=config.dataset,
            data_root=config.data_root,
            source="fr" if config.dataset == "hansards_fr_en" else "de",
            lowercase=True,
            max_words=_LONGEST,
            train_pairs=config.pairs,
        )
        return load_text(options, "train"), load_text(options, "test")


def _aligners(encoder: Path | None) -> dict[str, Align]:
    found = classics()
    if (program := shutil.which("eflomal-align")) is not None:
        single: Align = partial(eflomal, program, samplers=1)
        found[f"eflomal, votes of {_VOTES} runs"] = lambda text, own: _mean(
            [single(text, own) for _ in range(_VOTES)], own
        )
    if find_spec("thot") is not None:
        found["sil-thot, HMM"] = _thot
    found |= {"pyro-align": pyro_align, "pyro-align, not trained on the test": partial(pyro_align, held_out=True)}
    found[_CROSS_FITTED] = partial(pyro_align, parts=5)
    return found if encoder is None else found | {"pyro-align + encoder": partial(pyro_align, encoder=encoder)}


def _thot(text: Sequence[SentencePair], own: Sequence[SentencePair]) -> Aligned:
    """Links of the hidden Markov model of the package sil-thot, five iterations each of Model 1 and of it."""
    models = import_module("thot.alignment")
    found = []
    for turned in (False, True):
        start = models.Ibm1AlignmentModel()
        for source, target in text:
            start.add_sentence_pair(*((target, source) if turned else (source, target)))
        _train_thot(start)
        model = _train_thot(models.HmmAlignmentModel(start))
        links = [model.get_best_alignment(*(pair[::-1] if turned else pair))[1].to_numpy().T for pair in own]
        found.append([torch.from_numpy(matrix).float() for matrix in links])
    return aligned_words(own, list(zip(*found, strict=True)))


def _train_thot(model: Any) -> Any:
    model.start_training()
    for _ in range(5):
        model.train()
    model.end_training()
    return model


def _mean(runs: Sequence[Aligned], own: Sequence[SentencePair]) -> Aligned:
    pairs = zip(*(one.weights("posterior") for one in runs), strict=True)
    weights = [
        (torch.stack([one for one, _ in pair]).mean(0), torch.stack([other for _, other in pair]).mean(0))
        for pair in pairs
    ]
    return aligned_words(own, weights)


def _measured(align: Align, text: Sequence[SentencePair], own: Sequence[SentencePair]) -> tuple[Aligned, Row]:
    """Alignments by an aligner in a process of its own, with its seconds of the processor and its memory."""
    context = get_context("fork")  # which passes on functions that cannot be pickled
    receive, send = context.Pipe(duplex=False)

    def work() -> None:
        before = resource.getrusage(resource.RUSAGE_SELF)
        aligned = align(text, own)
        weights = aligned.weights("posterior")
        usage, programs = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        seconds = sum(one.ru_utime + one.ru_stime for one in (usage, programs)) - before.ru_utime - before.ru_stime
        megabytes = "" if programs.ru_maxrss else round(usage.ru_maxrss / 1024)  # that of a program is not told apart
        certain = None if aligned.certain is None else [pair.numpy() for pair in aligned.certain]
        send.send(([(one.numpy(), other.numpy()) for one, other in weights], certain, seconds, megabytes))

    child = context.Process(target=work)
    child.start()
    send.close()
    try:
        weights, certain, seconds, megabytes = receive.recv()
    except EOFError as error:
        raise UserError("the aligner failed, see above") from error
    child.join()
    pairs = [(torch.from_numpy(one), torch.from_numpy(other)) for one, other in weights]
    aligned = aligned_words(own, pairs, None if certain is None else [torch.from_numpy(pair) for pair in certain])
    return aligned, {"CPU s": round(seconds), "MB": megabytes}
