"""Training scripts as tests of several processes need them: tiny, in double precision, with a record of every step.

``python -m tests.experiments.harness.in_ranks TASK FOLDER [options]`` trains; Lightning starts it again, for the other
ranks. It writes FOLDER/RANK.json: the loss that each step returned and, with GRADIENTS=1 in the environment, its
gradient at some parameters. With STOP=SIGNAL:RANK:STEP that process gets a signal at that step.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch

from experiments.captioning import data as captioning_data
from experiments.captioning.config import CaptioningConfig
from experiments.datasets.images.digit_scenes import digit_scenes
from experiments.graph.config import GraphConfig
from experiments.harness.cli import run_script
from experiments.harness.training import ELBOTraining
from experiments.nmt.config import TranslationConfig

TASKS = {
    "translation": (TranslationConfig, "experiments.nmt.train:run"),
    "captioning": (CaptioningConfig, "experiments.captioning.train:run"),
    "graph": (GraphConfig, "experiments.graph.train:run"),
}
SIZES = {"train": 25, "val": 5, "test": 3}


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
def recorded(folder: Path) -> Iterator[None]:
    """Record the trainings inside, in double precision and on few digit scenes."""
    record = Record(folder)
    scenes = partial(digit_scenes, **SIZES)
    steps = {
        "training_step": lambda *arguments: record.step(*arguments),
        "on_after_backward": lambda module: record.gradient(module),
    }
    single = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with (
            patch.multiple(ELBOTraining, **steps),
            patch.object(torch.Tensor, "float", torch.Tensor.double),
            patch.object(captioning_data, "_digits", scenes),
        ):
            yield
    finally:
        torch.set_default_dtype(single)
        record.save()


def main(task: str, folder: str, *options: str) -> int:
    """Train, as the command does: its exit code."""
    with recorded(Path(folder)):
        return run_script(*TASKS[task], name=task, arguments=options)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(*sys.argv[1:]))
