"""Options of the scripts on pretraining."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jsonargparse.typing import NonNegativeFloat, NonNegativeInt, OpenUnitInterval, PositiveFloat, PositiveInt

from experiments.harness.cli import Command
from experiments.harness.options import BatchOptions, StudyOptions
from experiments.sequence.config import TextEncoderOptions


@dataclass(frozen=True, kw_only=True)
class PretrainConfig(TextEncoderOptions):
    """Pretrain a small Transformer encoder as a masked language model.

    Args:
        dataset: The sentences to pretrain on: toy is generated, english is that of Multi30k and Tatoeba.
        sentences: Training sentences at most; the same ones in every run.
        masked: Share of the pieces to predict.
        max_epochs: Epochs of pretraining.
        gradient_clip: Largest norm of the gradient of the loss per hidden piece.
        finetune_epochs: Epochs of fine-tuning on SST-2 afterwards, and of a training there from fresh weights, as a
            control; none when 0.
        seed: Seed of the initial weights, the order of the batches, the hidden pieces and all noise.
    """

    dataset: Literal["toy", "english"] = "toy"
    sentences: PositiveInt = 30_000
    masked: OpenUnitInterval = 0.15
    batch_size: PositiveInt = 64
    learning_rate: PositiveFloat = 3e-3
    max_epochs: PositiveInt = 8
    finetune_epochs: NonNegativeInt = 0


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig(BatchOptions):
    """Fine-tune a pretrained encoder on SST-2, all of it, with normaliser, guide and sizes as in its pretraining.

    The sentences are read from glue/SST-2 below the data root, and classified by the mean of their pieces.

    Args:
        run: Folder of a finished pretraining.
        scratch: Begin with fresh weights instead, to see what the pretraining is worth; the vocabulary is that of the
            run all the same.
        train: Training sentences at most; the same ones in every run.
        kl_weight: Weight of the summed KL; as in the pretraining when omitted.
        learning_rate: Largest learning rate of Adam; it rises for a tenth of the steps and then falls, linearly.
        gradient_clip: Largest norm of the gradient of the loss per sentence.
        max_epochs: Number of epochs; the one with the best validation accuracy is kept.
        seed: Seed of the output layer (and of fresh weights), the order of the batches and all noise.
    """

    run: Path
    scratch: bool = False
    train: PositiveInt = 10_000
    kl_weight: NonNegativeFloat | None = None
    max_epochs: PositiveInt = 4
    num_samples: PositiveInt = 10


COMMANDS = {
    "train": Command(PretrainConfig, "experiments.pretrain.train:train"),
    "sst2": Command(FinetuneConfig, "experiments.pretrain.train:finetune"),
    "table": Command(StudyOptions, "experiments.pretrain.studies:table", training=PretrainConfig),
}
