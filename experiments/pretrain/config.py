"""Options of the scripts on pretraining."""

from dataclasses import dataclass
from typing import Literal

from jsonargparse.typing import NonNegativeInt, OpenUnitInterval, PositiveFloat, PositiveInt

from experiments.cli import Command
from experiments.options import StudyOptions
from experiments.sequence.config import TextEncoderOptions


@dataclass(frozen=True, kw_only=True)
class PretrainConfig(TextEncoderOptions):
    """Pretrain a small Transformer encoder as a masked language model.

    Args:
        dataset: Sentences to pretrain on: toy generates them, english takes the English side of Multi30k and Tatoeba.
        sentences: Largest number of training sentences, the same ones in every run.
        masked: Share of the word pieces to hide and predict.
        max_epochs: Number of epochs of pretraining.
        gradient_clip: Largest norm of the gradient of the loss per hidden piece.
        finetune_epochs: Number of epochs of fine-tuning on SST-2 afterwards, and of a control training there from fresh
            weights; neither when 0.
        seed: Seed of the initial weights, the order of the batches, the hidden pieces and all noise.
    """

    dataset: Literal["toy", "english"] = "toy"
    sentences: PositiveInt = 30_000
    masked: OpenUnitInterval = 0.15
    batch_size: PositiveInt = 64
    learning_rate: PositiveFloat = 3e-3
    max_epochs: PositiveInt = 8
    finetune_epochs: NonNegativeInt = 0


COMMANDS = {
    "train": Command(PretrainConfig, "experiments.pretrain.task:train"),
    "table": Command(StudyOptions, "experiments.pretrain.studies:table", training=PretrainConfig),
}
