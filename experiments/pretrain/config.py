"""Options of the scripts on pretraining."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from jsonargparse.typing import NonNegativeInt, OpenUnitInterval, PositiveFloat, PositiveInt

from experiments.cli import Command
from experiments.options import StudyOptions
from experiments.sequence.config import TextEncoderOptions
from guides.options import UsedBy


@dataclass(frozen=True, kw_only=True)
class PretrainConfig(TextEncoderOptions):
    """Pretrain a small Transformer encoder as a masked language model.

    Args:
        dataset: Sentences to pretrain on: toy generates them, english takes the English side of Multi30k and Tatoeba,
            squad the paragraphs of SQuAD 1.1, and own the file of --text.
        text: File of your own text, with a sentence on every line and an empty line between documents.
        sentences: Largest number of training sentences, the same ones in every run.
        masked: Share of the word pieces to hide and predict.
        sentence_order: Read pairs of consecutive segments, and predict whether they are swapped, too. Not for english,
            whose sentences do not belong together.
        max_epochs: Number of epochs of pretraining.
        gradient_clip: Largest norm of the gradient of the loss per hidden piece.
        finetune_epochs: Number of epochs of fine-tuning on SST-2 afterwards, and of a control training there from fresh
            weights; neither when 0.
        seed: Seed of the initial weights, the order of the batches, the hidden pieces and all noise.
    """

    dataset: Literal["toy", "english", "squad", "own"] = "toy"
    text: Path | None = None
    sentences: PositiveInt = 30_000
    masked: OpenUnitInterval = 0.15
    sentence_order: bool = False
    batch_size: PositiveInt = 64
    learning_rate: PositiveFloat = 3e-3
    max_epochs: PositiveInt = 8
    finetune_epochs: NonNegativeInt = 0

    USED_BY: ClassVar[UsedBy] = {"text": {"dataset": ("own",)}}
    PAPER_SIZES: ClassVar[Sequence[str]] = ("bert_large",)


COMMANDS = {
    "train": Command(PretrainConfig, "experiments.pretrain.task:train"),
    "table": Command(StudyOptions, "experiments.pretrain.studies:table", training=PretrainConfig),
}
