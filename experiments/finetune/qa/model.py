"""A pretrained transformer as a Pyro model of the first and the last token of an answer, and how it is trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn
from transformers import AutoModelForQuestionAnswering

from experiments.finetune.config import QaConfig
from experiments.finetune.model import FineTuning, Tuned, prepare
from experiments.finetune.pretrained import load_tokenizer
from experiments.finetune.qa.answers import BestSpans, all_scores, best_answers, best_spans, best_threshold
from experiments.finetune.qa.windows import WindowBatch, Windows
from experiments.harness import ranks
from experiments.harness.training import resolve_device
from pyro_attention import AttentionELBO

__all__ = ["QaTuned", "SpanModel", "SpanTraining", "build"]

_IMPOSSIBLE = -1e4  # a logit whose probability is 0


class SpanModel(nn.Module):
    """A transformer as a Pyro model: the sites ``start`` and ``end``, one token of every window each.

    Args:
        network: A model for question answering of Hugging Face.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(
        self, inputs: dict[str, Tensor], allowed: Tensor, start: Tensor | None = None, end: Tensor | None = None
    ) -> Tensor:
        """Logits of start and end ``[B, 2, T]``; tokens that are not ``allowed`` ``[B, T]`` have none."""
        with pyro.plate("examples", len(allowed), dim=-1):
            output = self.network(**inputs, return_dict=True)
            logits = torch.stack([output.start_logits, output.end_logits], 1).float()
            logits = logits.masked_fill(~allowed[:, None], _IMPOSSIBLE)
            pyro.sample("start", dist.Categorical(logits=logits[:, 0]), obs=start)
            pyro.sample("end", dist.Categorical(logits=logits[:, 1]), obs=end)
        return logits


class SpanTraining(FineTuning):
    """Trains a :class:`SpanModel`; arguments as of :class:`FineTuning`.

    Attributes:
        validation: The validation part; to be set before training.
    """

    validation: Windows

    def __init__(self, model: SpanModel, guide: Any, elbo: AttentionELBO, config: QaConfig) -> None:
        super().__init__(model, guide, elbo, config)
        self.task, self.longest = config.task, int(config.max_answer)
        self._found: list[BestSpans] = []

    def arguments(self, batch: WindowBatch) -> tuple[Any, ...]:
        return batch.inputs, batch.allowed, batch.first, batch.last

    def observations(self, batch: WindowBatch) -> int:
        return len(batch.allowed)

    def validation_step(self, batch: WindowBatch, batch_idx: int) -> None:  # noqa: ARG002
        logits = self.outputs(batch.inputs, batch.allowed)
        truth = torch.stack([batch.first, batch.last], 1)
        loss = 2 * nn.functional.cross_entropy(logits[0].mT, truth)
        self.log("val_loss", loss, on_step=False, on_epoch=True, batch_size=ranks.weight(len(truth)), sync_dist=True)
        self._found.append(best_spans(logits, batch, longest=self.longest))

    def on_validation_epoch_end(self) -> None:
        """Log the mean F1 of the questions."""
        questions, answered = self.validation.questions, best_answers(self.validation, ranks.gathered(self._found))
        self._found.clear()
        _, f1 = all_scores(answered.texts, questions, self.task)
        score = f1.mean() if self.task == "v1" else best_threshold(answered.no_answer.numpy(), f1, questions)[1]
        self.log("val_score", float(score))


class QaTuned(Tuned[QaConfig, SpanModel]):
    """A network that answers questions."""

    module: SpanTraining


def build(config: QaConfig, *, lengths: Sequence[int] = (1,)) -> QaTuned:
    """Load the pretrained network and make it ready for training.

    Args:
        config: How.
        lengths: Tokens of every training window, which say what the KL weight is and how many steps it rises for.

    Raises:
        UserError: There is no such model, or it cannot be used for this.
    """
    tokenizer = load_tokenizer(config.model)
    parts = prepare(config, tokenizer, AutoModelForQuestionAnswering, SpanModel, lengths=lengths, num_labels=2)
    return QaTuned(config, SpanTraining(*parts, config).to(resolve_device(config.device)), tokenizer)
