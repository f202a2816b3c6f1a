"""What an aligner says of the gold sentences in both directions: trained networks and classic aligners alike."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from experiments.datasets.text.parallel_text import ParallelText
from experiments.files import UserError, user_errors
from experiments.nmt.align import aligned_pairs
from experiments.nmt.align_table.config import BaselineName
from experiments.nmt.align_table.em_aligners import train_em
from experiments.nmt.alignments import PairAlignment
from experiments.nmt.config import TranslationConfig
from experiments.nmt.data import load_text
from experiments.nmt.ibm_models import SentencePair
from experiments.nmt.linking import combine_pairs
from experiments.nmt.model import load_trained
from experiments.sequence.alignments import predicts_by_posterior
from pyro_attention.analysis import Alignment, GoldAlignment, agreement, hard_alignment, read_pharaoh

__all__ = ["BASELINES", "Aligned", "align_by_baseline", "align_by_networks", "aligned_words", "word_pairs"]

BASELINES: dict[BaselineName, str] = {
    "ibm1": "IBM Model 1",
    "ibm2": "IBM Model 2",
    "diagonal": "Model 2 with a diagonal prior (as fast_align)",
    "eflomal": "eflomal",
}


@dataclass(frozen=True)
class Aligned:
    """Alignments of the same sentence pairs in both directions; those of ``backward`` have the sides swapped."""

    forward: list[PairAlignment]
    backward: list[PairAlignment]

    def weights(self, kind: str) -> list[tuple[Tensor, Tensor]] | None:
        """Mean weights ``[M, N]`` and ``[N, M]`` of each pair: "posterior", "prior" or "exact"; None without them."""
        if kind == "posterior":
            return self.posterior
        all_pairs = [(getattr(one, kind), getattr(other, kind)) for one, other in self._pairs]
        found = [(one, other) for one, other in all_pairs if one is not None and other is not None]
        return found if len(found) == len(all_pairs) else None

    @property
    def posterior(self) -> list[tuple[Tensor, Tensor]]:
        """Mean posterior weights ``[M, N]`` and ``[N, M]`` of each pair."""
        return [(one.posterior.mean(0), other.posterior.mean(0)) for one, other in self._pairs]

    @property
    def entropies(self) -> list[Tensor]:
        """Entropy in nats of the source distribution of every target word, ``[M]`` of each pair.

        What a row lacks to one is the probability of no link, and not counted.
        """
        return [torch.special.entr(one.double()).sum(-1) for one, _ in self.posterior]

    @property
    def agreement(self) -> float:
        """F1 between the links of one direction and of the other: every word with its most probable one."""
        links = [[hard_alignment(part) for part in side] for side in zip(*self.posterior, strict=True)]
        return agreement({"forward": links[0], "backward": [one.transposed() for one in links[1]]})[0, 1].item()

    @cached_property
    def combined(self) -> list[PairAlignment]:
        """The mean of both directions: the probability of each link, with samples where there are any."""
        return [combine_pairs(*pair, combine="mean") for pair in self._pairs]

    @property
    def _pairs(self) -> list[tuple[PairAlignment, PairAlignment]]:
        return list(zip(self.forward, self.backward, strict=True))


def align_by_networks(
    forward: TranslationConfig, backward: TranslationConfig, *, split: str, exact: bool = False
) -> Aligned:
    """Align the pairs of a split by two runs; without the prior of Bayesian attention, which aligns nothing."""
    found = []
    for config in (forward, backward):
        trained = load_trained(Path(str(config.out)), device=config.device)
        pairs = aligned_pairs(trained, load_text(config, split), num_samples=config.num_samples, exact=exact)
        # it sees the source alone, and is the same for every target word
        found.append([replace(pair, prior=None) for pair in pairs] if predicts_by_posterior(trained) else pairs)
    return Aligned(*found)


def align_by_baseline(name: BaselineName, train: ParallelText, test: ParallelText, *, with_test: bool) -> Aligned:
    """Train a classic aligner in both directions, and align the test pairs.

    Args:
        name: The aligner.
        train: Its training text.
        test: The pairs to align.
        with_test: Train on their words too; eflomal, which aligns what it is trained on, always does.

    Raises:
        UserError: eflomal is not installed, or fails.
    """
    own, pairs = word_pairs(test), word_pairs(train)
    if name == "eflomal":
        return _eflomal([*pairs, *own], own)
    text = [*pairs, *own] if with_test else pairs
    forward = train_em(text, model=name)
    backward = train_em([(target, source) for source, target in text], model=name)
    return aligned_words(
        own,
        [forward.link_probabilities(source, target) for source, target in own],
        [backward.link_probabilities(target, source) for source, target in own],
    )


def word_pairs(text: ParallelText) -> list[SentencePair]:
    """The words of every pair."""
    return [(source.split(), target.split()) for source, target in zip(text.source, text.target, strict=True)]


def aligned_words(pairs: Sequence[SentencePair], forward: Sequence[Tensor], backward: Sequence[Tensor]) -> Aligned:
    """Weights ``[M, N]`` and ``[N, M]`` of every pair as alignments of its words."""
    found: tuple[list[PairAlignment], list[PairAlignment]] = ([], [])
    for (source, target), *weights in zip(pairs, forward, backward, strict=True):
        found[0].append(PairAlignment(list(source), list(target), None, weights[0].unsqueeze(0)))
        found[1].append(PairAlignment(list(target), list(source), None, weights[1].unsqueeze(0)))
    return Aligned(*found)


def _eflomal(text: Sequence[SentencePair], own: Sequence[SentencePair]) -> Aligned:
    """Links of eflomal as weights of 1; the last sentences of the text are those to align."""
    program = shutil.which("eflomal-align")
    if program is None:
        raise UserError("eflomal-align is not installed; pip install eflomal, or leave eflomal out of --baselines")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for side, file in enumerate(("source", "target")):
            (folder / file).write_text("".join(f"{' '.join(pair[side])}\n" for pair in text), encoding="utf-8")
        files = ["-s", "source", "-t", "target", "-f", "forward", "-r", "backward"]
        run = subprocess.run([program, *files], cwd=folder, capture_output=True, text=True, check=False)
        fault = run.stderr if run.returncode else ""
        if not fault and not (folder / "backward").is_file():
            fault = "it wrote no links of the other direction"
        if fault:
            raise UserError(f"eflomal-align failed: {' '.join(fault.split())[-500:]}; leave it out of --baselines")
        with user_errors(ValueError):
            links = [list(read_pharaoh(folder / file).values())[-len(own) :] for file in ("forward", "backward")]
    weights = [[_ones(gold, *map(len, pair)) for gold, pair in zip(side, own, strict=True)] for side in links]
    return aligned_words(own, weights[0], [matrix.mT for matrix in weights[1]])


def _ones(gold: GoldAlignment, num_source: int, num_target: int) -> Tensor:
    """Links as weights ``[M, N]``."""
    try:
        return Alignment(gold.sure, num_source, num_target).to_matrix().float()
    except ValueError as error:
        raise UserError(f"eflomal-align failed: {error}; leave it out of --baselines") from error
