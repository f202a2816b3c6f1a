"""A translation model by inference scheme: soft attention, exact sums, sums over few alignments; posterior samples."""

from __future__ import annotations

from experiments.benchmarks import start

if __name__ == "__main__":  # ahead of the other imports, which --help does not need
    start("alignment_schemes", "AlignmentSchemesConfig")

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from experiments.benchmarks import enumeration
from experiments.benchmarks.config import AlignmentSchemesConfig
from experiments.benchmarks.measuring import Outcome, command, measure, progress, rows_by_size, training_step
from experiments.harness.options import Precision
from experiments.harness.training import resolve_precision
from guides.inference_network import AlignmentNetwork
from guides.names import SchemeName
from guides.schemes import build_scheme
from models.nmt import Translation, TranslationSizes
from pyro_attention import AttentionGuide, ContextualGammaPrior, Soft, Weibull, sample_posterior
from pyro_attention.families.base import Prior

CONTESTANTS: tuple[SchemeName, ...] = ("soft", "marginal", "sparse_marginal", "categorical_enum", "sparse_enum")
SAMPLES = 32


@dataclass(frozen=True)
class Sizes(enumeration.Sizes):
    """Sizes of a batch, the most keys of a sparse alignment (an untrained network has so many), and the arithmetic."""

    top_k: int = 3
    precision: Precision = "32"


def _translation(sizes: enumeration.Sizes, prior: Prior | None) -> tuple[Translation, Tensor, Tensor]:
    """An untrained model, and words of sources and targets."""
    widths = TranslationSizes(*[sizes.width] * 4)
    model = Translation(sizes.vocabulary, sizes.vocabulary, sizes=widths, prior=prior)
    shapes = ((sizes.batch, sizes.sources), (sizes.batch, sizes.targets))
    source, target = (torch.randint(sizes.vocabulary, shape) for shape in shapes)
    return model, source, target


def make_step(contestant: SchemeName, sizes: Sizes) -> Callable[[], Tensor]:
    """Forward, backward and Adam of an untrained translation model; the step returns the negative ELBO."""
    torch.manual_seed(0)
    scheme = build_scheme(contestant, top_k=sizes.top_k)
    model, source, target = _translation(sizes, scheme.prior(sizes.width, 1))
    network = None
    if scheme.amortised:
        network = AlignmentNetwork(model.source_embedding, model.target_embedding, hidden=sizes.width)
    masks = [torch.ones_like(words, dtype=torch.bool) for words in (source, target)]
    loss = scheme.elbo(model, scheme.guide(model, network))
    # without the backward pass, as in training
    mixed = torch.autocast(source.device.type, torch.bfloat16, enabled=sizes.precision == "bf16-mixed")
    return training_step(loss, source, masks[0], target, target, masks[1], loss=mixed(loss), learning_rate=0.0)


@command
def run(config: AlignmentSchemesConfig) -> Outcome:
    """Measure by the number of sources and the precision."""
    metrics, shown = dict[str, float](), dict[str, str]()
    sizes = Sizes(vocabulary=config.vocabulary, top_k=config.top_k)
    precisions = dict.fromkeys(resolve_precision(one, torch.device("cpu")) for one in config.precisions)
    for sources, precision in progress(list(product(config.sources, precisions)), "size"):
        size = replace(sizes, sources=sources, precision=precision)
        metrics |= measure(name := f"{sources}_sources/{precision}", make_step, CONTESTANTS, size, rounds=config.rounds)
        shown[name] = f"{sources}, {precision}"
    return Outcome(
        metrics=metrics,
        rows=rows_by_size(metrics, "sources, precision", shown, CONTESTANTS),
        name="alignment-schemes",
        title="Training steps by inference scheme",
        reference="that of soft attention",
        clock=" and Adam",
        text=f"Training steps (forward, backward, Adam) of a translation model, untrained, by inference scheme: "
        f"{sizes.batch} sentences of {sizes.targets} words, width {sizes.width}, two layers, {sizes.vocabulary} "
        f"tokens; in 32 bits, or with matrix products in bfloat16. Sparse alignments are top-k sparsemax with "
        f"k = {sizes.top_k}, and have so many keys at every word before training; marginal and categorical_enum sum "
        f"over all sources. Medians of {config.rounds} interleaved rounds, ratios to soft attention of the same "
        f"precision in the same round (10-90 %); memory at the peak beyond that before.",
    )


def make_guides(sizes: enumeration.Sizes) -> tuple[AttentionGuide, AttentionGuide, tuple[Any, ...]]:
    """Soft and Weibull attention over one translation model, and the arguments of a teacher-forced pass."""
    torch.manual_seed(0)
    model, source, target = _translation(sizes, ContextualGammaPrior(sizes.width))
    model.eval()
    guides = AttentionGuide(model, Soft()), AttentionGuide(model, Weibull())
    return *guides, (source, torch.ones_like(source, dtype=torch.bool), target, target)


def posterior_samples(sizes: enumeration.Sizes) -> list[dict[str, Callable[[], object]]]:
    """A pass of soft attention (the reference; without the log probabilities of the words), and 32 samples."""
    soft, weibull, arguments = make_guides(sizes)
    samples = partial(sample_posterior, weibull, *arguments, num_samples=SAMPLES)
    contestants: dict[str, Callable[[], object]] = {
        "deterministic pass": torch.no_grad()(partial(soft.run, *arguments)),
        f"{SAMPLES} samples, one at a time": partial(samples, chunk_size=1),
        f"{SAMPLES} samples, chunked": partial(samples, chunk_size=SAMPLES),
    }
    return [contestants]
