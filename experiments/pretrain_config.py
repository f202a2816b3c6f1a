"""Options of the pretraining script."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jsonargparse.typing import (
    ClosedUnitInterval,
    NonNegativeFloat,
    NonNegativeInt,
    OpenUnitInterval,
    PositiveFloat,
    PositiveInt,
)

from experiments.options import Dropout, RunOptions
from experiments.training import Precision
from guides import PriorName, WeightsSchemeName

__all__ = ["NormalizerName", "PretrainConfig"]

NormalizerName = Literal["softmax", "doubly_normalized", "hybrid"]


@dataclass(frozen=True, kw_only=True)
class PretrainConfig(RunOptions):
    """Pretrain a small Transformer encoder as a masked language model.

    Args:
        dataset: The sentences: toy is generated, english is that of Multi30k and Tatoeba.
        sentences: Training sentences at most; the same ones in every run.
        normalizer: How attention is normalised.
        hybrid_share: Share of doubly normalised attention that hybrid begins with.
        guide: Posterior of the attention; soft is ordinary deterministic attention.
        prior: fixed, or contextual (read off the keys).
        kl_weight: Weight of the KL, summed over all attention weights.
        concentration: Concentration of a Weibull or Gamma posterior; the larger, the less noise.
        scale: Standard deviation of a LogNormal posterior.
        vocabulary: Word pieces at most.
        length: Pieces of a sentence at most, <s> and </s> among them; the rest is cut off.
        width: Width of a token's vector.
        heads: Heads of a layer.
        layers: Layers.
        dropout: Dropout of embeddings, attention weights and layers.
        masked: Share of the pieces to predict.
        batch_size: Sentences of a batch.
        learning_rate: Largest learning rate of Adam; it rises for a tenth of the steps and then falls, linearly.
        gradient_clip: Largest norm of the gradient of the loss per hidden piece.
        max_epochs: Number of epochs.
        num_samples: Posterior samples of random attention for test scores.
        epsilon: A key whose weights from all queries sum to less is explained away.
        precision: Arithmetic of the training; evaluation is in 32 bits.
        seed: Seed of the initial weights, the order of the batches, the hidden pieces and all noise.
    """

    dataset: Literal["toy", "english"] = "toy"
    sentences: PositiveInt = 30_000  # type: ignore[valid-type]
    normalizer: NormalizerName = "softmax"
    hybrid_share: ClosedUnitInterval = 0.5  # type: ignore[valid-type]
    guide: WeightsSchemeName = "soft"
    prior: PriorName = "contextual"
    kl_weight: NonNegativeFloat = 1e-3  # type: ignore[valid-type]
    concentration: PositiveFloat = 10.0  # type: ignore[valid-type]
    scale: PositiveFloat = 0.1  # type: ignore[valid-type]
    vocabulary: PositiveInt = 4000  # type: ignore[valid-type]
    length: PositiveInt = 64  # type: ignore[valid-type]
    width: PositiveInt = 64  # type: ignore[valid-type]
    heads: PositiveInt = 4  # type: ignore[valid-type]
    layers: PositiveInt = 2  # type: ignore[valid-type]
    dropout: Dropout = 0.1  # type: ignore[valid-type]
    masked: OpenUnitInterval = 0.15  # type: ignore[valid-type]
    batch_size: PositiveInt = 64  # type: ignore[valid-type]
    learning_rate: PositiveFloat = 3e-3  # type: ignore[valid-type]
    gradient_clip: PositiveFloat = 1.0  # type: ignore[valid-type]
    max_epochs: PositiveInt = 8  # type: ignore[valid-type]
    num_samples: PositiveInt = 10  # type: ignore[valid-type]
    epsilon: PositiveFloat = 1e-8  # type: ignore[valid-type]
    precision: Precision = "32"
    seed: NonNegativeInt = 0  # type: ignore[valid-type]
