"""Training scripts as tests of several processes need them: tiny, and with a record of every step.

``python -m tests.experiments.harness.in_ranks TASK FOLDER [options]`` trains; Lightning starts it again, for the other
ranks. It writes FOLDER/RANK.json: the loss that each step returned and, with GRADIENTS=1 in the environment, its
gradient at some parameters. With STOP=SIGNAL:RANK:STEP that process gets a signal at that step.
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


class Record:
    """What happens at every step."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"{os.environ.get('LOCAL_RANK', '0')}.json"
        self.losses: list[float] = []
        self.gradients: list[list[float]] = []

    def step(self, module: ELBOTraining, batch: object, batch_idx: int) -> torch.Tensor:
        number, rank, stop = map(int, os.environ.get("STOP", "0:0:-1").split(":"))
        if self.path.stem == str(rank) and module.global_step == stop:
            os.kill(os.getpid(), number)
        loss = TRAINING_STEP(module, batch, batch_idx)
        self.losses.append(loss.item())
        return loss

    def gradient(self, module: ELBOTraining) -> None:
        if "GRADIENTS" in os.environ:
            found = [one.grad.flatten()[:3] for one in module.parameters() if one.grad is not None]
            self.gradients.append(torch.cat(found).tolist())

    def save(self) -> None:
        self.path.write_text(json.dumps({"losses": self.losses, "gradients": self.gradients}))


TRAINING_STEP = ELBOTraining.training_step


@contextmanager
def double_precision() -> Iterator[None]:
    """Compute in double precision, data too; sums over processes are taken in another order than in one."""
    torch.set_default_dtype(torch.float64)
    try:
        with patch.object(torch.Tensor, "float", torch.Tensor.double):
            yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def recorded(folder: Path) -> Iterator[None]:
    """Record the trainings inside; there are few digit scenes."""
    record = Record(folder)
    steps = {
        "training_step": lambda *arguments: record.step(*arguments),
        "on_after_backward": lambda module: record.gradient(module),
    }
    scenes = partial(digit_scenes, **SIZES)
    try:
        with patch.multiple(ELBOTraining, **steps), patch.object(captioning_data, "_digits", scenes):
            yield
    finally:
        record.save()


def main(task: str, folder: str, *options: str) -> int:
    """Train, as the command does: its exit code."""
    # a graph is read in single precision, and the processes compute the same sums
    with recorded(Path(folder)), nullcontext() if task == "graph" else double_precision():
        return run_script(*TASKS[task], name=task, arguments=options)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(*sys.argv[1:]))
