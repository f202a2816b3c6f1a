"""How sure a network is of each word of a sentence, and how much of its doubt is about where to look."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from experiments.datasets.text.batches import Batch
from experiments.sequence.model import AnyTrained
from models.decoding import next_word_mixture
from pyro_attention.posterior.predictive import seeded


@dataclass(frozen=True)
class WordUncertainty:
    """Entropy of each word piece by source, in nats, ``[B, M]``: ``total = word + attention``."""

    total: Tensor  # entropy of the next piece, the attention averaged over
    word: Tensor  # mean entropy of the piece given the attention: what stays if one knew where to look
    attention: Tensor  # the rest, the mutual information of piece and attention, >= 0


@torch.no_grad()
def word_uncertainty(trained: AnyTrained, batch: Batch, *, num_samples: int = 100) -> WordUncertainty:
    r"""Split the predictive entropy of every word piece, :math:`H[y] = \mathrm{E}_w H[y \mid w] + I(y; w)`.

    Exact for alignments; over posterior samples for Bayesian attention, as
    :func:`pyro_attention.analysis.decompose_uncertainty`; without an attention part for soft attention. The words
    before each piece are taken as given.
    """
    model = trained.model.eval()
    inference = trained.inference(samples=num_samples if trained.is_random else 0)
    state, parts = model.start(model.encode(batch.source, batch.source_mask), batch.source_mask), []
    with seeded(trained.config.seed):
        for step in model.steps(state, batch.target_in):
            probs, weights = (part.double().exp() for part in next_word_mixture(model, step, inference))
            given = (weights * torch.special.entr(probs).sum(-1)).sum(-1)
            total = torch.special.entr((weights.unsqueeze(-1) * probs).sum(1)).sum(-1)
            parts.append((total, given, (total - given).clamp(min=0)))
    return WordUncertainty(*(torch.stack(part, 1).float() for part in zip(*parts, strict=True)))
