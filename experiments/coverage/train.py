"""Train a network on a problem whose attention weights are known, and count how often its intervals hold them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyro
import torch
from torch import Tensor, nn

from experiments.coverage.config import CoverageConfig
from experiments.coverage.model import NOISE, Batches, Items, TrainedCoverage, build, generate, log_mean, scheme
from experiments.harness.training import FITTED, Fitted, fit
from experiments.run import Task, run_and_show
from pyro_attention import ScorePosterior
from pyro_attention.analysis.inputs import equal_tailed
from pyro_attention.posterior.predictive import seeded

LEVEL = 0.9
TERCILES = ("low", "middle", "high")
_RUNS = 200  # with other parameters, or other dropout
_CHUNK = 100  # draws of a run


class CoverageTask(Task[CoverageConfig, dict[str, Items], TrainedCoverage]):
    """Intervals of attention weights that are known."""

    config = CoverageConfig
    script = "experiments.coverage"

    def folder(self, config: CoverageConfig) -> str:
        return f"coverage/{config.toy}-{config.objective}-{config.family}-{config.width}-{config.seed}"

    def load(self, config: CoverageConfig) -> dict[str, Items]:
        return generate(config)

    def build(self, config: CoverageConfig, data: dict[str, Items], folder: Path) -> TrainedCoverage:  # noqa: ARG002
        return build(config)

    def planned(self, config: CoverageConfig) -> bool:  # noqa: ARG002
        return True

    def fit(self, trained: TrainedCoverage, data: dict[str, Items], folder: Path) -> Fitted:
        config = trained.config
        train, val = (
            Batches(data["train"], config.batch_size, shuffle=True, repeats=config.repeats),
            Batches(data["val"], 1000),
        )
        found = []
        for member, module in enumerate(trained.modules):
            place = folder if member == 0 else folder / f"member-{member}"
            place.mkdir(parents=True, exist_ok=True)
            found.append(
                fit(config, module, train, val, folder=place, patience=config.max_epochs, monitor={"val_loss": "min"},
                    keep="last", gradient_clip=100.0)
            )  # fmt: skip
            module.eval()
        return found[0]

    def evaluate(
        self, trained: TrainedCoverage, data: dict[str, Items], fitted: Fitted, folder: Path  # noqa: ARG002
    ) -> dict[str, float]:  # fmt: skip
        config, test = trained.config, data["test"]
        with seeded(config.seed):
            metrics = scores(
                "mean", test, *draws(trained, test, 1 if config.objective == "soft" else config.num_samples)
            )
            if config.dropout:
                metrics |= scores("dropout", test, *several(trained, test, _Dropping(trained.model.dropout)))
            if config.laplace:
                batches = Batches(data["train"], 2000)
                loss = scheme(replace(config, draws=32))[2](trained.model, trained.guide)
                posterior = ScorePosterior(trained.model, "query.*", loss, batches)
                metrics |= scores("laplace", test, *several(trained, test, posterior))
                metrics |= scores("truth", test, *true_draws(test, NOISE[config.toy], config.num_samples))
        if config.toy == "noise" and config.objective == "soft":
            metrics |= _at_temperature(trained, data["val"], test, metrics)
        return {**metrics, "val_nll": fitted.history[fitted.best_epoch]["val_loss"]}

    def definitions(self, metrics: Mapping[str, float]) -> Mapping[str, str]:
        texts = {
            "nll": "negative log likelihood of a test item, by all draws",
            "coverage": f"share of test weights inside their {LEVEL:.0%} interval",
            **{f"coverage_{name}": f"the same where the true spread is in its {name} third" for name in TERCILES},
            "width": "mean width of the intervals",
            "error": "root mean square error of the mean weights",
            "error_given": "the same with draws weighted by the likelihood of y",
            "temperature": "what the noise is multiplied by, chosen on validation items",
        }
        found = {name: texts[name.partition("_")[2] or name] for name in metrics if name.partition("_")[2] in texts}
        return found | {"temperature": texts["temperature"], "val_nll": "validation loss", **FITTED}


def draws(trained: TrainedCoverage, items: Items, count: int) -> tuple[Tensor, Tensor]:
    """Draws of weights ``[S, n, KEYS]`` and the log likelihoods with them ``[S, n]``, as many of every member."""
    weights, log_likelihood = [], []
    with torch.no_grad():
        for module in trained.modules:
            for start in range(0, count, _CHUNK):
                with pyro.plate("draws", min(_CHUNK, count - start), dim=-2):
                    run = module.objective.guide.run(*items[:4])
                site = run.trace.nodes["attention"]
                weights.append(site["infer"]["prior"].weights(site["value"]).squeeze(-2))
                log_likelihood.append(run.output)
    shape = items.weights.shape
    return torch.cat([each.view(-1, *shape) for each in weights]), torch.cat(
        [each.view(-1, shape[0]) for each in log_likelihood]
    )


def several(trained: TrainedCoverage, items: Items, draw: AbstractContextManager[Any]) -> tuple[Tensor, Tensor]:
    """:func:`draws` in many runs, around each of which something is drawn for all of its items."""
    config, found = trained.config, []
    for _ in range(_RUNS):
        with draw:
            found.append(draws(trained, items, 1 if config.objective == "soft" else config.num_samples // _RUNS))
    weights, log_likelihood = zip(*found, strict=True)
    return torch.cat(weights), torch.cat(log_likelihood)


class _Dropping(AbstractContextManager[None]):
    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __enter__(self) -> None:
        self.module.train()

    def __exit__(self, *_: object) -> None:
        self.module.eval()


def true_draws(items: Items, noise: float, count: int) -> tuple[Tensor, Tensor]:
    """:func:`draws` by who knows scores, spread and noise."""
    weights = (items.scores + items.spread.unsqueeze(1) * torch.randn(count, *items.scores.shape)).softmax(-1)
    mean = torch.einsum("snk,nkv->snv", weights, items.values)
    return weights, torch.distributions.Normal(mean, noise).log_prob(items.y).sum(-1)


def scores(kind: str, items: Items, weights: Tensor, log_likelihood: Tensor) -> dict[str, float]:
    """What draws say of the test items."""
    mean, low, high = equal_tailed(weights, LEVEL)
    inside = ((items.weights >= low) & (items.weights <= high)).float().mean(-1)
    given = (log_likelihood.softmax(0).unsqueeze(-1) * weights).sum(0)
    found = {
        "nll": -log_mean(log_likelihood).mean(),
        "coverage": inside.mean(),
        "width": (high - low).mean(),
        "error": (mean - items.weights).square().mean().sqrt(),
        "error_given": (given - items.weights).square().mean().sqrt(),
    }
    if items.spread.any():
        parts = zip(TERCILES, items.spread.argsort().tensor_split(3), strict=True)
        found |= {f"coverage_{name}": inside[part].mean() for name, part in parts}
    return {f"{kind}_{name}": value.item() for name, value in found.items()}


def _at_temperature(
    trained: TrainedCoverage, val: Items, test: Items, metrics: Mapping[str, float]
) -> dict[str, float]:
    """Scores with the noise multiplied by what is best on validation items."""
    losses = {}
    for number in range(-20, 21):
        trained.model.temperature = math.exp(number / 20)
        losses[trained.model.temperature] = -log_mean(draws(trained, val, 1)[1]).mean().item()
    trained.model.temperature = best = min(losses, key=losses.__getitem__)
    nll = -log_mean(draws(trained, test, 1)[1]).mean().item()
    trained.model.temperature = 1.0
    same = {f"scaled_{name.partition('_')[2]}": value for name, value in metrics.items() if name.startswith("mean_")}
    return {**same, "scaled_nll": nll, "temperature": best}


train = partial(run_and_show, CoverageTask())
