"""Options of the scripts on translation."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from jsonargparse.typing import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from experiments.cli import Command
from experiments.data.names import ParallelName
from experiments.data.text.word_rules import WordRule
from experiments.options import Device, Dropout, StudyOptions
from experiments.sequence.config import SequenceConfig
from guides.names import SchemeName
from guides.options import UsedBy


@dataclass(frozen=True, kw_only=True)
class TranslationConfig(SequenceConfig):
    """Train a translation model whose alignment is a latent variable, and evaluate it on the test sentences.

    Args:
        dataset: The sentence pairs: toy is a generated corpus of German-like and English-like sentences, own is read
            from the folder given by --text.
        train_pairs: Sentence pairs to train on, the first ones; all when omitted.
        test_pairs: Sentence pairs to test on, the first ones; all when omitted.
        max_words: Most words of a training sentence; longer pairs are left out and counted.
        vocabulary: Word pieces at most, both languages together.
        hidden: Width of encoder, decoder, attention and inference network; of two directions together.
        decoder_width: Width of the decoder; that of hidden when omitted.
        attention_width: Width of the network that scores; that of hidden when omitted.
        scores: Scores of the attention, mlp or bilinear.
        layers: Layers of encoder, decoder and inference network.
        k_max: Evaluate also with so many largest weights of each word.
        selective_pairs: Measure on so many test pairs whether uncertainty tells good translations from bad ones.
        out_of_domain: Data sets of the same languages whose test sentences it is to tell; for --selective-pairs.
        text: Folder of one's own text: train.SOURCE, train.TARGET, and the same for val and test, a sentence a line.
        source: Language to translate from, the ending of its files.
        target: Language to translate to.
        lowercase: Make all letters small, in translations too.
        tokenize: How sentences are divided into words: none takes what stands between blanks, nltk splits punctuation
            off (and joins it again in translations); nltk for own text when omitted, none for the others.
        skip_bad: Leave out, and count, lines that are empty or not UTF-8, instead of stopping.
        normalizer: What attention is normalised over: softmax, the source words; temporal, the target words before and
            then the source words; hybrid, a trained mixture of both.
        learning_rate: Of Adam, the largest one under the schedule one-cycle; on a plateau of one epoch it is halved.
    """

    dataset: Literal[ParallelName, "own"] = "toy"
    train_pairs: PositiveInt | None = None
    test_pairs: PositiveInt | None = None
    max_words: PositiveInt = 80
    vocabulary: PositiveInt = 1000
    hidden: PositiveInt = 64
    decoder_width: PositiveInt | None = None
    attention_width: PositiveInt | None = None
    scores: Literal["mlp", "bilinear"] = "mlp"
    layers: PositiveInt = 2
    k_max: PositiveInt | None = 5
    selective_pairs: NonNegativeInt = 0
    out_of_domain: tuple[ParallelName, ...] = ()
    text: Path | None = None
    source: str = "de"
    target: str = "en"
    lowercase: bool = True
    tokenize: WordRule | None = None
    skip_bad: bool = False
    guide: SchemeName = "categorical_enum"
    normalizer: Literal["softmax", "temporal", "hybrid"] = "softmax"
    dropout: Dropout = 0.3
    learning_rate: PositiveFloat = 3e-3
    max_epochs: PositiveInt = 15

    USED_BY: ClassVar[UsedBy] = {"text": {"dataset": ("own",)}, "attention_width": {"scores": ("mlp",)}}
    PAPER_SIZES: ClassVar[Sequence[str]] = ("iwslt14",)

    def __post_init__(self) -> None:
        super().__post_init__()
        # written out, so that a saved configuration says how its own text was divided
        if self.dataset == "own" and self.tokenize is None:
            object.__setattr__(self, "tokenize", "nltk")

    @property
    def words(self) -> WordRule:
        """How sentences are divided into words."""
        return self.tokenize or "none"


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How a trained network searches for translations.

    Args:
        beam: Live hypotheses of the beam search; as in training when omitted.
        k_max: Keep so many largest weights of each word; of all when omitted. Perplexity follows, unlike for sum_over.
        sum_over: While searching, sum over so many most probable alignments of each word, where the scheme sums them
            out; all is exact, and takes several times as long.
        max_length: Most word pieces of a translation; longer ones are cut, and counted or named.
        length_penalty: Exponent of the length penalty; as in training when omitted, 0 is without.
    """

    beam: PositiveInt | None = None
    k_max: PositiveInt | None = None
    sum_over: PositiveInt | Literal["all"] = 5
    max_length: PositiveInt = 100
    length_penalty: NonNegativeFloat | None = None


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """A trained network that reads files.

    Args:
        run: Folder of a trained network.
        max_words: Most words of a sentence of a file.
        device: Where to compute.
    """

    run: Path
    max_words: PositiveInt = 200
    device: Device = "auto"


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(FileOptions, SearchOptions):
    """Perplexity, BLEU and chrF of a trained network on its test text or on two files, with options of one's own.

    Args:
        source_file: File of sentences to translate, UTF-8; the test text when omitted.
        target_file: File of their translations.
    """

    source_file: Path | None = None
    target_file: Path | None = None


@dataclass(frozen=True, kw_only=True)
class TranslateConfig(FileOptions, SearchOptions):
    """Translate a text file, a sentence a line; a line that is empty or too long gives an empty line.

    Args:
        file: The file, UTF-8.
        out: Where to write the translations; beside the file, with the language as its ending, when omitted.
        overwrite: Replace files that are there already.
    """

    file: Path
    out: Path | None = None
    overwrite: bool = False


@dataclass(frozen=True, kw_only=True)
class AlignConfig(FileOptions):
    """Align the words of two text files that translate each other line by line.

    With gold links the words are what stands between blanks, as the links count them; else as in training.

    Args:
        source_file: File of the source sentences, UTF-8.
        target_file: File of their translations.
        out: Folder for alignments.txt (Pharaoh format, words from 0, source first), alignments.html, a page to look at
            the first 200 pairs with, and, where the network's text was divided into words, words.SOURCE and
            words.TARGET, which the links count; alignments when omitted.
        overwrite: Replace files that are there already.
        exact: Take the exact posterior in place of that of an inference network, or in place of soft or random weights
            the probability that a source word, by itself, explains the target word.
        gold: File of gold links, source first, to score against: Pharaoh (i-j sure, ipj possible, words from 0) or
            NAACL format (words from 1).
        table: Also write probabilities.tsv: prior, posterior and 90 % credible interval of every likely link.
    """

    source_file: Path
    target_file: Path
    out: Path | None = None
    overwrite: bool = False
    exact: bool = False
    gold: Path | None = None
    table: bool = False


@dataclass(frozen=True, kw_only=True)
class ReadingsConfig:
    """Perplexities of trained networks on their test text, whose attention is read in other ways than in training.

    Any network is read as soft attention, and as a latent alignment whose attention weights are probabilities: summed
    exactly, estimated by draws, or summed over so many largest weights, renormalized (K-max). Networks of the same
    scheme, of several seeds, make one row.

    Args:
        runs: Folders of trained networks, of one data set.
        k_max: Numbers of largest weights.
        draws: Drawn alignments of every word.
        pairs: So many test pairs, the first; all when omitted.
        out: Folder for the report.
        results: Folder for the numbers that are published.
        device: Where to compute.
    """

    runs: tuple[Path, ...]
    k_max: tuple[PositiveInt, ...] = (1, 2, 5, 10)
    draws: PositiveInt = 10
    pairs: PositiveInt | None = None
    out: Path = Path("runs", "nmt", "readings")
    results: Path | None = None
    device: Device = "auto"


COMMANDS = {
    "train": Command(TranslationConfig, "experiments.nmt.task:train"),
    "evaluate": Command(EvaluateConfig, "experiments.nmt.commands:evaluate_run"),
    "translate": Command(TranslateConfig, "experiments.nmt.commands:translate_file"),
    "align": Command(AlignConfig, "experiments.nmt.commands:align_file"),
    "readings": Command(ReadingsConfig, "experiments.nmt.readings:compare"),
    "table": Command(StudyOptions, "experiments.nmt.studies:table", training=TranslationConfig),
}
