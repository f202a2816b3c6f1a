"""Options of the script on two clusters under repeated attention."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jsonargparse.typing import PositiveFloat, PositiveInt

from experiments.options import RunOptions


@dataclass(frozen=True, kw_only=True)
class ModeCollapseConfig(RunOptions):
    """Follow two clusters of points through steps of self-attention, with equal sizes (225 + 225) and not (500 + 50).

    Args:
        steps: Number of steps of attention.
        iterations: Number of updates of the centers by the points (equation 8) in each step of attention.
        concentration: Concentration of the Weibull posterior; a smaller one is wider.
        seeds: Number of seeds of the sampled weights; all seeds have the same points.
        results: Folder for the published numbers; the picture goes into its folder pictures/. When omitted, it is
            experiments/results, but with other options than the defaults there is none.
        device: Device to compute on, which is the CPU.
    """

    steps: PositiveInt = 4
    iterations: PositiveInt = 1
    concentration: PositiveFloat = 1.0
    seeds: PositiveInt = 5
    results: Path | None = None
    device: Literal["cpu"] = "cpu"
