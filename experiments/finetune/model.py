"""A pretrained transformer with its tokenizer as a Pyro model of classes or grades, and how it is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn
from transformers import get_linear_schedule_with_warmup

from experiments.datasets.text.glue import GLUE
from experiments.finetune.config import GlueConfig
from experiments.finetune.data import PairBatch
from experiments.finetune.metrics import glue_scores, main_metric
from experiments.finetune.pretrained import check_fit, load_network, load_tokenizer
from experiments.harness.training import ELBOTraining, resolve_device
from pyro_attention import AttentionELBO
from pyro_attention.posterior.passes import Noise

__all__ = ["FineTuned", "PairModel", "PairTraining", "build", "predictions"]


class PairModel(nn.Module):
    """A transformer as a Pyro model: the site ``labels``, one class or one grade an example.

    Args:
        network: A model for sequence classification of Hugging Face; of one output the labels are grades, with a
            standard deviation of 1.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: dict[str, Tensor], labels: Tensor | None = None) -> Tensor:
        """Logits ``[B, classes]``, or grades ``[B, 1]``."""
        with pyro.plate("examples", inputs["input_ids"].size(0), dim=-1):
            logits: Tensor = self.network(**inputs).logits.float()
            if logits.size(-1) > 1:
                pyro.sample("labels", dist.Categorical(logits=logits), obs=labels)
            else:
                pyro.sample("labels", dist.Normal(logits[..., 0], 1.0), obs=labels)
        return logits


class PairTraining(ELBOTraining):
    """Trains a :class:`PairModel` by AdamW, with a learning rate that rises and then falls."""

    def __init__(self, model: nn.Module, guide: Any, elbo: AttentionELBO, config: GlueConfig) -> None:
        super().__init__(model, guide, elbo, learning_rate=config.learning_rate, weight_decay=config.weight_decay)
        self.task = config.task
        self._found: list[tuple[Tensor, Tensor]] = []

    def observations(self, batch: PairBatch) -> int:
        return len(batch.labels)

    def validation_step(self, batch: PairBatch, batch_idx: int) -> None:  # noqa: ARG002
        self._found.append((self.objective.model(*batch), batch.labels))

    def on_validation_epoch_end(self) -> None:
        """Log the score and the loss of all validation examples together: most scores are no means over examples."""
        logits, labels = (torch.cat(parts) for parts in zip(*self._found, strict=True))
        self._found.clear()
        predicted = predictions(logits)
        loss = nn.functional.cross_entropy if logits.size(-1) > 1 else nn.functional.mse_loss
        self.log("val_loss", loss(logits if logits.size(-1) > 1 else predicted, labels))
        self.log("val_score", glue_scores(self.task, predicted, labels)[main_metric(self.task)])

    def configure_optimizers(self) -> Any:
        named = [(name, parameter) for name, parameter in self.named_parameters() if parameter.requires_grad]
        groups = [
            # biases and layer norms are vectors
            {"params": [one for _, one in named if one.dim() > 1], "weight_decay": self.weight_decay},
            {"params": [one for _, one in named if one.dim() <= 1], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW([group for group in groups if group["params"]], lr=self.learning_rate)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def predictions(outputs: Tensor) -> Tensor:
    """The class of each example, or its grade, ``[items]``, of outputs ``[items, outputs]``."""
    return outputs.argmax(-1) if outputs.size(-1) > 1 else outputs[..., 0]


@dataclass(frozen=True)
class FineTuned:
    """A pretrained network as it is fine-tuned, with its tokenizer.

    Attributes:
        config: How it was made.
        module: Network, guide and objective.
        tokenizer: Its tokenizer.
    """

    config: GlueConfig
    module: PairTraining
    tokenizer: Any

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return self.module.device

    @property
    def parameters(self) -> int:
        """Number of trained numbers."""
        return sum(parameter.numel() for parameter in self.module.parameters())

    def outputs(self, inputs: dict[str, Tensor], *, num_samples: int = 1, noise: Noise = "none") -> Tensor:
        """Outputs of a batch ``[S, B, outputs]``: logits, or grades."""
        model = self.module.objective.model
        with torch.no_grad():
            model.train(noise == "dropout")
            return torch.stack([model(inputs) for _ in range(num_samples)])


def build(config: GlueConfig, *, examples: int = 1) -> FineTuned:
    """Load the pretrained network and make it ready for training.

    Raises:
        UserError: There is no such model, or it cannot be used for this.
    """
    tokenizer = load_tokenizer(config.model)
    pyro.set_rng_seed(config.seed)
    network = load_network(config.model, GLUE[config.task].classes)
    check_fit(config, network, tokenizer)
    pyro.set_rng_seed(config.seed)
    network.train()  # it is loaded in evaluation mode, without dropout
    module = PairTraining(PairModel(network), _no_guide, AttentionELBO(), config)
    return FineTuned(config, module.to(resolve_device(config.device)), tokenizer)


def _no_guide(*_: Any) -> None:
    """The guide of a model without latent variables."""
