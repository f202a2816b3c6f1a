"""Pretrained transformers as Pyro models: the class or grade of a sentence or of a pair, and the span of an answer."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

_IMPOSSIBLE = -1e4  # a logit whose probability is 0


class PairModel(nn.Module):
    """A transformer as a Pyro model: the site ``labels``, one class or one grade (standard deviation 1) an example.

    An example is read by the network's own head, or through dropout and a new output layer from the means u and v of
    the last states of a ``pair`` of sentences as (u, v, |u - v|) (Reimers and Gurevych 2019, Sentence-BERT, section 3).
    """

    def __init__(self, network: Any, *, pair: bool = False) -> None:
        super().__init__()
        self.network, self.head = network, None
        if pair:
            config = network.config
            self.network = network.base_model
            self.head = nn.Sequential(nn.Dropout(0.1), nn.Linear(3 * config.hidden_size, config.num_labels))

    def forward(self, inputs: dict[str, Tensor], labels: Tensor | None = None) -> Tensor:
        """Logits ``[B, classes]``, or grades ``[B, 1]``."""
        with pyro.plate("examples", inputs["input_ids"].size(0), dim=-1):
            logits: Tensor = self._logits(inputs).float()
            if logits.size(-1) > 1:
                pyro.sample("labels", dist.Categorical(logits=logits), obs=labels)
            else:
                pyro.sample("labels", dist.Normal(logits[..., 0], 1.0), obs=labels)
        return logits

    def _logits(self, inputs: dict[str, Tensor]) -> Tensor:
        output = self.network(**inputs, return_dict=True)
        if self.head is None:
            return torch.as_tensor(output.logits)
        states = output.last_hidden_state
        real = inputs["attention_mask"].to(states.dtype)
        second = real * inputs["token_type_ids"]
        u, v = _mean(states, real - second), _mean(states, second)
        return torch.as_tensor(self.head(torch.cat([u, v, (u - v).abs()], -1)))


def _mean(states: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean over tokens ``[B, width]`` of states ``[B, N, width]``."""
    return (states * weights.unsqueeze(-1)).sum(-2) / weights.sum(-1, keepdim=True).clamp(min=1)


class SpanModel(nn.Module):
    """A transformer as a Pyro model: the sites ``start`` and ``end``, one token of every window each."""

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
