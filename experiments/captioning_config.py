"""Options of the captioning script."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jsonargparse.typing import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from experiments.options import Dropout, RunOptions
from experiments.training import Precision
from guides import AblationSchemeName, PriorName, SchemeName

__all__ = ["CaptioningConfig", "EncoderName", "GuideName", "ImagesName", "KLEstimator"]

ImagesName = Literal["digits", "flickr8k", "coco"]
EncoderName = Literal["own", "resnet50"]
KLEstimator = Literal["closed_form", "sampled"]
GuideName = Literal[SchemeName, AblationSchemeName]


@dataclass(frozen=True, kw_only=True)
class CaptioningConfig(RunOptions):
    """Train a captioning model whose attention to regions is latent, and evaluate it on the test images.

    Args:
        dataset: The captioned images; digits are scenes of handwritten digits and need no file.
        images: Use so many images of every split, the first; all when omitted.
        encoder: What makes features of photographs: own is a small network, trained once for each seed to predict the
            words of the captions and then frozen; resnet50 is torchvision's, of which torchvision fetches the weights.
        size: Side in pixels that photographs are brought to; own needs a multiple of 16, and makes a region of 16 x 16.
        encoder_epochs: Epochs of the own encoder.
        cache: Folder of pixels and features; "cache" in the data set's folder when omitted.
        skip_bad: Leave out, and count, bad images and images without a caption, instead of stopping.
        guide: Inference scheme; soft is ordinary deterministic attention, gaussian has weights off the simplex.
        prior: fixed, or contextual (read off the regions); for weibull, lognormal, gamma and gaussian.
        kl_weight: Weight of the KL; schemes that sum alignments out have weight 1.
        kl: How the KL of weibull, lognormal, gamma, gaussian and dirichlet is computed; sampled is far noisier.
        concentration: Concentration of a Weibull or Gamma posterior; the larger, the less noise.
        scale: Standard deviation of a LogNormal or Gaussian posterior.
        prior_rate: Rate of a Gamma prior.
        prior_scale: Standard deviation of a LogNormal or Gaussian prior.
        temperature: Temperature of the relaxed alignments of gumbel.
        particles: Samples of wake_sleep and iwae.
        input_feed: What the decoder goes on with: the expected context, or that of the drawn alignment (not for schemes
            with an inference network or that sum alignments out).
        warm_start: Epochs at first without the inference network: q = p, Jensen's bound; for dirichlet.
        init_from: Folder of a finished run whose network (not its guide) to start from, and whose vocabulary to use.
        vocabulary: Word pieces at most.
        embedding: Width of a word vector.
        hidden: Width of embedded regions, decoder, attention and inference network.
        init_range: Initial weights are uniform up to so much; PyTorch's own when omitted.
        dropout: Dropout of word vectors, of embedded regions and before the output.
        batch_size: Images of a batch, each with one of its captions.
        learning_rate: Learning rate of Adam; halved after three epochs without a better validation loss.
        gradient_clip: Largest norm of the gradient of the loss per word.
        max_epochs: Epochs at most; an epoch has every image once.
        patience: Epochs without a better validation loss before training stops.
        num_samples: Posterior samples of the attention for perplexity and pointing.
        beam: Live hypotheses of the beam search.
        length_penalty: Exponent of the length penalty of the beam search.
        no_repeat: The beam search repeats no so many word pieces in a row; it may when omitted.
        precision: Arithmetic of the training; evaluation is in 32 bits.
        seed: Seed of the own encoder, the initial weights, the order of the batches and all noise.
    """

    dataset: ImagesName = "digits"
    images: PositiveInt | None = None  # type: ignore[valid-type]
    encoder: EncoderName = "own"
    size: PositiveInt = 96  # type: ignore[valid-type]
    encoder_epochs: PositiveInt = 15  # type: ignore[valid-type]
    cache: Path | None = None
    skip_bad: bool = False
    guide: GuideName = "weibull"
    prior: PriorName = "contextual"
    kl_weight: NonNegativeFloat = 0.01  # type: ignore[valid-type]
    kl: KLEstimator = "closed_form"
    concentration: PositiveFloat = 10.0  # type: ignore[valid-type]
    scale: PositiveFloat = 0.1  # type: ignore[valid-type]
    prior_rate: PositiveFloat = 1.0  # type: ignore[valid-type]
    prior_scale: PositiveFloat = 1.0  # type: ignore[valid-type]
    temperature: PositiveFloat = 0.5  # type: ignore[valid-type]
    particles: PositiveInt = 5  # type: ignore[valid-type]
    input_feed: Literal["expected", "sampled"] = "expected"
    warm_start: NonNegativeInt = 0  # type: ignore[valid-type]
    init_from: Path | None = None
    vocabulary: PositiveInt = 4000  # type: ignore[valid-type]
    embedding: PositiveInt = 64  # type: ignore[valid-type]
    hidden: PositiveInt = 128  # type: ignore[valid-type]
    init_range: PositiveFloat | None = None  # type: ignore[valid-type]
    dropout: Dropout = 0.1  # type: ignore[valid-type]
    batch_size: PositiveInt = 32  # type: ignore[valid-type]
    learning_rate: PositiveFloat = 1e-3  # type: ignore[valid-type]
    gradient_clip: PositiveFloat = 1.0  # type: ignore[valid-type]
    max_epochs: PositiveInt = 20  # type: ignore[valid-type]
    patience: PositiveInt = 5  # type: ignore[valid-type]
    num_samples: PositiveInt = 20  # type: ignore[valid-type]
    beam: PositiveInt = 3  # type: ignore[valid-type]
    length_penalty: NonNegativeFloat = 1.0  # type: ignore[valid-type]
    no_repeat: PositiveInt | None = None  # type: ignore[valid-type]
    precision: Precision = "32"
    seed: NonNegativeInt = 0  # type: ignore[valid-type]
