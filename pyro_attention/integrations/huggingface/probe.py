"""A tiny forward pass that shows which modules call the attention function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pyro_attention.integrations.huggingface.attention import OBSERVER

__all__ = ["Call", "probe", "probe_inputs"]

_LENGTH = 4


@dataclass
class Call:
    """What a module does with the attention function in one pass."""

    head_dim: int
    heads: int
    count: int = 0
    dropout: float = 0.0


def probe(model: nn.Module, inputs: Mapping[str, Any]) -> tuple[dict[nn.Module, Call], Any]:
    """Calls of every attention module in one forward pass in evaluation mode, and its output."""
    calls: dict[nn.Module, Call] = {}

    def observe(module: nn.Module, query: Tensor, key: Tensor, dropout: float) -> None:
        call = calls.setdefault(module, Call(key.size(-1), query.size(1)))
        call.count += 1
        call.dropout = max(call.dropout, float(dropout))

    token = OBSERVER.set(observe)
    try:
        with torch.no_grad(), _evaluation(model):
            output = model(**inputs)
    finally:
        OBSERVER.reset(token)
    return calls, output


def probe_inputs(model: Any) -> dict[str, Tensor]:
    """Inputs of one short example, made of the configuration, with one position padded."""
    config, device = model.config, model.device
    text = config.get_text_config()
    tokens = (
        torch.arange(5, 5 + _LENGTH, device=device)[None] % text.vocab_size if hasattr(text, "vocab_size") else None
    )
    return {"input_ids": tokens, "attention_mask": torch.tensor([[1] * (_LENGTH - 1) + [0]], device=device)}


@contextmanager
def _evaluation(model: nn.Module) -> Iterator[None]:
    before = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training
