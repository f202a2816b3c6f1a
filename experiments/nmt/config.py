"""Options of the scripts on translation."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from jsonargparse.typing import NonNegativeInt, PositiveFloat, PositiveInt

from experiments.datasets.names import ParallelName
from experiments.datasets.text.word_rules import WordRule
from experiments.harness.cli import Command
from experiments.harness.options import Device, Dropout, HalfOpenUnitInterval, StudyOptions
from experiments.sequence.config import SequenceConfig
from guides.names import SchemeName, WeightsSchemeName
from guides.options import UsedBy

if TYPE_CHECKING:
    from guides.schemes import Scheme

ProbabilityCombineName = Literal["product", "geometric", "mean"]
CombineName = Literal[
    "intersection", "union", "grow-diag", "grow-diag-final", "grow-diag-final-and", ProbabilityCombineName
]

ALIGNER: Mapping[str, Any] = {
    "input_feed": "none", "diagonal": True, "null_word": True, "words_from": "context", "encoder": "words",
    "prior_from": "place", "jumps": True, "embedding": 128, "hidden": 128, "dropout": 0.1, "layers": 1,
    "vocabulary": 4000, "max_words": 40, "batch_size": 64, "learning_rate": 1e-2,
}  # fmt: skip
"""Options of a translation network that is to align."""


@dataclass(frozen=True, kw_only=True)
class TranslationConfig(SequenceConfig):
    """Train a translation model whose alignment is a latent variable, and evaluate it on the test sentences.

    Args:
        dataset: The sentence pairs: toy is a generated corpus of German-like and English-like sentences, own is read
            from the folder given by --text.
        train_pairs: Sentence pairs to train on, the first ones; all when omitted.
        test_pairs: Sentence pairs to test on, the first ones; all when omitted.
        test: Translate the test text and score the translations; a network that is only to align needs no test text.
        max_words: Most words of a training sentence; longer pairs are left out and counted.
        vocabulary: Word pieces at most, both languages together.
        hidden: Width of encoder, decoder, attention and inference network.
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
        diagonal: Attention prefers source words at the place of the target word, as far as a trained number says.
        words_from: What a word is read from: both decoder state and context, or the context alone, so that it is to be
            explained by what it is aligned to; alignments are then far cheaper to sum out.
        encoder: What stands for a source word: lstm, which tells of its neighbors, or words, a map of its own vector.
        prior_from: What the prior of an alignment knows: words, those before and the source, or place, the places of
            both words alone, as in IBM's Model 2, which aligns better; not for soft attention and its like.
        jumps: Attention prefers source words near that of the target word before, as trained weights of the jumps say
            and as in the hidden Markov model of alignments; for --words-from context.
        null_word: Words may be aligned to NULL, no source word: with a probability of .08 where there is --diagonal, as
            in fast_align, else as often as is trained.
        learning_rate: Of Adam, the largest one under the schedule one-cycle; on a plateau of one epoch it is halved.
    """

    dataset: Literal[ParallelName, "own"] = "toy"
    train_pairs: PositiveInt | None = None
    test_pairs: PositiveInt | None = None
    test: bool = True
    max_words: PositiveInt = 80
    vocabulary: PositiveInt = 1000
    hidden: PositiveInt = 64
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
    diagonal: bool = False
    words_from: Literal["both", "context"] = "both"
    encoder: Literal["lstm", "words"] = "lstm"
    prior_from: Literal["words", "place"] = "words"
    jumps: bool = False
    null_word: bool = False
    dropout: Dropout = 0.3
    learning_rate: PositiveFloat = 3e-3
    max_epochs: PositiveInt = 15

    USED_BY: ClassVar[UsedBy] = {"text": {"dataset": ("own",)}}

    def __post_init__(self) -> None:
        super().__post_init__()
        # written out, so that a saved configuration says how its own text was divided
        if self.dataset == "own" and self.tokenize is None:
            object.__setattr__(self, "tokenize", "nltk")

    def build_scheme(self, **changes: Any) -> "Scheme":
        """The inference scheme; attention weights need a prior that knows the words, and have no last alignment."""
        if (self.prior_from == "place" or self.jumps) and self.guide in get_args(WeightsSchemeName):
            what = "jumps" if self.jumps else "prior_from place"
            raise ValueError(
                f"guide {self.guide} does not go with {what}, which is for alignments, not for weights; "
                f"leave it out, or take a guide of alignments such as marginal"
            )
        return super().build_scheme(**changes)

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
    """

    beam: PositiveInt | None = None
    k_max: PositiveInt | None = None
    sum_over: PositiveInt | Literal["all"] = 5
    max_length: PositiveInt = 100


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
        reverse: Folder of a network trained in the other direction, to combine both.
        symmetrize: How to combine them: by their links, or by the product, the geometric mean (the best of all ways
            that choose nothing by gold links) or the mean of their probabilities.
        threshold: Choose every link with a larger probability. When omitted: the most probable source word of each
            target word, or for combined probabilities minimum Bayes risk under the alignment error rate.
        exact: Take the exact posterior in place of that of an inference network, or in place of soft or random weights
            the probability that a source word, by itself, explains the target word.
        gold: File of gold links, Pharaoh (i-j sure, ipj possible) or NAACL format, to score against.
        gold_index: What its first word counts as; 0 for Pharaoh and 1 for NAACL when omitted.
        gold_order: Which side stands on the left of its links.
        table: Also write probabilities.tsv: prior, posterior and 90 % credible interval of every likely link; with
            --reverse of both directions: the mean of their probabilities, or their product if links are chosen by it.
    """

    source_file: Path
    target_file: Path
    out: Path | None = None
    overwrite: bool = False
    reverse: Path | None = None
    symmetrize: CombineName = "geometric"
    threshold: HalfOpenUnitInterval | None = None
    exact: bool = False
    gold: Path | None = None
    gold_index: Literal[0, 1] | None = None
    gold_order: Literal["source-target", "target-source"] = "source-target"
    table: bool = False


@dataclass(frozen=True, kw_only=True)
class ClassicsConfig:
    """Compare aligners that need no network: IBM models, eflomal where it is installed, and pyro-align.

    Args:
        dataset: Sentence pairs with gold links in their test split, or drawn ones (:func:`drawn_text`).
        pairs: Number of training pairs; all when omitted.
        aligners: Rows of the table; when omitted all but networks, their mean with pyro-align, and cross-fitting.
        encoder: Folder with a multilingual encoder of Hugging Face, for one more row.
        data_root: Folder of the data sets.
        results: Folder to publish the table in.
    """

    dataset: Literal["toy", "europarl_de_en", "hansards_fr_en", "drawn-jumps", "drawn-order"] = "toy"
    pairs: PositiveInt | None = None
    aligners: tuple[str, ...] = ()
    encoder: Path | None = None
    data_root: Path | None = None
    results: Path | None = None


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
    "train": Command(TranslationConfig, "experiments.nmt.train:train"),
    "evaluate": Command(EvaluateConfig, "experiments.nmt.evaluation:evaluate_run"),
    "translate": Command(TranslateConfig, "experiments.nmt.evaluation:translate_file"),
    "align": Command(AlignConfig, "experiments.nmt.align:align_file"),
    "readings": Command(ReadingsConfig, "experiments.nmt.readings:compare"),
    "classics": Command(ClassicsConfig, "experiments.nmt.classics:compare"),
    "table": Command(StudyOptions, "experiments.nmt.studies:table", training=TranslationConfig),
}
