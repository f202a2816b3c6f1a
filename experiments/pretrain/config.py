"""Options of the scripts on pretraining."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from jsonargparse.typing import ClosedUnitInterval, NonNegativeFloat, OpenUnitInterval, PositiveFloat, PositiveInt

from experiments.harness.options import BatchOptions, Dropout, SweepOptions
from guides.names import NormalizerName, WeightsSchemeName
from guides.options import SchemeOptions, UsedBy

__all__ = ["FinetuneConfig", "NetworkOptions", "NormalizerName", "PretrainConfig", "PretrainTableConfig"]


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """What a comparison has in common with its runs.

    Args:
        dataset: The sentences to pretrain on: toy is generated, english is that of Multi30k and Tatoeba.
        sentences: Training sentences at most; the same ones in every run.
        vocabulary: Word pieces at most.
        width: Width of a token's vector.
        layers: Layers.
        max_epochs: Epochs of pretraining.
        num_samples: Posterior samples of random attention for test scores.
    """

    dataset: Literal["toy", "english"] = "toy"
    sentences: PositiveInt = 30_000
    vocabulary: PositiveInt = 4000
    width: PositiveInt = 64
    layers: PositiveInt = 2
    max_epochs: PositiveInt = 8
    num_samples: PositiveInt = 10


@dataclass(frozen=True, kw_only=True)
class PretrainConfig(NetworkOptions, BatchOptions, SchemeOptions):
    """Pretrain a small Transformer encoder as a masked language model.

    Args:
        normalizer: How attention is normalised.
        hybrid_share: Share of doubly normalised attention that hybrid begins with.
        length: Pieces of a sentence at most, <s> and </s> among them; the rest is cut off.
        heads: Heads of a layer.
        dropout: Dropout of embeddings, attention weights and layers.
        masked: Share of the pieces to predict.
        learning_rate: Largest learning rate of Adam; it rises for a tenth of the steps and then falls, linearly.
        gradient_clip: Largest norm of the gradient of the loss per hidden piece.
        epsilon: A key whose weights from all queries sum to less is explained away.
        seed: Seed of the initial weights, the order of the batches, the hidden pieces and all noise.
    """

    normalizer: NormalizerName = "softmax"
    hybrid_share: ClosedUnitInterval = 0.5
    guide: WeightsSchemeName = "soft"
    kl_weight: NonNegativeFloat = 1e-3
    length: PositiveInt = 64
    heads: PositiveInt = 4
    dropout: Dropout = 0.1
    masked: OpenUnitInterval = 0.15
    batch_size: PositiveInt = 64
    learning_rate: PositiveFloat = 3e-3
    epsilon: PositiveFloat = 1e-8

    USED_BY: ClassVar[UsedBy] = {"hybrid_share": {"normalizer": ("hybrid",)}}


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig(BatchOptions):
    """Fine-tune a pretrained encoder on SST-2, all of it, with normaliser, guide and sizes as in its pretraining.

    The sentences are read from glue/SST-2 below the data root.

    Args:
        init_from: Folder of a finished run of experiments.pretrain.
        scratch: Begin with fresh weights instead, to see what the pretraining is worth; the vocabulary is that of the
            run all the same.
        train: Training sentences at most; the same ones in every run.
        pooling: What a sentence is classified by: the mean of its pieces or the first, <s>.
        kl_weight: Weight of the summed KL; as in the pretraining when omitted.
        learning_rate: Largest learning rate of Adam; it rises for a tenth of the steps and then falls, linearly.
        gradient_clip: Largest norm of the gradient of the loss per sentence.
        max_epochs: Number of epochs; the one with the best validation accuracy is kept.
        seed: Seed of the output layer (and of fresh weights), the order of the batches and all noise.
    """

    init_from: Path | None = None
    scratch: bool = False
    train: PositiveInt = 10_000
    pooling: Literal["mean", "first"] = "mean"
    kl_weight: NonNegativeFloat | None = None
    max_epochs: PositiveInt = 4
    num_samples: PositiveInt = 10


@dataclass(frozen=True, kw_only=True)
class PretrainTableConfig(NetworkOptions, SweepOptions):
    """Compare normalisers of attention, under every guide, in pretraining and after fine-tuning on SST-2.

    As a control, each is also trained on SST-2 from fresh weights. Each normaliser is compared with the first one under
    the same guide, seed by seed, and the first one with itself under the first guide.

    Args:
        normalizers: The normalisers.
        guides: Posteriors of the attention.
        seeds: Number of seeds.
        finetune_epochs: Epochs of fine-tuning.
        train: Sentences of SST-2 to fine-tune on, at most.
    """

    dataset: Literal["toy", "english"] = "english"
    normalizers: tuple[NormalizerName, ...] = ("softmax", "doubly_normalized", "hybrid")
    guides: tuple[WeightsSchemeName, ...] = ("soft", "weibull")
    seeds: PositiveInt = 3
    finetune_epochs: PositiveInt = 4
    train: PositiveInt = 10_000
