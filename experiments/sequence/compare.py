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

__all__ = ["protocol", "scheme_config", "scheme_options", "train_schemes"]

Config = TypeVar("Config", bound=SequenceConfig)


def scheme_config(
    config: CompareSequences, base: Config, name: str, scheme: SchemeName, *, warm_start: int = 0, **changes: Any
) -> Config:
    """A row of the comparison, from soft attention's network (``base``) at half the learning rate, or by itself."""
    options = scheme_options(scheme, kl_weight=config.kl_weight, warm_start=warm_start)
    if config.base_epochs:
        options |= {"init_from": base.out, "learning_rate": base.learning_rate / 2}
    out = Path(str(base.out)).with_name(f"{name}-{base.seed}")
    return replace(base, max_epochs=config.epochs, out=out, **(options | changes))


def scheme_options(scheme: str, *, kl_weight: float, warm_start: int) -> dict[str, Any]:
    """What a scheme changes in the options of a training.

    The weight of the KL is for unnormalised weights alone, and the first epochs without an inference network for
    dirichlet alone, whose network then starts at q = p, as it is untrained.
    """
    warm = warm_start if scheme == "dirichlet" else 0
    weight = kl_weight if scheme in ("weibull", "lognormal", "gamma") else 1.0
    return {"guide": scheme, "kl_weight": weight, "warm_start": warm, "posterior_from_prior": warm > 0}


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
