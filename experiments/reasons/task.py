"""Train a network on a problem whose reasons are known, and score every explanation of its answers."""

from __future__ import annotations

from typing import Any

import torch

from experiments.files import user_errors
from experiments.folder import write_environment
from experiments.reasons import bags, edges, neighbors
from experiments.reasons.config import ReasonConfig
from experiments.run import BAD_INPUT, Task, run_folder, show_run


class ReasonTask(Task[ReasonConfig, Any]):
    """Explanations of answers whose reasons are known."""

    config = ReasonConfig
    script = "experiments.reasons"

    def folder(self, config: ReasonConfig) -> str:
        return f"reasons/{config.problem}-{config.guide}-{config.seed}"

    def run(self, config: ReasonConfig) -> dict[str, float]:
        problem: Any = {"neighbor": neighbors, "bags": bags}.get(config.problem, edges)
        with run_folder(self, config) as run:
            if run.metrics is not None:
                return run.metrics
            with user_errors(*BAD_INPUT):
                data = problem.load(config)
                folder = run.begin()
            write_environment(folder, torch.device("cpu"))
            return run.finish(problem.score(config, data, folder))


def train(config: ReasonConfig) -> None:
    """Run the command."""
    task = ReasonTask()
    show_run(task, config, task.run(config))
