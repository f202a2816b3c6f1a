"""Training steps of MCAN at its published sizes: Bayesian attention against soft attention."""

from __future__ import annotations

from experiments.benchmarks import start

if __name__ == "__main__":  # ahead of the other imports, which --help does not need
    start("mcan", "MCANConfig")

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from experiments.benchmarks.config import MCANConfig
from experiments.benchmarks.measuring import Outcome, command, measure, rows_by_size, training_step
from models.vqa import MCAN, MCANSizes
from pyro_attention import AttentionELBO, AttentionGuide, Soft, Weibull

FAMILIES = {"soft": Soft(), "Weibull": Weibull(10.0)}
CONTESTANTS = tuple(FAMILIES)
MAX_RATIO = 1.3  # what is aimed at


@dataclass(frozen=True)
class Sizes:
    """Sizes of a batch and of the network, those of VQA v2 by default."""

    batch: int = 16
    words: int = 14
    regions: int = 36
    features: int = 2048
    vocabulary: int = 20_000
    answers: int = 3129
    network: MCANSizes = field(default_factory=MCANSizes)
    dropout: float = 0.1


def make_step(contestant: str, sizes: Sizes) -> Callable[[], Tensor]:
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


@command
def run(config: MCANConfig) -> Outcome:
    """Measure, and say whether the aim is reached."""
    sizes = Sizes(batch=config.batch, words=config.words, regions=config.regions)
    size, network = f"{sizes.batch}_questions", sizes.network
    metrics = measure(size, make_step, CONTESTANTS, sizes, rounds=config.rounds)
    ratio = metrics[f"{size}/Weibull/ratio"]
    reached = "is" if ratio <= MAX_RATIO else "is not"
    finding = f"The aim of at most {MAX_RATIO} times the step of soft attention {reached} reached ({ratio:.2f})."
    print(finding)
    return Outcome(
        metrics=metrics,
        rows=rows_by_size(metrics, "questions", {size: str(sizes.batch)}, CONTESTANTS),
        name="mcan",
        title="MCAN",
        reference="soft attention's",
        clock=" and Adam",
        text=f"""Training steps (forward, backward, Adam) of MCAN with {network.layers} layers, {network.heads} heads
and width {network.width}, on {sizes.batch} questions of up to {sizes.words} words about {sizes.regions} regions of
{sizes.features} features, in float32: all attention Bayesian, with a contextual Gamma prior, or soft. Medians of
{config.rounds} interleaved rounds, ratios to soft attention in the same round with their 10 and 90 % quantiles;
memory at the peak beyond that before, each in a fresh process.""",
        notes=finding,
    )
