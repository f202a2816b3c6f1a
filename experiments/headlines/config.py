"""Options of the commands on headlines."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from jsonargparse.typing import ClosedUnitInterval, NonNegativeInt, PositiveFloat, PositiveInt

from experiments.cli import Command
from experiments.data.text.word_rules import WordRule
from experiments.options import Device, StudyOptions
from experiments.sequence.config import TextEncoderOptions


@dataclass(frozen=True, kw_only=True)
class HeadlineConfig(TextEncoderOptions):
    """Train a network that writes headlines, and evaluate it on the test texts.

    Args:
        train_file: File of JSON lines to train on, each with a text and its summaries; the file in the data root when
            omitted.
        val_file: File of JSON lines to validate on; the file in the data root when omitted.
        test_file: File of JSON lines to test on; the file in the data root when omitted.
        train_texts: Number of training texts, the first ones; all when omitted.
        headline_length: Largest number of word pieces of a headline, its end included; the rest is cut off.
        decoder: Attention of the decoder: soft, or latent as in the encoder. It is always normalized by softmax.
        lead_epochs: Number of first epochs in which the decoder learns to write the first words of a text.
        lead_words: Number of these words; the baseline writes as many.
        beam: Live hypotheses of the beam search; 1 is greedy.
        no_repeat: No sequence of this many word pieces occurs twice in a headline of the beam search; null allows
            repetitions.
        batch_size: Texts of a batch.
    """

    train_file: Path | None = None
    val_file: Path | None = None
    test_file: Path | None = None
    train_texts: PositiveInt | None = None
    width: PositiveInt = 128
    headline_length: PositiveInt = 32
    decoder: Literal["soft", "latent"] = "soft"
    hybrid_share: ClosedUnitInterval = 0.1
    lead_epochs: NonNegativeInt = 2
    lead_words: PositiveInt = 8
    beam: PositiveInt = 4
    no_repeat: PositiveInt | None = 3
    learning_rate: PositiveFloat = 2e-3
    max_epochs: PositiveInt = 9

    PAPER_SIZES: ClassVar[Sequence[str]] = ("gigaword",)


@dataclass(frozen=True, kw_only=True)
class SummarizeConfig:
    """Write headlines of the texts of a file, one text a line.

    A line that is empty or has more than 1000 words gives an empty line. Headlines are in lower case with # for every
    digit, as in the training.

    Args:
        run: Folder of a trained network.
        file: The file, UTF-8.
        out: File for the headlines; beside the text file, with the ending .headlines, when omitted.
        overwrite: Replace this file if it exists.
        tokenize: How texts are divided into words. nltk splits punctuation off, and joins it again in headlines; none
            takes words between blanks, for text that is tokenized.
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
