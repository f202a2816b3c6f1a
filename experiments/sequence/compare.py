"""What the comparisons of translation and of captioning share: soft attention first, then every scheme from there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from experiments.harness.sweep import Key, Sweep, Trainings
from experiments.sequence.config import CompareSequences, SequenceConfig
from experiments.sequence.learned import warnings_of
from guides.names import SchemeName

__all__ = ["protocol", "scheme_config", "train_schemes", "warm_start_options"]

Config = TypeVar("Config", bound=SequenceConfig)


def scheme_config(config: CompareSequences, base: Config, name: str, scheme: SchemeName, **changes: Any) -> Config:
    """A row of the comparison, from soft attention's network (``base``) at half the learning rate, or by itself."""
    if config.base_epochs:
        changes |= {"init_from": base.out, "learning_rate": base.learning_rate / 2}
    kl_weight = config.kl_weight if scheme in ("weibull", "lognormal", "gamma") else 1.0
    out = Path(str(base.out)).with_name(f"{name}-{base.seed}")
    return replace(base, guide=scheme, kl_weight=kl_weight, max_epochs=config.epochs, out=out, **changes)


def warm_start_options(scheme: str, epochs: int) -> dict[str, Any]:
    """Dirichlet's first epochs, without its inference network; then that starts at q = p, as it is untrained."""
    warm = epochs if scheme == "dirichlet" else 0
    return {"warm_start": warm, "posterior_from_prior": warm > 0}


def train_schemes(
    sweep: Sweep,
    run: Callable[[Config], dict[str, float]],
    bases: Mapping[Key, Config],
    configs: Mapping[Key, Config],
) -> Trainings[Config]:
    """Train soft attention, unless every scheme begins by itself, and then all rows."""
    if bases:
        print("Training soft attention, once a seed:", flush=True)
        sweep.train(run, bases, shown="val_ppl")
    print("Training every scheme:", flush=True)
    trainings = sweep.train(run, configs, shown="val_ppl")
    for (*row, seed), metrics in trainings.metrics.items():
        for text in warnings_of(metrics):
            print(f"warning: {', '.join(map(str, row))}, seed {seed}: {text}", file=sys.stderr)
    return trainings


def protocol(config: CompareSequences) -> str:
    """How the numbers came about."""
    seeds = "1 seed." if config.seeds == 1 else f"{config.seeds} seeds, mean ± standard deviation."
    if not config.base_epochs:
        return f"{seeds} Every scheme is trained from the beginning, for {config.epochs} epochs at most."
    return (
        f"{seeds} Soft attention is trained for {config.base_epochs} epochs; every scheme, soft too, goes on from "
        f"there for {config.epochs} at half the learning rate."
    )
