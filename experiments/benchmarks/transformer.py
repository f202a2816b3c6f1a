"""Training steps of a pretrained transformer's size: Bayesian attention of a model of transformers against its own.

python -m experiments.benchmarks.transformer
"""

from __future__ import annotations

from experiments.harness.cli import launch

if __name__ == "__main__":  # ahead of the other imports, which --help does not need
    launch(
        "experiments.benchmarks.transformer",
        "experiments.benchmarks.config:TransformerConfig",
        "experiments.benchmarks.transformer:run",
    )

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from experiments.benchmarks import report
from experiments.benchmarks.config import TransformerConfig
from experiments.benchmarks.memory import measure
from experiments.benchmarks.timing import backward_step
from experiments.files import UserError
from experiments.harness.cli import command_line
from experiments.harness.folder import exclusive
from pyro_attention import AttentionELBO, AttentionGuide, LogNormal, Soft, Weibull
from pyro_attention.families.base import Family
from pyro_attention.integrations.huggingface import bayesian

__all__ = ["CONTESTANTS", "Contestant", "Sizes", "TransformerConfig", "make_step", "run"]

SCRIPT = "experiments.benchmarks.transformer"
Contestant = Literal["soft", "eager", "sdpa", "Weibull", "LogNormal"]
CONTESTANTS: tuple[Contestant, ...] = get_args(Contestant)
QUANTITIES = report.quantities("soft attention's")
# Posterior and prior of the converted models.
SCHEMES: dict[Contestant, tuple[Family, str]] = {
    "soft": (Soft(), "gamma_contextual"),
    "Weibull": (Weibull(10.0), "gamma_contextual"),
    "LogNormal": (LogNormal(0.1), "lognormal_contextual"),
}


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


class _OwnLoss(nn.Module):
    """The loss of a model of transformers, a mean over the batch, as a sum like the ELBO's."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *, labels: Tensor, **inputs: Tensor) -> Tensor:
        loss: Tensor = self.model(**inputs, labels=labels).loss
        return loss * len(labels)


def make_step(contestant: Contestant, sizes: Sizes) -> Callable[[], Tensor]:
    """Forward, backward and AdamW of a BERT with random weights; the step returns the loss.

    Raises:
        UserError: transformers is not installed.
    """
    torch.manual_seed(0)
    batch = _make_batch(sizes)
    model = _make_model(sizes, "eager" if contestant == "eager" else "sdpa").train()
    if contestant in SCHEMES:
        family, prior = SCHEMES[contestant]
        bayesian(model, prior=prior)
        loss: nn.Module = AttentionELBO()(model, AttentionGuide(model, family))
    else:
        loss = _OwnLoss(model)
    backward = backward_step(loss, loss=partial(loss, **batch))
    optimiser = torch.optim.AdamW(loss.parameters(), lr=3e-5)

    def step() -> Tensor:
        value = backward()
        optimiser.step()
        return value

    return step


def _make_model(sizes: Sizes, attention: str) -> Any:
    try:
        from transformers import BertConfig, BertForSequenceClassification
    except ImportError as error:
        raise UserError("this benchmark needs transformers: pip install 'pyro-attention[transformers]'") from error
    config = BertConfig(
        vocab_size=sizes.vocabulary, hidden_size=sizes.width, num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads, intermediate_size=sizes.hidden,
        hidden_dropout_prob=sizes.dropout, attention_probs_dropout_prob=sizes.dropout,
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    model.set_attn_implementation(attention)
    return model


def _make_batch(sizes: Sizes) -> dict[str, Tensor]:
    """Random tokens of lengths between a quarter of the longest and it, and one of two labels each."""
    tokens = torch.randint(sizes.vocabulary, (sizes.batch, sizes.length))
    lengths = torch.randint(max(1, sizes.length // 4), sizes.length + 1, (sizes.batch, 1))
    padding = (torch.arange(sizes.length) < lengths).long()
    return {"input_ids": tokens, "attention_mask": padding, "labels": torch.randint(2, (sizes.batch,))}


@exclusive
def run(config: TransformerConfig) -> dict[str, float]:
    """Measure, print the table and write metrics; the metrics are returned.

    Raises:
        UserError: transformers is not installed, there is not enough memory, or the folder holds something else.
    """
    report.open_folder(config.out, SCRIPT, config.threads)
    sizes = Sizes(batch=config.batch, length=config.length)
    name = f"{sizes.batch}x{sizes.length}_tokens"
    metrics = report.sized_metrics(name, *measure(make_step, CONTESTANTS, sizes, rounds=config.rounds))
    shape = (
        f"{sizes.layers} layers of {sizes.heads} heads, width {sizes.width}, at {sizes.batch} x {sizes.length} tokens"
    )
    text = f"""Training steps (forward, backward, AdamW) of a BERT of MiniLM's size,
{shape} with padding, in float32. Rows: the converted
model under Soft, the original with eager and with fused (sdpa) attention, and the converted model with contextual
priors. Medians of {config.rounds} interleaved rounds, ratios to soft attention in the same round; memory at the peak
beyond that before, each in a fresh process."""
    report.publish(
        SCRIPT, metrics, QUANTITIES, _rows(metrics), out=config.out, results=config.results, name="transformer",
        title="A pretrained transformer", command=command_line(SCRIPT, config, always=("rounds",)), text=text,
    )  # fmt: skip
    return metrics


def _rows(metrics: dict[str, float]) -> list[dict[str, str]]:
    """A row for each contestant."""
    table = []
    for name in CONTESTANTS:
        found = {key.rpartition("/")[2]: value for key, value in metrics.items() if f"/{name}/" in key}
        row = {"attention": name, "ratio": f"{found['ratio']:.2f}"}
        row["10-90 % of the ratio"] = f"{found['ratio_low']:.2f} - {found['ratio_high']:.2f}"
        table.append(row | {"ms": f"{found['ms']:.0f}", "MB": f"{found['peak_mb']:.0f}"})
    return table
