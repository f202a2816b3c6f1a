"""Options of the table of aligners."""

from dataclasses import dataclass
from typing import Literal

from jsonargparse.typing import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from experiments.datasets.names import ParallelName
from experiments.harness.options import Dropout, SweepOptions
from experiments.nmt.config import NormalizerName, TranslationOptions
from guides.names import SchemeName

__all__ = ["AblationName", "AlignTable", "BaselineName"]

BaselineName = Literal["ibm1", "ibm2", "diagonal", "eflomal"]
AblationName = Literal[
    "input_feed", "diagonal", "null_word", "words_from", "encoder", "prior_from", "jumps", "normalizer", "vocabulary",
    "posterior_from_prior",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class AlignTable(TranslationOptions, SweepOptions):
    """Train every inference scheme in both directions, and score its alignments on gold links beside classic aligners.

    Every scheme is trained from the beginning. What is chosen (how both directions are combined, and a threshold) is
    chosen for the even gold sentences on the odd ones and the other way round, in the same way for the baselines.

    Args:
        dataset: The sentence pairs, whose test pairs have gold links.
        source: Language on the source side of the links that are written; the networks are trained both ways.
        target: The other language.
        schemes: The schemes to train.
        ablations: Options of the scheme that is named by --ablated to change, one at a time: input_feed, diagonal,
            null_word, words_from (where it is both, summing alignments out takes many times longer), encoder,
            prior_from, jumps, normalizer (temporal or softmax), vocabulary (a third of the word pieces) and
            posterior_from_prior.
        ablated: The scheme.
        baselines: Aligners beside them: ibm1 and ibm2, diagonal (as fast_align), and eflomal where it is installed.
        baselines_see_test: The baselines are trained on the test sentences too, without links, as is their custom.
        seeds: Number of seeds.
        input_feed: What the decoder goes on with: the expected context, or none, the words alone.
        diagonal: Attention prefers source words at the place of the target word, as far as a trained number says.
        jumps: Attention prefers source words near that of the target word before, as in the hidden Markov model.
        null_word: Words may be aligned to NULL, which stands for no source word; no link is written then.
        normalizer: What attention is normalised over, see the training.
        words_from: What a word is read from: both decoder state and context, or the context alone.
        encoder: What stands for a source word: lstm, which tells of the words around it, or words, a map of its own
            vector alone.
        prior_from: What the prior of an alignment knows: words, those before and the source, or place, the places of
            both words alone; for soft attention and its like always words.
        posterior_from_prior: Inference networks start at q = p and learn what to add.
        embedding: Width of a word vector.
        dropout: Dropout of word vectors, inside the networks and before the output.
        learning_rate: Learning rate of Adam; halved after an epoch without a better validation loss.
        batch_size: Sentences of a batch.
        vocabulary: Word pieces at most, both languages together; fewer make words of more pieces.
        max_words: Most words of a training sentence; the baselines are trained on longer pairs too.
        max_epochs: Epochs at most.
        patience: Epochs without a better validation loss before training stops.
        kl_weight: Weight of the KL in weibull, lognormal and gamma.
        warm_start: Epochs of dirichlet at first without the inference network, which starts at q = p after them.
        coverage: Shares of the target words, the most certain ones, whose links are scored alone.
    """

    dataset: ParallelName = "europarl_de_en"
    source: str = "de"
    target: str = "en"
    schemes: tuple[SchemeName, ...] = (
        "soft", "marginal", "hard_enum", "categorical_enum", "categorical_sample", "weibull", "dirichlet",
    )  # fmt: skip
    ablations: tuple[AblationName, ...] = ()
    ablated: SchemeName = "categorical_enum"
    baselines: tuple[BaselineName, ...] = ("ibm1", "ibm2", "diagonal")
    baselines_see_test: bool = True
    seeds: PositiveInt = 3
    input_feed: Literal["expected", "none"] = "none"
    diagonal: bool = True
    null_word: bool = True
    normalizer: NormalizerName = "softmax"
    words_from: Literal["both", "context"] = "context"
    encoder: Literal["lstm", "words"] = "words"
    prior_from: Literal["words", "place"] = "place"
    jumps: bool = True
    posterior_from_prior: bool = False
    embedding: PositiveInt = 128
    hidden: PositiveInt = 128
    dropout: Dropout = 0.1
    max_words: PositiveInt = 40
    max_epochs: PositiveInt = 8
    patience: PositiveInt = 3
    kl_weight: NonNegativeFloat = 0.01
    warm_start: NonNegativeInt = 2
    vocabulary: PositiveInt = 4000
    batch_size: PositiveInt = 64
    learning_rate: PositiveFloat = 1e-2
    layers: PositiveInt = 1
    k_max: PositiveInt | None = None
    beam: PositiveInt = 1
    coverage: tuple[NonNegativeFloat, ...] = (0.5, 0.7, 0.9)

    @property
    def section(self) -> str:
        """Name of the table, and of its pictures; that of ablations is another."""
        return f"alignment-{self.dataset}{'-ablations' if self.ablations else ''}"
