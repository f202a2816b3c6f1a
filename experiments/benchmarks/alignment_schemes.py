"""Training steps of a translation model by inference scheme: soft attention, exact sums, and sums over few alignments.

python -m experiments.benchmarks.alignment_schemes
"""

from __future__ import annotations

from experiments.harness.cli import launch

if __name__ == "__main__":  # ahead of the other imports, which --help does not need
    launch(
        "experiments.benchmarks.alignment_schemes",
        "experiments.benchmarks.config:AlignmentSchemesConfig",
        "experiments.benchmarks.alignment_schemes:run",
    )

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal, get_args

import torch
from torch import Tensor

from experiments.benchmarks import enumeration, report
from experiments.benchmarks.config import AlignmentSchemesConfig
from experiments.benchmarks.memory import measure
from experiments.benchmarks.timing import training_step
from experiments.harness.cli import command_line
from experiments.harness.folder import exclusive
from experiments.harness.options import Precision
from experiments.harness.training import resolve_precision
from guides.inference_network import AlignmentNetwork
from guides.schemes import build_scheme
from models.nmt import Translation, TranslationSizes

__all__ = ["CONTESTANTS", "Contestant", "Sizes", "make_step", "run"]

SCRIPT = "experiments.benchmarks.alignment_schemes"
Contestant = Literal["soft", "marginal", "sparse_marginal", "categorical_enum", "sparse_enum"]
CONTESTANTS: tuple[Contestant, ...] = get_args(Contestant)
QUANTITIES = report.quantities("that of soft attention", clock=" and Adam")


@dataclass(frozen=True)
class Sizes(enumeration.Sizes):
    """Sizes of a batch, the most keys of a sparse alignment (an untrained network has so many), and the arithmetic."""

    top_k: int = 3
    precision: Precision = "32"


def make_step(contestant: Contestant, sizes: Sizes) -> Callable[[], Tensor]:
    """Forward, backward and Adam of an untrained translation model; the step returns the negative ELBO."""
    torch.manual_seed(0)
    scheme = build_scheme(contestant, top_k=sizes.top_k)
    widths = TranslationSizes(*[sizes.width] * 4)
    model = Translation(sizes.vocabulary, sizes.vocabulary, sizes=widths, prior=scheme.prior(sizes.width, 1))
    network = None
    if scheme.amortised:
        network = AlignmentNetwork(model.source_embedding, model.target_embedding, hidden=sizes.width)
    source = torch.randint(sizes.vocabulary, (sizes.batch, sizes.sources))
    target = torch.randint(sizes.vocabulary, (sizes.batch, sizes.targets))
    masks = [torch.ones_like(words, dtype=torch.bool) for words in (source, target)]
    loss = scheme.elbo(model, scheme.guide(model, network))
    # without the backward pass, as in training
    mixed = torch.autocast(source.device.type, torch.bfloat16, enabled=sizes.precision == "bf16-mixed")
    return training_step(loss, source, masks[0], target, target, masks[1], loss=mixed(loss), learning_rate=0.0)


@exclusive
def run(config: AlignmentSchemesConfig) -> dict[str, float]:
    """Measure, print the table and write the metrics, which are returned."""
    report.open_folder(config.out, SCRIPT, config.threads)
    metrics: dict[str, float] = {}
    sizes = Sizes(0, vocabulary=config.vocabulary, top_k=config.top_k)
    shown = dict[str, str]()
    precisions = dict.fromkeys(resolve_precision(one, torch.device("cpu")) for one in config.precisions)
    for sources, precision in report.progress(list(product(config.sources, precisions)), "size"):
        size = replace(sizes, sources=sources, precision=precision)
        measured = measure(make_step, CONTESTANTS, size, rounds=config.rounds)
        metrics |= report.sized_metrics(name := f"{sources}_sources/{precision}", *measured)
        shown[name] = f"{sources}, {precision}"
    rows = report.rows_by_size(metrics, "sources, precision", shown, CONTESTANTS)
    text = (
        f"Training steps (forward, backward, Adam) of a translation model, untrained, by inference scheme: "
        f"{sizes.batch} sentences of {sizes.targets} words, width {sizes.width}, two layers, {sizes.vocabulary} "
        f"tokens; in 32 bits, or with matrix products in bfloat16. Sparse alignments are top-k sparsemax with "
        f"k = {sizes.top_k}, and have so many keys at every word before training; marginal and categorical_enum sum "
        f"over all sources. Medians of {config.rounds} interleaved rounds, ratios to soft attention of the same "
        f"precision in the same round (10-90 %); memory at the peak beyond that before."
    )
    report.publish(
        SCRIPT, metrics, QUANTITIES, rows, out=config.out, results=config.results,
        name="alignment-schemes", title="Training steps by inference scheme", text=text,
        command=command_line(SCRIPT, config, always=("rounds",)),
    )  # fmt: skip
    return metrics
