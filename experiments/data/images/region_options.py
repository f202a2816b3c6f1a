"""Options of turning photographs into regions, without the networks that do it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from jsonargparse.typing import PositiveInt

_PHOTOGRAPHS = ("flickr8k", "coco", "easy_vqa", "daquar")


@dataclass(frozen=True, kw_only=True)
class RegionOptions:
    """How photographs become regions.

    Args:
        encoder: Network that computes features of photographs. own is a small network that is trained once to predict
            the words of the captions, or the answers of a photograph, and is then frozen; mobilenet_v2 is trained on
            ImageNet.
        encoder_weights: File of weights for mobilenet_v2: TensorFlow's weights as safetensors under torchvision's
            names. Torchvision's weights when omitted.
        encoder_epochs: Number of epochs of the encoder own.
        size: Side in pixels to which photographs are scaled; a default of the data set and encoder when omitted. A
            region of own is 16 x 16 pixels, a region of mobilenet_v2 32 x 32.
        cache: Folder of pixels and features; "cache" in the data set's folder when omitted.
    """

    encoder: Literal["own", "mobilenet_v2"] = "own"
    encoder_weights: Path | None = None
    encoder_epochs: PositiveInt = 15
    size: PositiveInt | None = None
    cache: Path | None = None

    USED_BY: ClassVar[Mapping[str, Mapping[str, Sequence[str]]]] = {
        "encoder": {"dataset": _PHOTOGRAPHS},
        "size": {"dataset": _PHOTOGRAPHS},
        "encoder_weights": {"dataset": _PHOTOGRAPHS, "encoder": ("mobilenet_v2",)},
        "encoder_epochs": {"dataset": _PHOTOGRAPHS, "encoder": ("own",)},
    }
