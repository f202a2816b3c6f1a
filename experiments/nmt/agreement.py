r"""Translation networks of both directions as one aligner, trained side by side, apart or in agreement.

The gradient of the log evidence with respect to log p(piece | source piece) is the posterior of their link. In
agreement the product of the posteriors of both directions, brought to the sum of its own links, takes its place:

.. math::
    \frac{\partial}{\partial \theta} \to \sum_{ij} \bar\gamma_{ij}\,
    \frac{\partial \log p(t_j \mid s_i)}{\partial \theta}, \qquad
    \bar\gamma_{ij} = \gamma_{ij} \gamma'_{ji} \frac{\sum_i \gamma_{ij}}{\sum_i \gamma_{ij} \gamma'_{ji}}

The posteriors of NULL, of the end of the sentence and of jumps stay those of the direction.

Source: Liang, Taskar and Klein (2006), Alignment by Agreement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from experiments.datasets.text.batches import Batch, BucketSampler, EncodedText, batch_loader
from experiments.datasets.text.parallel_text import ParallelText
from experiments.datasets.text.vocabulary import train_tokenizer
from experiments.harness.training import OneCycleTraining, fit_batches
from experiments.nmt.aligners import Aligned
from experiments.nmt.alignments import aligned_pairs
from experiments.nmt.config import ALIGNER, TranslationConfig
from experiments.nmt.em_aligners import SentencePair
from experiments.nmt.model import Trained, build
from models.nmt import Translation
from pyro_attention import AlignmentELBO

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
    """Posteriors ``[B, 1 + N, M + 1]`` and ``[B, 1 + M, N + 1]``, NULL first and the end last, by both directions."""
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
