"""Training steps of whole networks: MCAN, and a BERT of MiniLM's size out of transformers made Bayesian."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from experiments.benchmarks.measuring import Benchmark, training_step
from models.vqa import MCAN, MCANSizes
from pyro_attention import AttentionELBO, AttentionGuide, LogNormal, Soft, Weibull
from pyro_attention.families.base import Family

FAMILIES: dict[str, Family] = {"soft": Soft(), "Weibull": Weibull(10.0)}


@dataclass(frozen=True)
class Questions:
    """Sizes of a batch and of MCAN, those of VQA v2."""

    batch: int = 16
    words: int = 14
    regions: int = 36
    features: int = 2048
    vocabulary: int = 20_000
    answers: int = 3129
    network: MCANSizes = field(default_factory=MCANSizes)
    dropout: float = 0.1


def make_mcan_step(contestant: str, sizes: Questions) -> Callable[[], Tensor]:
    """Forward, backward and Adam of MCAN with a contextual Gamma prior of all attention; the step returns the loss.

    Questions have a quarter of the most words and more, regions are all real, and a few answers have a score.
    """
    torch.manual_seed(0)
    real = torch.arange(sizes.words) < torch.randint(max(1, sizes.words // 4), sizes.words + 1, (sizes.batch, 1))
    question = torch.randint(1, sizes.vocabulary, real.shape) * real
    regions = torch.randn(sizes.batch, sizes.regions, sizes.features)
    scores = (torch.rand(sizes.batch, sizes.answers) < 3 / sizes.answers).float()
    model = MCAN(sizes.vocabulary, sizes.features, sizes.answers, sizes=sizes.network, dropout=sizes.dropout)
    loss = AttentionELBO()(model, AttentionGuide(model, FAMILIES[contestant]))
    return training_step(loss, question, real, regions, torch.ones(regions.shape[:-1], dtype=torch.bool), scores)


MCAN_STEPS = Benchmark(
    title="MCAN",
    text="Training steps (forward, backward, Adam) of MCAN at its published sizes, 6 layers of 8 heads, width 512, on "
    "16 questions of up to 14 words about 36 regions of 2048 features, in float32: all attention Bayesian, with a "
    "contextual Gamma prior, or soft.",
    make_step=make_mcan_step,
    contestants=tuple(FAMILIES),
    sizes={"16 questions": Questions()},
)

# Posterior and prior of the converted model; the others are the model's own attention by its name.
SCHEMES: dict[str, tuple[Family, str] | None] = {
    "soft": (Soft(), "gamma_contextual"),
    "eager": None,
    "sdpa": None,
    "Weibull": (Weibull(10.0), "gamma_contextual"),
    "LogNormal": (LogNormal(0.1), "lognormal_contextual"),
}


@dataclass(frozen=True)
class Tokens:
    """Sizes of a BERT, MiniLM's, and of a batch."""

    layers: int = 6
    heads: int = 12
    width: int = 384
    hidden: int = 1536
    vocabulary: int = 30_522
    dropout: float = 0.1
    batch: int = 32
    length: int = 64


def make_bert_step(contestant: str, sizes: Tokens) -> Callable[[], Tensor]:
    """Forward, backward and AdamW of a BERT with random weights; the step returns the loss.

    Tokens are random, of lengths between a quarter of the longest and it, with one of two labels each.
    """
    from transformers import BertConfig, BertForSequenceClassification

    from pyro_attention.integrations.huggingface import bayesian

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


TRANSFORMER_STEPS = Benchmark(
    title="A pretrained transformer",
    text="Training steps (forward, backward, AdamW) of a BERT of MiniLM's size, 6 layers of 12 heads, width 384, at "
    "32 x 64 tokens with padding, in float32. Rows: the converted model under Soft, the original with eager and with "
    "fused (sdpa) attention, and the converted model with contextual priors.",
    make_step=make_bert_step,
    contestants=tuple(SCHEMES),
    sizes={"32 x 64 tokens": Tokens()},
    rounds=10,
)
