"""Training steps of a pretrained transformer's size: Bayesian attention of a model of transformers against its own."""

from __future__ import annotations

from experiments.benchmarks import start

if __name__ == "__main__":  # ahead of the other imports, which --help does not need
    start("transformer", "TransformerConfig")

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from experiments.benchmarks.config import TransformerConfig
from experiments.benchmarks.measuring import Outcome, command, measure, rows_by_contestant, training_step
from experiments.files import UserError
from pyro_attention import AttentionELBO, AttentionGuide, LogNormal, Soft, Weibull
from pyro_attention.families.base import Family
from pyro_attention.integrations.huggingface import bayesian

# Posterior and prior of the converted model; the others are the model's own attention by its name.
SCHEMES: dict[str, tuple[Family, str] | None] = {
    "soft": (Soft(), "gamma_contextual"),
    "eager": None,
    "sdpa": None,
    "Weibull": (Weibull(10.0), "gamma_contextual"),
    "LogNormal": (LogNormal(0.1), "lognormal_contextual"),
}
CONTESTANTS = tuple(SCHEMES)


@dataclass(frozen=True)
class Sizes:
    """Sizes of the model, MiniLM's by default, and of a batch."""

    layers: int = 6
    heads: int = 12
    width: int = 384
    hidden: int = 1536
    vocabulary: int = 30_522
    dropout: float = 0.1
    batch: int = 32
    length: int = 64


def make_step(contestant: str, sizes: Sizes) -> Callable[[], Tensor]:
    """Forward, backward and AdamW of a BERT with random weights; the step returns the loss.

    Tokens are random, of lengths between a quarter of the longest and it, with one of two labels each.

    Raises:
        UserError: transformers is not installed.
    """
    try:
        from transformers import BertConfig, BertForSequenceClassification
    except ImportError as error:
        raise UserError("this benchmark needs transformers: pip install 'pyro-attention[transformers]'") from error
    torch.manual_seed(0)
    tokens = torch.randint(sizes.vocabulary, (sizes.batch, sizes.length))
    lengths = torch.randint(max(1, sizes.length // 4), sizes.length + 1, (sizes.batch, 1))
    padding = (torch.arange(sizes.length) < lengths).long()
    batch = {"input_ids": tokens, "attention_mask": padding, "labels": torch.randint(2, (sizes.batch,))}
    config = BertConfig(
        vocab_size=sizes.vocabulary, hidden_size=sizes.width, num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads, intermediate_size=sizes.hidden,
        hidden_dropout_prob=sizes.dropout, attention_probs_dropout_prob=sizes.dropout,
    )  # fmt: skip
    model = BertForSequenceClassification(config).train()
    model.set_attn_implementation("eager" if contestant == "eager" else "sdpa")
    options: dict[str, Any] = {"optimizer": torch.optim.AdamW, "learning_rate": 3e-5}
    if (scheme := SCHEMES[contestant]) is None:  # its own loss, a mean over the batch, as a sum like the ELBO's
        return training_step(model, loss=lambda: model(**batch).loss * sizes.batch, **options)
    bayesian(model, prior=scheme[1])
    elbo = AttentionELBO()(model, AttentionGuide(model, scheme[0]))
    return training_step(elbo, loss=partial(elbo, **batch), **options)


@command
def run(config: TransformerConfig) -> Outcome:
    """Measure at one size."""
    sizes = Sizes(batch=config.batch, length=config.length)
    name = f"{sizes.batch}x{sizes.length}_tokens"
    metrics = measure(name, make_step, CONTESTANTS, sizes, rounds=config.rounds)
    return Outcome(
        metrics=metrics,
        rows=rows_by_contestant(metrics, {name: {}}, CONTESTANTS),
        name="transformer",
        title="A pretrained transformer",
        reference="soft attention's",
        text=f"""Training steps (forward, backward, AdamW) of a BERT of MiniLM's size,
{sizes.layers} layers of {sizes.heads} heads, width {sizes.width}, at {sizes.batch} x {sizes.length} tokens with
padding, in float32. Rows: the converted model under Soft, the original with eager and with fused (sdpa) attention, and
the converted model with contextual priors. Medians of {config.rounds} interleaved rounds, ratios to soft attention in
the same round; memory at the peak beyond that before, each in a fresh process.""",
    )
