"""Options of the scripts on pretraining."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from jsonargparse.typing import NonNegativeInt, OpenUnitInterval, PositiveFloat, PositiveInt

from experiments.cli import Command
from experiments.options import StudyOptions
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

    PAPER_SIZES: ClassVar[Sequence[str]] = ("bert_large",)


COMMANDS = {
    "train": Command(PretrainConfig, "experiments.pretrain.task:train"),
    "table": Command(StudyOptions, "experiments.pretrain.studies:table", training=PretrainConfig),
}
