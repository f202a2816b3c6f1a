"""Aligners that need no network, and networks that agree, on text with gold links, also drawn: one table."""

from __future__ import annotations

import pickle
import resource
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from experiments.datasets.text.batches import Batch, BucketSampler, EncodedText, batch_loader, train_tokenizer
from experiments.datasets.text.parallel_text import ParallelText
from experiments.files import UserError, user_errors
from experiments.harness.cli import command_line
from experiments.harness.folder import write_environment
from experiments.harness.training import OneCycleTraining, fit_batches
from experiments.nmt.align import aligned_pairs
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
from experiments.nmt.config import ALIGNER, ClassicsConfig, TranslationConfig
from experiments.nmt.em_aligners import SentencePair
from experiments.nmt.model import Trained, build, load_text, word_pairs
from experiments.report.figures import reliability_panels, save
from experiments.report.report import Part, Report, source_of, write_results
from experiments.report.statistics import Difference, Estimate, Row
from models.nmt import Translation
from pyro_attention import AlignmentELBO
from pyro_attention.analysis import Alignment

Both = tuple[Batch, Batch]
_CONFIG = TranslationConfig(
    **ALIGNER, guide="marginal", schedule="one-cycle", max_epochs=3, num_samples=1, device="cpu", progress=False
)


class BothTexts(Dataset[Both]):
    """Batches of a text and the same pairs turned round."""

    def __init__(self, text: ParallelText, trained: Trained) -> None:
        self.sides = EncodedText(text, trained.vocabulary), EncodedText(text.turned(), trained.vocabulary)
        self.lengths = self.sides[0].lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, indices: Sequence[int]) -> Both:
        forward, backward = (side[indices] for side in self.sides)
        return forward, backward


class BothDirections(OneCycleTraining):
    """Trains the networks of both directions, apart or in agreement."""

    def __init__(self, forward: Trained, backward: Trained, *, agree: bool) -> None:
        super().__init__(
            forward.model, forward.guide, AlignmentELBO(max_plate_nesting=2), learning_rate=_CONFIG.learning_rate
        )
        self.backward_model, self.agree = backward.model, agree

    def observations(self, batch: Both) -> int:
        return sum(int(one.target_mask.sum()) for one in batch)

    def training_step(self, batch: Both, batch_idx: int) -> Tensor:  # noqa: ARG002
        evidence, tables = self._log_evidence(batch)
        loss = -evidence / self.observations(batch)
        self.log("loss", loss.detach(), on_step=False, on_epoch=True, batch_size=self.observations(batch))
        if self.agree:
            forward, backward = torch.autograd.grad(evidence, tables, retain_graph=True)
            agreed = agreement(forward, backward, batch)
            for table, own, other in zip(tables, (forward, backward), agreed, strict=True):
                loss = loss - ((other - own) * table).sum() / self.observations(batch)
        return loss

    def evaluate(self, batch: Both) -> dict[str, Tensor]:
        return {"loss": -self._log_evidence(batch)[0] / self.observations(batch)}

    def _log_evidence(self, batch: Both) -> tuple[Tensor, list[Tensor]]:
        found = [log_evidence(*one) for one in zip((self.objective.model, self.backward_model), batch, strict=True)]
        return found[0][0] + found[1][0], [table for _, table in found]


def log_evidence(model: Translation, batch: Batch) -> tuple[Tensor, Tensor]:
    """Log probability of the target, all alignments summed out, and of its pieces under each of them, ``[B, N, M]``."""
    state = model.start(model.encode(batch.source, batch.source_mask), batch.source_mask)
    log_f: Any = model.explained(state, batch.target_out, model.pieces(batch.source, batch.source_mask))
    log_prior = torch.stack([step.log_prior for step in model.steps(state, batch.target_in, log_f=log_f)], 2)
    return (log_prior + log_f).logsumexp(1).where(batch.target_mask, 0).sum(), log_f


def agreement(forward: Tensor, backward: Tensor, batch: Both) -> tuple[Tensor, Tensor]:
    r"""Posteriors ``[B, 1 + N, M + 1]`` and ``[B, 1 + M, N + 1]``, NULL first and the end last, by both directions.

    The gradient of the log evidence with respect to log p(piece | source piece) is the posterior of their link. In
    agreement the product of the posteriors of both directions, brought to the sum of its own links, takes its place:

    .. math::
        \frac{\partial}{\partial \theta} \to \sum_{ij} \bar\gamma_{ij}\,
        \frac{\partial \log p(t_j \mid s_i)}{\partial \theta}, \qquad
        \bar\gamma_{ij} = \gamma_{ij} \gamma'_{ji} \frac{\sum_i \gamma_{ij}}{\sum_i \gamma_{ij} \gamma'_{ji}}

    The posteriors of NULL, of the end of the sentence and of jumps stay those of the direction.

    Source: Liang, Taskar and Klein (2006), Alignment by Agreement.
    """
    real = batch[0].source_mask.unsqueeze(2) & batch[1].source_mask.unsqueeze(1)
    links = forward[:, 1:, :-1], backward[:, 1:, :-1].mT
    product, found = (links[0] * links[1]).where(real, 0), list[Tensor]()
    for own, side, dim in zip((forward, backward), links, (1, 2), strict=True):
        scale = side.where(real, 0).sum(dim, keepdim=True) / product.sum(dim, keepdim=True).clamp_min(1e-30)
        agreed = (product * scale).where(real, side)
        found.append(own.clone())
        found[-1][:, 1:, :-1] = agreed if dim == 1 else agreed.mT
    return found[0], found[1]


def network_align(text: Sequence[SentencePair], own: Sequence[SentencePair], *, agree: bool) -> Aligned:
    """Alignments of the pairs to align, which stand last in the text; see ``Align``."""
    short = [pair for pair in text if max(map(len, pair)) <= _CONFIG.max_words]
    train, test = (_parallel(pairs) for pairs in (short, own))
    vocabulary = train_tokenizer([*train.source, *train.target], size=_CONFIG.vocabulary)
    forward, backward = (build(replace(_CONFIG, seed=seed), vocabulary) for seed in (0, 1))
    data, val = (BothTexts(one, forward) for one in (train, test))
    samplers = (
        BucketSampler(data.lengths, sentences=_CONFIG.batch_size),
        BucketSampler(val.lengths, sentences=_CONFIG.batch_size, shuffle=False),
    )
    module = BothDirections(forward, backward, agree=agree)
    with TemporaryDirectory() as folder:  # nothing is chosen by the validation loss
        loaders = batch_loader(data, samplers[0]), batch_loader(val, samplers[1])
        fit_batches(_CONFIG, module, *loaders, folder=Path(folder), patience=_CONFIG.max_epochs, keep="last")
    return Aligned(aligned_pairs(forward, test, num_samples=1), aligned_pairs(backward, test.turned(), num_samples=1))


def _parallel(pairs: Sequence[SentencePair]) -> ParallelText:
    source, target = ([" ".join(words) for words in side] for side in zip(*pairs, strict=True))
    return ParallelText(source, target, "text", ("source", "target"))


DrawnName = Literal["drawn-jumps", "drawn-order"]
_WORDS, _TRANSLATIONS, _SHARE = 3000, 3, 0.1  # share: of words without a link, and others
_LENGTHS = (4, 20)
_JUMPS = {-1: 0.03, 0: 0.2, 1: 0.55, 2: 0.11, 3: 0.04}  # about those that an aligner learns of the Hansards
_FAR = 0.01  # of every other jump
_TEST = 1000  # pairs to test on
Sources = list[int]  # of every target word its source word, -1 without one


def drawn_text(name: DrawnName, pairs: int) -> tuple[ParallelText, ParallelText]:
    """Pairs to train on, and pairs to test on.

    Words follow Zipf's law. Every source word has three translations, whose probabilities are drawn from Dirichlet(1);
    a target word without a source word is drawn by the frequencies of the words. Of ``drawn-jumps`` a tenth of the
    target words have no source word, and jumps from one source word to the next are those of a hidden Markov model. In
    ``drawn-order`` the source words come one after the other, up to one place away from their order; a tenth each is
    left out, has two target words, or has a target word without a source word behind it.
    """
    random = np.random.default_rng(0)
    share = (1 / np.arange(1, _WORDS + 1)).cumsum()
    share /= share[-1]
    translations = random.permuted(np.tile(np.arange(_WORDS), (_TRANSLATIONS, 1)), axis=1).T
    chances = random.dirichlet(np.ones(_TRANSLATIONS), _WORDS).cumsum(1)
    align: Callable[[np.random.Generator, int], Sources] = _jumps if name == "drawn-jumps" else _order
    sides, links = (list[str](), list[str]()), list[Alignment]()
    for _ in range(pairs + _TEST):
        source: list[int] = share.searchsorted(random.random(random.integers(*_LENGTHS, endpoint=True))).tolist()
        places = align(random, len(source))
        target = list[int]()
        for word in (source[place] if place >= 0 else -1 for place in places):
            drawn = random.random()
            chosen = min(chances[word].searchsorted(drawn), _TRANSLATIONS - 1)
            target.append(int(share.searchsorted(drawn) if word < 0 else translations[word, chosen]))
        for side, words, letter in zip(sides, (source, target), "st", strict=True):
            side.append(" ".join(f"{letter}{word}" for word in words))
        found = frozenset((place, j) for j, place in enumerate(places) if place >= 0)
        links.append(Alignment(found, len(source), len(target)))
    text = ParallelText(*sides, name, ("source", "target"), links)
    return text.first(pairs), text.chosen(range(pairs, pairs + _TEST))


def _jumps(random: np.random.Generator, num_source: int) -> Sources:
    last, found = -1, Sources()
    for _ in range(max(1, num_source + int(random.integers(-2, 2, endpoint=True)))):
        if random.random() < _SHARE:
            found.append(-1)
            continue
        weights = np.array([_JUMPS.get(place - last, _FAR) for place in range(num_source)]).cumsum()
        last = int(weights.searchsorted(random.random() * weights[-1]))
        found.append(last)
    return found


def _order(random: np.random.Generator, num_source: int) -> Sources:
    found = Sources()
    for place in np.argsort(np.arange(num_source) + random.uniform(0, 2, num_source)):
        dropped, doubled, added = random.random(3) < _SHARE
        found += [int(place)] * (int(not dropped) * (1 + int(doubled))) + [-1] * int(added)
    return found or [-1]


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
    of_mean = ("pyro-align", _NETWORKS[-1])
    aligners[_MEAN] = lambda _, own: _mean([known[name] for name in of_mean], own)
    names = config.aligners or tuple(name for name in aligners if name not in _BY_NAME)
    if unknown := [name for name in names if name not in aligners]:
        raise UserError(f"aligners has {unknown[0]!r}, expected some of {', '.join(aligners)}")
    if _MEAN in names and not {*of_mean} <= {*names[: names.index(_MEAN)]}:
        raise UserError(f"aligners has {_MEAN!r}, expected {' and '.join(of_mean)} ahead of it; name them too")
    for name in names:
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
    shown = {name: certain[name] for name in certain if name.startswith("pyro-align") or name == votes}
    diagram = reliability_panels(shown, confidence="probability of the link", right="right")
    pictures = folder if config.results is None else config.results / "pictures"
    picture = save(diagram, pictures / f"{name}-calibration.png")
    parts = [Part("", said, list(found.values())), Part("Calibration of the written links", picture=picture)]
    report = Report(title, name, parts)
    print(report.terminal())
    if config.results is not None:
        write_environment(folder, torch.device("cpu"))
        command = command_line("experiments.nmt classics", config)
        command += " --encoder FOLDER" * (config.encoder is not None)
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
        usage, programs = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        seconds = sum(one.ru_utime + one.ru_stime for one in (usage, programs)) - before.ru_utime - before.ru_stime
        megabytes = "" if programs.ru_maxrss else round(usage.ru_maxrss / 1024)  # that of a program is not told apart
        # as bytes: torch would share the memory of what a pipe sends
        send.send_bytes(pickle.dumps((aligned, {"CPU s": round(seconds), "MB": megabytes})))

    child = context.Process(target=work)
    child.start()
    send.close()
    try:
        found: tuple[Aligned, Row] = pickle.loads(receive.recv_bytes())
    except EOFError as error:
        raise UserError("the aligner failed, see above") from error
    child.join()
    return found
