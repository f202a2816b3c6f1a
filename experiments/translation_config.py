"""Options of the translation script."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jsonargparse.typing import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from experiments.datasets.word_rules import WordRule
from experiments.options import Dropout, RunOptions
from experiments.training import Precision
from guides import PriorName, SchemeName

__all__ = ["NormalizerName", "TextName", "TranslationConfig"]

NormalizerName = Literal["softmax", "temporal", "hybrid"]
TextName = Literal["toy", "multi30k", "iwslt14", "tatoeba", "own"]


@dataclass(frozen=True, kw_only=True)
class TranslationConfig(RunOptions):
    """Train a translation model whose alignment is a latent variable, and evaluate it on the test sentences.

    Args:
        dataset: The sentence pairs: toy is generated, own is read from the folder given by --text.
        text: Folder of one's own text: train.SOURCE, train.TARGET, and the same for val and test, a sentence a line.
        source: Language to translate from, the ending of its files.
        target: Language to translate to.
        lowercase: Make all letters small, in translations too.
        tokenize: How sentences are divided into words: none takes what stands between blanks, nltk splits punctuation
            off (and joins it again in translations); nltk for own text when omitted, none for the others.
        max_words: Most words of a training sentence; longer pairs are left out and counted.
        train_pairs: Train on so many first pairs; on all when omitted.
        test_pairs: Test on so many first pairs; on all when omitted.
        skip_bad: Leave out, and count, lines that are empty or not UTF-8, instead of stopping.
        guide: Inference scheme; soft is ordinary deterministic attention.
        prior: fixed, or contextual (read off the source words); for weibull, lognormal and gamma.
        kl_weight: Weight of the KL; schemes that sum alignments out have weight 1.
        concentration: Concentration of a Weibull or Gamma posterior; the larger, the less noise.
        scale: Standard deviation of a LogNormal posterior.
        prior_rate: Rate of a Gamma prior.
        prior_scale: Standard deviation of a LogNormal prior.
        temperature: Temperature of the relaxed alignments of gumbel.
        particles: Samples of wake_sleep and iwae.
        input_feed: What the decoder is fed with: the expected context, or that of the drawn alignment (not for schemes
            with an inference network or that sum alignments out).
        normalizer: What attention is normalised over: softmax, the source words; temporal, the target words before and
            then the source words; hybrid, a trained mixture of both.
        warm_start: Epochs at first without the inference network: q = p, Jensen's bound; for dirichlet.
        posterior_from_prior: The inference network starts at q = p and learns what to add; for init_from.
        init_from: Folder of a finished run whose network (not its guide) to start from, and whose vocabulary to use.
        vocabulary: Word pieces at most, both languages together.
        embedding: Width of a word vector.
        hidden: Width of encoder, decoder, attention and inference network.
        layers: Layers of encoder, decoder and inference network.
        init_range: Initial weights are uniform up to so much, as in the paper (0.1); PyTorch's own when omitted.
        dropout: Dropout of word vectors, between layers and before the output.
        batch_size: Sentence pairs of a batch.
        learning_rate: Learning rate of Adam; halved after an epoch without a better validation loss.
        gradient_clip: Largest norm of the gradient of the loss per word.
        max_epochs: Epochs at most.
        patience: Epochs without a better validation loss before training stops.
        num_samples: Posterior samples of the attention for perplexities and alignments.
        k_max: Evaluate also with so many largest weights of each word.
        beam: Live hypotheses of the beam search.
        length_penalty: Exponent of the length penalty of the beam search.
        no_repeat: The beam search repeats no so many word pieces in a row; it may when omitted.
        precision: Arithmetic of the training; evaluation is in 32 bits.
        seed: Seed of the initial weights, the order of the batches and all noise.
    """

    dataset: TextName = "toy"
    text: Path | None = None
    source: str = "de"
    target: str = "en"
    lowercase: bool = True
    tokenize: WordRule | None = None
    max_words: PositiveInt = 80  # type: ignore[valid-type]
    train_pairs: PositiveInt | None = None  # type: ignore[valid-type]
    test_pairs: PositiveInt | None = None  # type: ignore[valid-type]
    skip_bad: bool = False
    guide: SchemeName = "categorical_enum"
    prior: PriorName = "contextual"
    kl_weight: NonNegativeFloat = 1.0  # type: ignore[valid-type]
    concentration: PositiveFloat = 10.0  # type: ignore[valid-type]
    scale: PositiveFloat = 0.1  # type: ignore[valid-type]
    prior_rate: PositiveFloat = 1.0  # type: ignore[valid-type]
    prior_scale: PositiveFloat = 1.0  # type: ignore[valid-type]
    temperature: PositiveFloat = 0.5  # type: ignore[valid-type]
    particles: PositiveInt = 5  # type: ignore[valid-type]
    input_feed: Literal["expected", "sampled"] = "expected"
    normalizer: NormalizerName = "softmax"
    warm_start: NonNegativeInt = 0  # type: ignore[valid-type]
    posterior_from_prior: bool = False
    init_from: Path | None = None
    vocabulary: PositiveInt = 1000  # type: ignore[valid-type]
    embedding: PositiveInt = 64  # type: ignore[valid-type]
    hidden: PositiveInt = 64  # type: ignore[valid-type]
    layers: PositiveInt = 2  # type: ignore[valid-type]
    init_range: PositiveFloat | None = None  # type: ignore[valid-type]
    dropout: Dropout = 0.3  # type: ignore[valid-type]
    batch_size: PositiveInt = 32  # type: ignore[valid-type]
    learning_rate: PositiveFloat = 3e-3  # type: ignore[valid-type]
    gradient_clip: PositiveFloat = 1.0  # type: ignore[valid-type]
    max_epochs: PositiveInt = 15  # type: ignore[valid-type]
    patience: PositiveInt = 5  # type: ignore[valid-type]
    num_samples: PositiveInt = 20  # type: ignore[valid-type]
    k_max: PositiveInt | None = 5  # type: ignore[valid-type]
    beam: PositiveInt = 5  # type: ignore[valid-type]
    length_penalty: NonNegativeFloat = 1.0  # type: ignore[valid-type]
    no_repeat: PositiveInt | None = None  # type: ignore[valid-type]
    precision: Precision = "32"
    seed: NonNegativeInt = 0  # type: ignore[valid-type]

    def __post_init__(self) -> None:
        super().__post_init__()
        # written out, so that a saved configuration says how its own text was divided
        if self.dataset == "own" and self.tokenize is None:
            object.__setattr__(self, "tokenize", "nltk")

    @property
    def words(self) -> WordRule:
        """How sentences are divided into words."""
        return self.tokenize or "none"
