"""Training scripts as tests of several processes need them: tiny, and with a record of every step.

``python -m tests.experiments.harness.in_ranks TASK FOLDER [options]`` trains; Lightning starts it again, for the other
ranks. It writes FOLDER/RANK.json: the loss that each step returned. With STOP=SIGNAL:RANK:STEP in the environment that
process gets a signal at that step.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch

from experiments.captioning import train as captioning_data
from experiments.captioning.config import CaptioningConfig
from experiments.captioning.train import CaptioningTask
from experiments.datasets.images.digit_scenes import digit_scenes
from experiments.graph.config import GraphConfig
from experiments.graph.train import GraphTask
from experiments.harness import checkpoints
from experiments.harness.cli import run_script
from experiments.harness.training import ELBOTraining
from experiments.nmt.config import TranslationConfig
from experiments.nmt.train import TranslationTask
from experiments.run import run

TASKS = {
    "translation": (TranslationConfig, partial(run, TranslationTask())),
    "captioning": (CaptioningConfig, partial(run, CaptioningTask())),
    "graph": (GraphConfig, partial(run, GraphTask())),
}
SIZES = {"train": 23, "val": 5, "test": 3}


TRAINING_STEP = ELBOTraining.training_step
LOSSES: list[float] = []


def step(module: ELBOTraining, batch: object, batch_idx: int) -> torch.Tensor:
    """A step that is recorded, or that a signal stops."""
    number, rank, stop = map(int, os.environ.get("STOP", "0:0:-1").split(":"))
    if module.global_rank == rank and module.global_step == stop:
        os.kill(os.getpid(), number)
    loss = TRAINING_STEP(module, batch, batch_idx)
    LOSSES.append(loss.item())
    return loss


@contextmanager
def double_precision() -> Iterator[None]:
    """Compute in double precision, data too; sums over processes are taken in another order than in one."""
    torch.set_default_dtype(torch.float64)
    try:
        with patch.object(torch.Tensor, "float", torch.Tensor.double):
            yield
    finally:
        torch.set_default_dtype(torch.float32)


def main(task: str, folder: str, *options: str) -> int:
    """Train, as the command does: its exit code."""
    LOSSES.clear()
    scenes = patch.object(captioning_data, "_digits", partial(digit_scenes, **SIZES))
    often = patch.object(checkpoints, "SECONDS", 0.0)  # a checkpoint after every epoch
    # a graph is read in single precision, and the processes compute the same sums
    precision = nullcontext() if task == "graph" else double_precision()
    try:
        with patch.object(ELBOTraining, "training_step", step), scenes, often, precision:
            return run_script(*TASKS[task], name=task, arguments=options)
    finally:
        Path(folder, f"{os.environ.get('LOCAL_RANK', '0')}.json").write_text(json.dumps(LOSSES))


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(*sys.argv[1:]))
