"""Tiny captioned images, for end-to-end runs of the captioning scripts."""

import io
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from experiments.captioning import task as captioning_data
from experiments.captioning.config import COMMANDS
from experiments.cli import run_commands
from experiments.data.images.digit_scenes import digit_scenes
from experiments.data.images.image_features import GridEncoder, Scale

TINY = {"vocabulary": 300, "embedding": 8, "hidden": 8, "batch_size": 8, "beam": 2, "max_epochs": 1, "num_samples": 3}
TINY |= {"progress": False}
SIZES = {"train": 24, "val": 6, "test": 6}
COLOURS = {"red": (220, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 220)}


def small_scenes(monkeypatch: pytest.MonkeyPatch, **sizes: int) -> None:
    """Let the digit scenes be few."""
    monkeypatch.setattr(captioning_data, "_digits", partial(digit_scenes, **(SIZES | sizes)))


def command_line(*arguments: object) -> int:
    """``python -m experiments.captioning`` with these arguments; its exit code."""
    return run_commands(COMMANDS, name="experiments.captioning", arguments=[str(argument) for argument in arguments])


def color_encoder(_: Path | None) -> GridEncoder:
    """In the place of MobileNetV2: the mean colors of 32 x 32 pixels."""
    return GridEncoder("tiny", torch.nn.Sequential(Scale(), torch.nn.AvgPool2d(32)))


def photograph(color: tuple[int, int, int], *, mode: str = "RGB") -> bytes:
    """A JPEG of one color with a dark corner."""
    pixels = np.full((40, 32, 3), color, np.uint8)
    pixels[:12, :12] //= 4
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, "JPEG")
    return file.getvalue()


def write_flickr8k(root: Path) -> Path:
    """The folder flickr8k in its own format: six training images, three for validation and for the test."""
    folder, tokens = root / "flickr8k", []
    for stem, number in (("train", 6), ("dev", 3), ("test", 3)):
        names = [f"{stem}{place}.jpg" for place in range(number)]
        for place, name in enumerate(names):
            color = list(COLOURS)[place % 3]
            path = folder / "Flicker8k_Dataset" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            # one in gray and one in the colors of a printer
            path.write_bytes(photograph(COLOURS[color], mode={1: "L", 2: "CMYK"}.get(place, "RGB")))
            tokens += [f"{name}#0\tA {color} picture .", f"{name}#1\tA {color} square with a dark corner ."]
        (folder / "text").mkdir(exist_ok=True)
        (folder / "text" / f"Flickr_8k.{stem}Images.txt").write_text("".join(f"{name}\n" for name in names))
    (folder / "text" / "Flickr8k.token.txt").write_text("".join(f"{line}\n" for line in tokens))
    return folder


def tiny_options() -> list[str]:
    """The command line of a tiny run."""
    options = []
    for name, value in TINY.items():
        if name != "progress":
            options += [f"--{name.replace('_', '-')}", str(value)]
    return [*options, "--no-progress"]
