"""Options of the script on two clusters under repeated attention."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jsonargparse.typing import PositiveFloat, PositiveInt

from experiments.options import RunOptions


@dataclass(frozen=True, kw_only=True)
class ModeCollapseConfig(RunOptions):
    """Follow two clusters of points through steps of self-attention, balanced (225 + 225) and not (500 + 50).

    Args:
        steps: Steps of attention.
        concentration: Of the Weibull posterior; the smaller, the wider.
        seeds: Seeds of the sampled weights; the points are the same.
        results: Folder for the published numbers, experiments/results when omitted; the picture goes into
            pictures/ there.
        device: Where to compute; the processor alone.
    """

    steps: PositiveInt = 4
    concentration: PositiveFloat = 1.0
    seeds: PositiveInt = 5
    results: Path | None = None
    device: Literal["cpu"] = "cpu"
