"""Options of the scripts on pretraining."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jsonargparse.typing import (
    ClosedUnitInterval,
    NonNegativeFloat,
    NonNegativeInt,
    OpenUnitInterval,
    PositiveFloat,
    PositiveInt,
)

from experiments.harness.options import Dropout, Precision, RunOptions, SweepOptions
from guides.names import PriorName, WeightsSchemeName

__all__ = ["FinetuneConfig", "NormalizerName", "PretrainConfig", "PretrainTableConfig"]

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
    sentences: PositiveInt = 30_000
    normalizer: NormalizerName = "softmax"
    hybrid_share: ClosedUnitInterval = 0.5
    guide: WeightsSchemeName = "soft"
    prior: PriorName = "contextual"
    kl_weight: NonNegativeFloat = 1e-3
    concentration: PositiveFloat = 10.0
    scale: PositiveFloat = 0.1
    vocabulary: PositiveInt = 4000
    length: PositiveInt = 64
    width: PositiveInt = 64
    heads: PositiveInt = 4
    layers: PositiveInt = 2
    dropout: Dropout = 0.1
    masked: OpenUnitInterval = 0.15
    batch_size: PositiveInt = 64
    learning_rate: PositiveFloat = 3e-3
    gradient_clip: PositiveFloat = 1.0
    max_epochs: PositiveInt = 8
    num_samples: PositiveInt = 10
    epsilon: PositiveFloat = 1e-8
    precision: Precision = "32"
    seed: NonNegativeInt = 0


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig(RunOptions):
    """Fine-tune a pretrained encoder, all of it, with normaliser, guide and sizes as in its pretraining.

    Args:
        dataset: The task; sst2 is read from glue/SST-2 below the data root.
        init_from: Folder of a finished run of experiments.pretrain.
        scratch: Begin with fresh weights instead, to see what the pretraining is worth; the vocabulary is that of the
            run all the same.
        train: Training sentences at most; the same ones in every run.
        pooling: What a sentence is classified by: the mean of its pieces or the first, <s>.
        kl_weight: Weight of the summed KL; as in the pretraining when omitted.
        batch_size: Sentences of a batch.
        learning_rate: Largest learning rate of Adam; it rises for a tenth of the steps and then falls, linearly.
        gradient_clip: Largest norm of the gradient of the loss per sentence.
        max_epochs: Number of epochs; the one with the best validation accuracy is kept.
        num_samples: Posterior samples of random attention for test scores.
        precision: Arithmetic of the training; evaluation is in 32 bits.
        seed: Seed of the output layer (and of fresh weights), the order of the batches and all noise.
    """

    dataset: Literal["sst2"]
    init_from: Path | None = None
    scratch: bool = False
    train: PositiveInt = 10_000
    pooling: Literal["mean", "first"] = "mean"
    kl_weight: NonNegativeFloat | None = None
    batch_size: PositiveInt = 32
    learning_rate: PositiveFloat = 1e-3
    gradient_clip: PositiveFloat = 1.0
    max_epochs: PositiveInt = 4
    num_samples: PositiveInt = 10
    precision: Precision = "32"
    seed: NonNegativeInt = 0


@dataclass(frozen=True, kw_only=True)
class PretrainTableConfig(SweepOptions):
    """Compare normalisers of attention, under every guide, in pretraining and after fine-tuning on SST-2.

    As a control, each is also trained on SST-2 from fresh weights. Each normaliser is compared with the first one under
    the same guide, seed by seed, and the first one with itself under the first guide.

    Args:
        dataset: The sentences to pretrain on: toy is generated, english is that of Multi30k and Tatoeba.
        normalizers: The normalisers.
        guides: Posteriors of the attention.
        seeds: Number of seeds.
        sentences: Training sentences at most.
        vocabulary: Word pieces at most.
        width: Width of a token's vector.
        layers: Layers.
        max_epochs: Epochs of pretraining.
        finetune_epochs: Epochs of fine-tuning.
        train: Sentences of SST-2 to fine-tune on, at most.
        num_samples: Posterior samples of random attention for test scores.
    """

    dataset: Literal["toy", "english"] = "english"
    normalizers: tuple[NormalizerName, ...] = ("softmax", "doubly_normalized", "hybrid")
    guides: tuple[WeightsSchemeName, ...] = ("soft", "weibull")
    seeds: PositiveInt = 3
    sentences: PositiveInt = 30_000
    vocabulary: PositiveInt = 4000
    width: PositiveInt = 64
    layers: PositiveInt = 2
    max_epochs: PositiveInt = 8
    finetune_epochs: PositiveInt = 4
    train: PositiveInt = 10_000
    num_samples: PositiveInt = 10
