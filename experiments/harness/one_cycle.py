"""Training with a learning rate that is planned over all epochs."""

from __future__ import annotations

from typing import Any

import torch

from experiments.harness.training import ELBOTraining

__all__ = ["OneCycleTraining"]


class OneCycleTraining(ELBOTraining):
    """Trains with a learning rate that rises for a tenth of the steps and then falls, linearly."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=self.learning_rate, total_steps=int(self.trainer.estimated_stepping_batches),
            pct_start=0.1, anneal_strategy="linear", cycle_momentum=False,
        )  # fmt: skip
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        # a run that goes on in fewer processes takes more steps than were planned
        if scheduler.last_epoch < scheduler.total_steps:
            super().lr_scheduler_step(scheduler, metric)
