"""Options of the scripts on captioning."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, get_args

from jsonargparse.typing import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from experiments.datasets.names import CaptionsName
from experiments.harness.cli import Command
from experiments.harness.options import Device, Dropout, Precision, SweepOptions
from experiments.sequence.config import CompareSequences, NetworkOptions, SequenceConfig
from guides.names import AblationSchemeName, SchemeName
from guides.options import WEIGHTS, PosteriorOptions, UsedBy

__all__ = [
    "COMMANDS",
    "SCHEMES",
    "CaptioningConfig",
    "CaptioningOptions",
    "CompareCaptions",
    "CompareEstimators",
    "EncoderName",
    "EstimatorOptions",
    "Guide",
    "GuideName",
    "ImagesName",
    "KLEstimator",
    "RowName",
    "ShowConfig",
    "TableConfig",
]

ImagesName = Literal["digits", CaptionsName]
EncoderName = Literal["own", "resnet50", "mobilenet_v2"]
KLEstimator = Literal["closed_form", "sampled"]
GuideName = Literal[SchemeName, AblationSchemeName]
RowName = Literal["soft", "hard", "LC", "LF", "WC", "WF"]


@dataclass(frozen=True, kw_only=True)
class CaptioningOptions(NetworkOptions):
    """What a comparison of captions has in common with its runs.

    Args:
        dataset: The captioned images; digits are scenes of handwritten digits and need no file.
        images: Use so many images of every split, the first; all when omitted.
        encoder: What makes features of photographs: own is a small network, trained once for each seed to predict the
            words of the captions and then frozen; resnet50 and mobilenet_v2 are trained on ImageNet, and torchvision
            fetches their weights.
        encoder_weights: File of weights for mobilenet_v2, TensorFlow's as safetensors under torchvision's names;
            torchvision's own when omitted.
        size: Side in pixels that photographs are brought to; 192 for mobilenet_v2 and 96 for the others when omitted.
            own needs a multiple of 16, and makes a region of 16 x 16; mobilenet_v2 makes one of 32 x 32.
        cache: Folder of pixels and features; "cache" in the data set's folder when omitted.
        maps: File of segmentation maps of the test photographs (.npz), which tell whether the attention of a noun is
            where its thing is; flickr8k-voc-maps/flickr8k_voc_maps.npz in the folder of the data sets when omitted,
            and nothing is told of attention where there is none.
        skip_bad: Leave out, and count, bad images and images without a caption, instead of stopping.
        hidden: Width of embedded regions, decoder, attention and inference network.
        dropout: Dropout of word vectors, of embedded regions and before the output.
        batch_size: Images of a batch, each with one of its captions.
        no_repeat: The beam search repeats no so many word pieces in a row; it may when omitted.
    """

    dataset: ImagesName = "digits"
    images: PositiveInt | None = None
    encoder: EncoderName = "own"
    encoder_weights: Path | None = None
    size: PositiveInt | None = None
    cache: Path | None = None
    maps: Path | None = None
    skip_bad: bool = False
    dropout: Dropout = 0.1
    beam: PositiveInt = 3
    no_repeat: PositiveInt | None = None

    USED_BY: ClassVar[UsedBy] = {
        name: {"dataset": get_args(CaptionsName)} for name in ("encoder", "encoder_weights", "size", "cache", "maps")
    }


@dataclass(frozen=True, kw_only=True)
class CaptioningConfig(CaptioningOptions, SequenceConfig):
    """Train a captioning model whose attention to regions is latent, and evaluate it on the test images.

    Args:
        encoder_epochs: Epochs of the own encoder.
        input_feed: What the decoder goes on with: the expected context, or that of the drawn alignment (not for schemes
            with an inference network or that sum alignments out).
        guide: Inference scheme; soft is ordinary deterministic attention, gaussian has weights off the simplex.
        prior: fixed, or contextual (read off the regions); for weibull, lognormal, gamma and gaussian.
        kl: How the KL of weibull, lognormal, gamma, gaussian and dirichlet is computed; sampled is far noisier.
        learning_rate: Learning rate of Adam, the largest one under the schedule one-cycle; on a plateau of three epochs
            it is halved.
        max_epochs: Epochs at most; an epoch has every image once.
        seed: Seed of the own encoder, the initial weights, the order of the batches and all noise.
    """

    encoder_epochs: PositiveInt = 15
    guide: GuideName = "weibull"
    kl_weight: NonNegativeFloat = 0.01
    kl: KLEstimator = "closed_form"
    input_feed: Literal["expected", "sampled"] = "expected"

    USED_BY: ClassVar[UsedBy] = {
        "encoder_epochs": {"dataset": get_args(CaptionsName), "encoder": ("own",)},
        "kl": {"guide": (*WEIGHTS, "dirichlet")},
    }


@dataclass(frozen=True)
class ShowConfig:
    """Draw where the network of a run looks at each word of its captions, and how sure each word is.

    Args:
        run: Folder of the run.
        out: Folder for the pictures; figures in that of the run when omitted.
        images: Places of the test images, counted from 0.
        html: Also write captions.html, one page to look at the attention of these captions with.
        photo: A photograph of one's own to describe instead, after a training on photographs.
        device: Where to compute.
    """

    run: Path
    out: Path | None = None
    images: tuple[NonNegativeInt, ...] = (0, 1, 2)
    html: bool = False
    photo: Path | None = None
    device: Device = "auto"


SCHEMES: tuple[SchemeName, ...] = ("soft", "hard_sample", "hard_enum", "lognormal", "weibull")


@dataclass(frozen=True, kw_only=True)
class CompareCaptions(CaptioningOptions, CompareSequences):
    """Compare inference schemes for the attention of a captioning model.

    For each seed soft attention is trained first; every scheme, and soft as a control, goes on from its network for a
    common number of epochs, at half the learning rate. With --base-epochs 0 every scheme begins by itself.

    Args:
        task: The task; the others have other options.
        patience: Epochs without a better validation loss before the training of a scheme stops.
        pictures: Test images that are drawn.
    """

    task: Literal["captioning"] = "captioning"
    schemes: tuple[SchemeName, ...] = SCHEMES
    seeds: PositiveInt = 2
    epochs: PositiveInt = 2
    patience: PositiveInt = 5
    learning_rate: PositiveFloat = 2e-3
    pictures: PositiveInt = 1


@dataclass(frozen=True, kw_only=True)
class TableConfig(CaptioningOptions, SweepOptions):
    """Train the rows of Table 3 of Bayesian Attention Modules, and write the table.

    For each seed soft attention is trained first; every row, soft as a control too, goes on from its network at half
    the learning rate. The settings of random attention are chosen on the validation photographs of the first seed.

    Args:
        rows: Rows of the table; all when omitted.
        seeds: Trainings of every row.
        base_epochs: Epochs of soft attention at first; an epoch has every photograph once, with one of its captions.
        epochs: Epochs of every row after that.
        pictures: Test photographs that are drawn, the first.
    """

    dataset: CaptionsName = "flickr8k"
    encoder: EncoderName = "mobilenet_v2"
    rows: tuple[RowName, ...] | None = None
    seeds: PositiveInt = 3
    base_epochs: PositiveInt = 40
    epochs: PositiveInt = 4
    vocabulary: PositiveInt = 2000
    hidden: PositiveInt = 256
    dropout: Dropout = 0.3
    batch_size: PositiveInt = 64
    learning_rate: PositiveFloat = 2e-3
    num_samples: PositiveInt = 10
    no_repeat: PositiveInt | None = 2
    precision: Precision = "bf16-mixed"
    pictures: PositiveInt = 2


Guide = Literal["soft", "weibull", "lognormal", "gamma", "gaussian"]


@dataclass(frozen=True, kw_only=True)
class EstimatorOptions(PosteriorOptions):
    """What a comparison of estimators has in common with its runs.

    Args:
        max_epochs: Epochs of a training.
        images: Use so many images of every split, the first; all when omitted.
        hidden: Width of the network.
        learning_rate: Learning rate of Adam.
    """

    max_epochs: PositiveInt = 4
    images: PositiveInt | None = None
    hidden: PositiveInt = 64
    learning_rate: PositiveFloat = 1e-3


@dataclass(frozen=True, kw_only=True)
class CompareEstimators(EstimatorOptions, SweepOptions):
    """Train captioning of digit scenes with the KL in closed form and with it sampled, and measure both gradients.

    Args:
        guides: Inference schemes; gaussian has weights off the simplex, and soft, a control, no KL.
        seeds: Trainings of each.
        pairs: Pairs of draws of the attention that variances are taken over.
    """

    guides: tuple[Guide, ...] = ("soft", "weibull", "lognormal", "gaussian")
    seeds: PositiveInt = 3
    pairs: PositiveInt = 50


COMMANDS = {
    "train": Command(CaptioningConfig, "experiments.captioning.train:run_and_show"),
    "show": Command(ShowConfig, "experiments.captioning.show:show"),
    "table": Command(TableConfig, "experiments.captioning.table:run"),
}
