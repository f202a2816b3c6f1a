"""Options that all scripts share; nothing heavy is imported."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from jsonargparse.typing import PositiveInt

__all__ = ["Device", "Precision", "RunOptions", "SweepOptions"]

Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["32", "bf16-mixed"]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How and where to run; a script's own options, which say what is computed, are fields of a subclass.

    Args:
        out: Folder for everything the run writes; named after the run under runs/ when omitted.
        data_root: Folder of the data sets; $PYRO_ATTENTION_DATA, else ~/.cache/pyro_attention when omitted.
        resume: Continue the run in the folder, if there is one.
        overwrite: Remove the run in the folder first.
        device: Where to compute; auto takes a GPU where there is one.
        checkpoint_every: Epochs between two checkpoints.
        progress: Show a progress bar.
    """

    out: Path | None = None
    data_root: Path | None = None
    resume: bool = False
    overwrite: bool = False
    device: Device = "auto"
    checkpoint_every: PositiveInt = 20
    progress: bool = True

    def for_runs(self) -> dict[str, Any]:
        """Options of the runs a script starts in its own folder; one that is complete there is read, not repeated."""
        options = {name: getattr(self, name) for name in ("data_root", "device", "checkpoint_every", "overwrite")}
        return options | {"resume": not self.overwrite, "progress": False}


@dataclass(frozen=True, kw_only=True)
class SweepOptions(RunOptions):
    """How to run many trainings.

    Args:
        workers: Trainings at a time, each on one thread.
        results: The page whose section is written; when omitted experiments/RESULTS.md by tables and studies, none by
            comparisons. Pictures go into the folder pictures/ beside it.
    """

    workers: PositiveInt = 2
    results: Path | None = None
