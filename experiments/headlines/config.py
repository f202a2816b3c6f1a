"""Options of the scripts on headlines."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from jsonargparse.typing import ClosedUnitInterval, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from experiments.cli import Command
from experiments.data.text.word_rules import WordRule
from experiments.options import Device, StudyOptions
from experiments.sequence.config import TextEncoderOptions


@dataclass(frozen=True, kw_only=True)
class HeadlineConfig(TextEncoderOptions):
    """Train a network that writes headlines, and evaluate it on the test texts.

    Args:
        train_file: File of JSON lines to train on, each with a text and its summaries; of the data root when omitted.
        val_file: The same to validate on.
        test_file: The same to test on.
        train_texts: Texts to train on, the first ones; all when omitted.
        test_texts: Texts to validate and to test on, the first ones; all when omitted.
        headline_length: Pieces of a headline at most, the end among them; the rest is cut off.
        decoder: Attention of the decoder, which softmax normalises: soft, or latent as that of the encoder.
        lead_epochs: Epochs at first in which the decoder learns to say the first words of the text.
        lead_words: Number of these words; the baseline says as many.
        beam: Live hypotheses of the beam search; 1 is greedy.
        length_penalty: Exponent of the length penalty of the beam search.
        no_repeat: The beam search repeats no so many word pieces in a row; null lets it.
        patience: Epochs without a better validation loss before training stops.
        batch_size: Texts of a batch.
    """

    train_file: Path | None = None
    val_file: Path | None = None
    test_file: Path | None = None
    train_texts: PositiveInt | None = None
    test_texts: PositiveInt | None = None
    width: PositiveInt = 128
    headline_length: PositiveInt = 32
    decoder: Literal["soft", "latent"] = "soft"
    hybrid_share: ClosedUnitInterval = 0.1
    lead_epochs: NonNegativeInt = 2
    lead_words: PositiveInt = 8
    beam: PositiveInt = 4
    length_penalty: NonNegativeFloat = 1.0
    no_repeat: PositiveInt | None = 3
    patience: PositiveInt = 20
    learning_rate: PositiveFloat = 2e-3
    max_epochs: PositiveInt = 9

    PAPER_SIZES: ClassVar[Sequence[str]] = ("gigaword",)


@dataclass(frozen=True, kw_only=True)
class SummarizeConfig:
    """Write headlines of a text file, a text a line; a line that is empty or has more than 1000 words gives an
    empty line.

    Headlines are in small letters with # for every digit, as in the training.

    Args:
        run: Folder of a trained network.
        file: The file, UTF-8.
        out: Where to write the headlines; beside the file, with the ending .headlines, when omitted.
        overwrite: Replace that file if it is there already.
        tokenize: How texts are divided into words: nltk splits punctuation off, and joins it again in headlines; none
            takes what stands between blanks, for text that is tokenized.
        device: Where to compute.
    """

    run: Path
    file: Path
    out: Path | None = None
    overwrite: bool = False
    tokenize: WordRule = "nltk"
    device: Device = "auto"


COMMANDS = {
    "train": Command(HeadlineConfig, "experiments.headlines.task:train"),
    "table": Command(StudyOptions, "experiments.headlines.studies:table", training=HeadlineConfig),
    "summarize": Command(SummarizeConfig, "experiments.headlines.task:summarize_file"),
}
