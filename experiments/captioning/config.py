"""Options of the commands on captioning."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, get_args

from jsonargparse.typing import NonNegativeFloat, NonNegativeInt, PositiveInt

from experiments.cli import Command
from experiments.data.dataset_names import CaptionsName
from experiments.data.images.region_options import RegionOptions
from experiments.options import Device, StudyOptions
from experiments.sequence.config import SequenceConfig
from guides.options import WEIGHTS, UsedBy


@dataclass(frozen=True, kw_only=True)
class CaptioningConfig(SequenceConfig, RegionOptions):
    """Train a captioning model whose attention to regions is latent, and evaluate it on the test images.

    Args:
        dataset: Data set of images with captions. digits are scenes of handwritten digits and need no file.
        images: Number of images of every split, the first ones; all when omitted.
        features: Folder of features of regions, such as boxes of an object detector, in place of an encoder. It has a
            file for every photograph, .npy or .npz, whose name ends with the number of the photograph, and all files
            have the same number of regions. Boxes are no grid, so nothing is drawn into photographs.
        maps: File of segmentation maps of the test photographs (.npz). With it the share of a noun's attention on the
            thing that it names is measured. When omitted, it is flickr8k-voc-maps/flickr8k_voc_maps.npz in the folder
            of the data sets, if that file exists.
        hidden: Width of embedded regions, decoder, attention and inference network.
        batch_size: Images of a batch, each with one of its captions.
        kl: How the KL of weibull, lognormal, gamma, gaussian and dirichlet is computed; sampled is far noisier.
        learning_rate: Learning rate of Adam; the largest one under the schedule one-cycle. The schedule plateau halves
            it after three epochs without a better validation loss.
        max_epochs: Largest number of epochs; an epoch has every image once.
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
        out: File of the page; captions.html among the figures of the run when omitted.
        overwrite: Replace a file --out that exists.
        images: Numbers of the test images, counted from 0.
        photo: Your own photograph to describe instead; the network must have been trained on photographs.
        device: Where to compute.
    """

    run: Path
    out: Path | None = None
    overwrite: bool = False
    images: tuple[NonNegativeInt, ...] = (0, 1, 2)
    photo: Path | None = None
    device: Device = "auto"


COMMANDS = {
    "train": Command(CaptioningConfig, "experiments.captioning.task:train"),
    "show": Command(ShowConfig, "experiments.captioning.task:show"),
    "table": Command(StudyOptions, "experiments.captioning.studies:table", training=CaptioningConfig),
    "search": Command(StudyOptions, "experiments.captioning.studies:search", training=CaptioningConfig),
}
