"""Options of the scripts on captioning."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, get_args

from jsonargparse.typing import NonNegativeFloat, NonNegativeInt, PositiveInt

from experiments.cli import Command
from experiments.data.names import CaptionsName, RegionOptions
from experiments.options import Device, StudyOptions
from experiments.sequence.config import SequenceConfig
from guides.options import WEIGHTS, UsedBy


@dataclass(frozen=True, kw_only=True)
class CaptioningConfig(SequenceConfig, RegionOptions):
    """Train a captioning model whose attention to regions is latent, and evaluate it on the test images.

    Args:
        dataset: The captioned images; digits are scenes of handwritten digits and need no file.
        images: Use so many images of every split, the first; all when omitted.
        features: Folder of features of regions, such as boxes of an object detector, in place of an encoder: a file of
            every photograph, .npy or .npz, whose name ends with the number of the photograph's, and as many regions in
            all of them. Boxes are no grid, so nothing is drawn into photographs.
        maps: File of segmentation maps of the test photographs (.npz), which tell whether the attention of a noun is
            where its thing is; flickr8k-voc-maps/flickr8k_voc_maps.npz in the folder of the data sets when omitted,
            and nothing is told of attention where there is none.
        hidden: Width of embedded regions, decoder, attention and inference network.
        batch_size: Images of a batch, each with one of its captions.
        kl: How the KL of weibull, lognormal, gamma, gaussian and dirichlet is computed; sampled is far noisier.
        learning_rate: Learning rate of Adam, the largest one under the schedule one-cycle; on a plateau of three epochs
            it is halved.
        max_epochs: Epochs at most; an epoch has every image once.
        seed: Seed of the own encoder, the initial weights, the order of the batches and all noise.
    """

    dataset: Literal["digits", CaptionsName] = "digits"
    images: PositiveInt | None = None
    features: Path | None = None
    maps: Path | None = None
    beam: PositiveInt = 3
    kl_weight: NonNegativeFloat = 0.01
    kl: Literal["closed_form", "sampled"] = "closed_form"

    USED_BY: ClassVar[UsedBy] = {
        **{name: {"dataset": get_args(CaptionsName)} for name in ("cache", "features", "maps")},
        "kl": {"guide": (*WEIGHTS, "dirichlet"), "objective": ("elbo",)},
    }
    PAPER_SIZES: ClassVar[Sequence[str]] = ("att2in",)


@dataclass(frozen=True)
class ShowConfig:
    """Write a page that shows where the network of a run looks at each word of its captions.

    Args:
        run: Folder of the run.
        out: The page; captions.html among the figures of the run when omitted.
        images: Places of the test images, counted from 0.
        photo: A photograph of one's own to describe instead, after a training on photographs.
        device: Where to compute.
    """

    run: Path
    out: Path | None = None
    images: tuple[NonNegativeInt, ...] = (0, 1, 2)
    photo: Path | None = None
    device: Device = "auto"


COMMANDS = {
    "train": Command(CaptioningConfig, "experiments.captioning.task:train"),
    "show": Command(ShowConfig, "experiments.captioning.task:show"),
    "table": Command(StudyOptions, "experiments.captioning.studies:table", training=CaptioningConfig),
    "search": Command(StudyOptions, "experiments.captioning.studies:search", training=CaptioningConfig),
}
