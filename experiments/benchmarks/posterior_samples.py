"""Many posterior samples of a translation's alignment, against one deterministic pass of the model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from experiments.benchmarks.enumeration import Sizes
from experiments.benchmarks.timing import Timing, interleave
from models.nmt import Translation, TranslationSizes
from pyro_attention import AttentionGuide, ContextualGammaPrior, Soft, Weibull, sample_posterior

__all__ = ["SAMPLES", "make_guides", "run"]

SAMPLES = 32


def make_guides(sizes: Sizes) -> tuple[AttentionGuide, AttentionGuide, tuple[Any, ...]]:
    """Soft and Weibull attention over one translation model, and the arguments of a teacher-forced pass."""
    torch.manual_seed(0)
    widths = TranslationSizes(*[sizes.width] * 4)
    prior = ContextualGammaPrior(sizes.width)
    model = Translation(sizes.vocabulary, sizes.vocabulary, sizes=widths, prior=prior).eval()
    source = torch.randint(sizes.vocabulary, (sizes.batch, sizes.sources))
    target = torch.randint(sizes.vocabulary, (sizes.batch, sizes.targets))
    guides = AttentionGuide(model, Soft()), AttentionGuide(model, Weibull())
    return *guides, (source, torch.ones_like(source, dtype=torch.bool), target, target)


def run(*, rounds: int = 50, sizes: Sizes | None = None) -> dict[str, Timing]:
    """Time a pass of soft attention (the reference; without the log probabilities of the words), and 32 samples."""
    soft, weibull, arguments = make_guides(Sizes(25) if sizes is None else sizes)

    samples = partial(sample_posterior, weibull, *arguments, num_samples=SAMPLES)
    contestants: dict[str, Callable[[], object]] = {
        "deterministic pass": torch.no_grad()(partial(soft.run, *arguments)),
        f"{SAMPLES} samples, one at a time": partial(samples, chunk_size=1),
        f"{SAMPLES} samples, chunked": partial(samples, chunk_size=SAMPLES),
    }
    return interleave(contestants, rounds=rounds, warm_up=1)
