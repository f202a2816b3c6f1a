"""Options of the scripts on translation."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from jsonargparse.typing import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from experiments.cli import Command
from experiments.data.dataset_names import ParallelName
from experiments.data.text.word_rules import WordRule
from experiments.options import Device, Dropout, OptionError, StudyOptions, VocabularySize
from experiments.sequence.config import SequenceConfig
from guides.names import SchemeName
from guides.options import UsedBy


@dataclass(frozen=True, kw_only=True)
class TranslationConfig(SequenceConfig):
    """Train a translation model whose alignment is a latent variable, and evaluate it on the test sentences.

    Args:
        dataset: Data set of sentence pairs. toy is a generated corpus of German-like and English-like sentences; own is
            read from the folder given by --text.
        train_pairs: Number of training pairs, the first ones of the data set; all when omitted.
        test_pairs: Number of test pairs, the first ones of the data set; all when omitted.
        max_words: Largest number of words of a training sentence; longer pairs are left out and counted.
        vocabulary: Largest number of word pieces, of both languages together, at least 260.
        hidden: Width of encoder, decoder, attention and inference network; of two directions together.
        decoder_width: Width of the decoder; that of hidden when omitted.
        attention_width: Width of the network that computes scores; that of hidden when omitted.
        scores: Scores of the attention, mlp or bilinear.
        layers: Layers of encoder, decoder and inference network.
        k_max: Evaluate also with only this number of largest attention weights of each word.
        selective_pairs: Number of test pairs on which to measure whether uncertain translations are worse; 0 for none.
        out_of_domain: Data sets of the same languages. Measure whether the uncertainty of translations separates their
            test sentences from those of the data set; for --selective-pairs.
        text: Folder with your own text: train.SOURCE, train.TARGET, and the same for val and test, a sentence a line.
        source: Language to translate from, which is the ending of its files.
        target: Language to translate to, which is the ending of its files.
        lowercase: Convert all letters to lower case, also those of translations.
        tokenize: How sentences are divided into words. none takes words between blanks; nltk splits punctuation off,
            and joins it again in translations. When omitted, it is nltk for own text and none for other data sets.
        skip_bad: Leave out and count lines that are empty or not UTF-8. Otherwise such a line stops the training.
        normalizer: What attention weights are normalized over: softmax, the source words; temporal, the previous target
            words and then the source words; hybrid, a trained mixture of both.
        learning_rate: Learning rate of Adam; the largest one under the schedule one-cycle. The schedule plateau halves
            it after one epoch without a better validation loss.
    """

    dataset: Literal[ParallelName, "own"] = "toy"
    train_pairs: PositiveInt | None = None
    test_pairs: PositiveInt | None = None
    max_words: PositiveInt = 80
    vocabulary: VocabularySize = 1000
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
        if self.hidden % 2:
            raise OptionError(f"hidden is {self.hidden}, expected an even number, half of it for each direction")
        # set here, so that a saved configuration records how the text was divided
        if self.dataset == "own" and self.tokenize is None:
            object.__setattr__(self, "tokenize", "nltk")

    @property
    def words(self) -> WordRule:
        """Rule that divides sentences into words."""
        return self.tokenize or "none"


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Options of the search for translations.

    Args:
        beam: Live hypotheses of the beam search; the number of the training when omitted.
        k_max: Number of largest attention weights of each word that are used; all when omitted. The perplexity is
            computed with the same weights.
        sum_over: Number of most probable alignments of each word that the search sums over, if the scheme sums
            alignments out. all is exact and takes several times as long. The perplexity is always exact.
        max_length: Largest number of word pieces of a translation; longer ones are cut, and counted or named.
        length_penalty: Exponent of the length penalty; 1 when omitted, 0 is without a penalty.
    """

    beam: PositiveInt | None = None
    k_max: PositiveInt | None = None
    sum_over: PositiveInt | Literal["all"] = 5
    max_length: PositiveInt = 100
    length_penalty: NonNegativeFloat | None = None


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """Options of a command in which a trained network reads files.

    Args:
        run: Folder of a trained network.
        max_words: Largest number of words of a sentence of a file.
        device: Where to compute.
    """

    run: Path
    max_words: PositiveInt = 200
    device: Device = "auto"


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(FileOptions, SearchOptions):
    """Compute perplexity, BLEU and chrF of a trained network on its test text or on two files.

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
        out: File for the translations; beside the source file, with the target language as its ending, when omitted.
        overwrite: Replace files that exist.
    """

    file: Path
    out: Path | None = None
    overwrite: bool = False


@dataclass(frozen=True, kw_only=True)
class AlignConfig(FileOptions):
    """Align the words of two text files that translate each other line by line.

    With gold links, words are those between blanks, as the links count them. Otherwise sentences are divided into words
    as in the training.

    Args:
        source_file: File of the source sentences, UTF-8.
        target_file: File of their translations.
        out: Output folder; alignments when omitted. It gets alignments.txt (links in Pharaoh format, source first,
            words from 0) and alignments.html (a page with the first 200 pairs). If the text of the network was divided
            into words, it also gets words.SOURCE and words.TARGET, the words that the links refer to.
        overwrite: Replace files that exist.
        exact: Use the exact posterior instead of that of an inference network. Instead of soft or random weights, use
            the probability that a single source word explains the target word.
        gold: File of gold links to score against, source first, in Pharaoh format (i-j sure, ipj possible, words from
            0) or NAACL format (words from 1).
        table: Also write probabilities.tsv with prior, posterior and 90 % credible interval of every likely link.
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
    """Compute perplexities of trained networks on their test text under several readings of their attention.

    A reading is a way to predict words from attention weights, which may differ from the scheme of the training. Every
    network is read as soft attention, and as a latent alignment whose probabilities are the attention weights: summed
    out exactly, estimated by draws, or summed over a number of largest weights, renormalized (K-max). Networks of the
    same scheme with several seeds make one row.

    Args:
        runs: Folders of trained networks of one data set.
        k_max: Numbers of largest weights, a column each.
        draws: Number of drawn alignments of every word.
        pairs: Number of test pairs, the first ones; all when omitted.
        out: Folder for the report, report.md.
        overwrite: Replace a report that is there.
        results: Folder to publish the numbers in.
        device: Where to compute.
    """

    runs: tuple[Path, ...]
    k_max: tuple[PositiveInt, ...] = (1, 2, 5, 10)
    draws: PositiveInt = 10
    pairs: PositiveInt | None = None
    out: Path = Path("runs", "nmt", "readings")
    overwrite: bool = False
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
