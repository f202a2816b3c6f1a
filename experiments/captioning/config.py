"""Options of the scripts on captioning."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jsonargparse.typing import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from experiments.datasets.names import CaptionsName
from experiments.harness.cli import Command
from experiments.harness.options import Device, Dropout, Precision, RunOptions, SweepOptions
from guides.names import AblationSchemeName, PriorName, SchemeName

__all__ = [
    "COMMANDS",
    "SCHEMES",
    "CaptioningConfig",
    "CompareCaptions",
    "CompareEstimators",
    "EncoderName",
    "Guide",
    "GuideName",
    "ImagesName",
    "KLEstimator",
    "ShowConfig",
]

ImagesName = Literal["digits", CaptionsName]
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
    images: PositiveInt | None = None
    encoder: EncoderName = "own"
    size: PositiveInt = 96
    encoder_epochs: PositiveInt = 15
    cache: Path | None = None
    skip_bad: bool = False
    guide: GuideName = "weibull"
    prior: PriorName = "contextual"
    kl_weight: NonNegativeFloat = 0.01
    kl: KLEstimator = "closed_form"
    concentration: PositiveFloat = 10.0
    scale: PositiveFloat = 0.1
    prior_rate: PositiveFloat = 1.0
    prior_scale: PositiveFloat = 1.0
    temperature: PositiveFloat = 0.5
    particles: PositiveInt = 5
    input_feed: Literal["expected", "sampled"] = "expected"
    warm_start: NonNegativeInt = 0
    init_from: Path | None = None
    vocabulary: PositiveInt = 4000
    embedding: PositiveInt = 64
    hidden: PositiveInt = 128
    init_range: PositiveFloat | None = None
    dropout: Dropout = 0.1
    batch_size: PositiveInt = 32
    learning_rate: PositiveFloat = 1e-3
    gradient_clip: PositiveFloat = 1.0
    max_epochs: PositiveInt = 20
    patience: PositiveInt = 5
    num_samples: PositiveInt = 20
    beam: PositiveInt = 3
    length_penalty: NonNegativeFloat = 1.0
    no_repeat: PositiveInt | None = None
    precision: Precision = "32"
    seed: NonNegativeInt = 0


@dataclass(frozen=True)
class ShowConfig:
    """Draw where the network of a run looks at each word of its captions, and how sure each word is.

    Args:
        run: Folder of the run.
        out: Folder for the pictures; figures in that of the run when omitted.
        images: Places of the test images, counted from 0.
        device: Where to compute.
    """

    run: Path
    out: Path | None = None
    images: tuple[NonNegativeInt, ...] = (0, 1, 2)
    device: Device = "auto"


COMMANDS = {
    "train": Command(CaptioningConfig, "experiments.captioning.train:_run_and_show"),
    "show": Command(ShowConfig, "experiments.captioning.train:show"),
}


SCHEMES: tuple[SchemeName, ...] = ("soft", "hard_sample", "hard_enum", "lognormal", "weibull")


@dataclass(frozen=True, kw_only=True)
class CompareCaptions(SweepOptions):
    """Compare inference schemes for the attention of a captioning model.

    For each seed soft attention is trained first; every scheme, and soft as a control, goes on from its network for a
    common number of epochs, at half the learning rate. With --base-epochs 0 every scheme begins by itself.

    Args:
        task: The task; the others have other options.
        dataset: The captioned images; digits are scenes of handwritten digits and need no file.
        schemes: The schemes to compare.
        seeds: Number of seeds.
        base_epochs: Epochs of soft attention at first; none: every scheme begins by itself.
        epochs: Epochs of every scheme, at most.
        patience: Epochs without a better validation loss before the training of a scheme stops.
        images: Use so many images of every split, the first; all when omitted.
        encoder: What makes features of photographs; see experiments.captioning.
        size: Side in pixels that photographs are brought to.
        cache: Folder of pixels and features.
        skip_bad: Leave out, and count, bad images and images without a caption, instead of stopping.
        vocabulary: Word pieces at most.
        hidden: Width of the networks.
        dropout: Dropout of word vectors, of embedded regions and before the output.
        batch_size: Images of a batch.
        learning_rate: Learning rate of Adam.
        kl_weight: Weight of the KL in weibull and lognormal.
        num_samples: Posterior samples of random attention weights.
        beam: Live hypotheses of the beam search.
        no_repeat: The beam search repeats no so many word pieces in a row; it may when omitted.
        pictures: Test images that are drawn.
    """

    task: Literal["captioning"] = "captioning"
    dataset: ImagesName = "digits"
    schemes: tuple[SchemeName, ...] = SCHEMES
    seeds: PositiveInt = 2
    base_epochs: NonNegativeInt = 10
    epochs: PositiveInt = 2
    patience: PositiveInt = 5
    images: PositiveInt | None = None
    encoder: EncoderName = "own"
    size: PositiveInt = 96
    cache: Path | None = None
    skip_bad: bool = False
    vocabulary: PositiveInt = 4000
    hidden: PositiveInt = 128
    dropout: Dropout = 0.1
    batch_size: PositiveInt = 32
    learning_rate: PositiveFloat = 2e-3
    kl_weight: NonNegativeFloat = 0.01
    num_samples: PositiveInt = 20
    beam: PositiveInt = 3
    no_repeat: PositiveInt | None = None
    pictures: PositiveInt = 1


Guide = Literal["soft", "weibull", "lognormal", "gamma", "gaussian"]


@dataclass(frozen=True, kw_only=True)
class CompareEstimators(SweepOptions):
    """Train captioning of digit scenes with the KL in closed form and with it sampled, and measure both gradients.

    Args:
        guides: Inference schemes; gaussian has weights off the simplex, and soft, a control, no KL.
        prior: fixed, or contextual (read off the regions).
        kl_weight: Weight of the KL.
        concentration: Concentration of a Weibull or Gamma posterior.
        scale: Standard deviation of a LogNormal or Gaussian posterior.
        seeds: Trainings of each.
        max_epochs: Epochs of a training.
        images: Use so many images of every split, the first; all when omitted.
        hidden: Width of the network.
        learning_rate: Learning rate of Adam.
        pairs: Pairs of draws of the attention that variances are taken over.
    """

    guides: tuple[Guide, ...] = ("soft", "weibull", "lognormal", "gaussian")
    prior: PriorName = "contextual"
    kl_weight: NonNegativeFloat = 1.0
    concentration: PositiveFloat = 10.0
    scale: PositiveFloat = 0.1
    seeds: PositiveInt = 3
    max_epochs: PositiveInt = 4
    images: PositiveInt | None = None
    hidden: PositiveInt = 64
    learning_rate: PositiveFloat = 1e-3
    pairs: PositiveInt = 50
