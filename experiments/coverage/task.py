"""Train a network on a problem whose attention weights are known, and count how often its intervals hold them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyro
import torch
from torch import Tensor, nn

from experiments.coverage.config import CoverageConfig
from experiments.coverage.problems import PROBLEMS, normal
from experiments.files import user_errors
from experiments.run import BAD_INPUT, Task, run_folder, show_run
from experiments.training import Fitted, OneCycleTraining, Trained, fit, resolve_device
from pyro_attention import (
    AttentionELBO,
    AttentionGuide,
    Dense,
    EvidenceELBO,
    FixedGammaPrior,
    FromPrior,
    LaplacePosterior,
    LatentAttention,
    LogNormal,
    ScorePrior,
    Soft,
    Weibull,
    WidthNetwork,
    predict,
)
from pyro_attention.analysis.inputs import equal_tailed
from pyro_attention.analysis.widths import check_width, evidence_gap
from pyro_attention.families.base import Family, OneParameterFamily, Prior
from pyro_attention.families.lognormal import FixedLogNormalPrior
from pyro_attention.guide import attention_weights
from pyro_attention.posterior.predictive import seeded

KEYS = 6
NOISE = {"noise": 0.1, "ignorance": 0.5}  # standard deviation of an observation
WEIBULL = math.pi / math.sqrt(6)  # concentration times the standard deviation of log S
LEVEL = 0.9
TERCILES = ("low", "middle", "high")
_RUNS = 200  # with other parameters, or other dropout
_CHUNK = 100  # draws of a run


class Items(NamedTuple):
    """Items of a problem; a network gets the first four fields."""

    queries: Tensor  # [n, Q]
    keys: Tensor  # [n, KEYS, D]
    values: Tensor  # [n, KEYS, V]
    y: Tensor  # [n, V]
    weights: Tensor  # [n, KEYS], true ones
    scores: Tensor  # [n, KEYS], true ones
    spread: Tensor  # [n], true standard deviation of log S

    def chosen(self, index: Tensor) -> Items:
        """Return the items of an index."""
        return Items(*(field[index] for field in self))

    def to(self, device: torch.device) -> Items:
        """Return the items on a device."""
        return Items(*(field.to(device) for field in self))


def generate(config: CoverageConfig) -> dict[str, Items]:
    """Draw training, validation and test items of a problem, by the seed."""
    generator = torch.Generator().manual_seed(config.seed)
    counts = {"train": config.items, "val": 2000, "test": 2000}
    if config.toy in PROBLEMS:
        return {part: _drawn(config.toy, count, generator) for part, count in counts.items()}

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    form = torch.eye(3) if config.toy == "noise" else config.form * randn(4, 4)
    parts, width = {}, 4 if config.toy == "noise" else 3
    for part, count in counts.items():
        queries, keys, values = randn(count, len(form)), randn(count, KEYS, len(form)), randn(count, KEYS, width)
        scores, spread = torch.einsum("nq,qd,nkd->nk", queries, form, keys), torch.zeros(count)
        if config.toy == "noise":
            hint = randn(count, 1)
            queries, spread = torch.cat([queries, hint], 1), 0.1 + 1.9 * (2 * hint[:, 0]).sigmoid()
        weights = (scores + spread.unsqueeze(1) * randn(count, KEYS)).softmax(-1)
        y = torch.einsum("nk,nkv->nv", weights, values) + NOISE[config.toy] * randn(count, width)
        parts[part] = Items(queries, keys, values, y, weights, scores, spread)
    return parts


def _drawn(toy: str, count: int, generator: torch.Generator) -> Items:
    """Draw items of one of the problems."""
    problem = PROBLEMS[toy]

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    queries, hint, values = randn(count, 3), randn(count, 1), problem.values(randn(count, problem.keys, problem.width))
    single, shared = randn(count, problem.keys, 3), randn(count, 1, 3)
    keys = math.sqrt(1 - problem.common) * single + math.sqrt(problem.common) * shared
    scores, spread = torch.einsum("nd,nkd->nk", queries, keys), problem.spread(hint[:, 0])
    weights = (scores + spread.unsqueeze(1) * randn(count, problem.keys)).softmax(-1)
    with seeded(int(torch.randint(2**31, (), generator=generator))):
        y = problem.likelihood(torch.einsum("nk,nkv->nv", weights, values), problem.noise).sample()
    return Items(torch.cat([queries, hint], 1), keys, values, y, weights, scores, spread)


class Regression(nn.Module):
    """Network y = W V + noise whose scores are a product of queries and keys, both projected where weights are random.

    A call returns the log likelihood of every item.
    """

    def __init__(self, config: CoverageConfig, prior: Prior) -> None:
        super().__init__()
        noisy = config.toy != "ignorance"
        queries, keys, hidden = (4, 3, 8) if noisy else (4, 4, 4)
        self.query = nn.Linear(queries, hidden, bias=False)
        self.key = nn.Linear(keys, hidden, bias=False) if noisy else nn.Identity()
        self.scale = 1 / math.sqrt(hidden) if noisy else 1.0
        self.likelihood = PROBLEMS[config.toy].likelihood if config.toy in PROBLEMS else normal
        self.dropout = nn.Dropout(config.dropout)
        self.attention = LatentAttention("attention", prior)
        noise = true_noise(config.toy)
        self.log_noise: nn.Module | Tensor = nn.Buffer(torch.tensor(math.log(noise or 1.0)))
        if noise is None:
            pass  # counts have none
        elif config.noise == "one":
            self.log_noise = nn.Parameter(torch.zeros(()))
        elif config.noise == "network":
            self.log_noise = nn.Sequential(nn.Linear(queries, 16), nn.Tanh(), nn.Linear(16, 1))
        self.temperature = 1.0  # what the noise is multiplied by

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, y: Tensor) -> Tensor:
        projected = self.dropout(self.query(queries)).unsqueeze(-1)
        scores = self.scale * (self.dropout(self.key(keys)) @ projected).squeeze(-1)
        log_noise = self.log_noise(queries) if isinstance(self.log_noise, nn.Module) else self.log_noise
        with pyro.plate("items", len(y), dim=-1):
            context = self.attention(
                scores.unsqueeze(-2), values.unsqueeze(-3), queries=queries.unsqueeze(-2), layout=Dense(event_dim=2)
            ).context.squeeze(-2)
            likelihood = self.likelihood(context, self.temperature * log_noise.exp())
            pyro.sample("y", likelihood, obs=y)
        log_likelihood: Tensor = likelihood.log_prob(y)
        return log_likelihood


def true_noise(toy: str) -> float | None:
    """Return the standard deviation, or scale, of an observation; None where its distribution has none."""
    return PROBLEMS[toy].noise if toy in PROBLEMS else NOISE[toy]


def scheme(config: CoverageConfig) -> tuple[Prior, Family, AttentionELBO]:
    """Return prior, posterior family and objective."""
    if config.objective == "soft":
        return FixedGammaPrior(), Soft(), AttentionELBO(max_plate_nesting=1)
    weibull = config.family == "weibull"
    value: Any = WEIBULL / config.spread if weibull else config.spread
    if config.width == "network":
        value = WidthNetwork(4, initial=value, hidden_dim=16, minimum=0.1 if weibull else 1e-2)
    options: dict[str, Any] = {"learnable": True} if config.width == "one" else {}
    family: OneParameterFamily = (Weibull if weibull else LogNormal)(value, **options)
    if config.objective == "evidence":
        correction: Any = None if config.correction == "none" else config.correction
        return ScorePrior(family), FromPrior(), EvidenceELBO(config.draws, correction=correction, max_plate_nesting=1)
    prior = FixedGammaPrior() if weibull else FixedLogNormalPrior()
    return prior, family, AttentionELBO(kl_weight=config.kl_weight_schedule(config.kl_weight), max_plate_nesting=1)


def log_mean(log_likelihood: Tensor) -> Tensor:
    """Return the log likelihood of every item, from that of draws ``[S, n]``."""
    return log_likelihood.logsumexp(0) - math.log(len(log_likelihood))


class CoverageTraining(OneCycleTraining):
    """Training on batches of the first four fields of items; the validation loss is predictive, by some draws."""

    num_draws = 1

    def observations(self, batch: Any) -> int:
        return len(batch[-1])

    def evaluate(self, batch: Any) -> dict[str, Tensor]:
        options: dict[str, Any] = {"num_samples": self.num_draws, "chunk_size": self.num_draws, "seed": 0}
        drawn = predict(self.objective.guide, *batch, keep_samples=True, **options).samples
        assert drawn is not None
        return {"loss": -log_mean(drawn).mean()}


@dataclass(frozen=True)
class TrainedCoverage(Trained[CoverageConfig, Regression]):
    """Network, and the further members of its ensemble."""

    further_members: list[CoverageTraining] = field(default_factory=list)

    @property
    def modules(self) -> list[Any]:
        """All members of the ensemble."""
        return [self.module, *self.further_members]


def build(config: CoverageConfig) -> TrainedCoverage:
    """Build untrained networks and guides."""
    modules = []
    for member in range(config.members):
        pyro.set_rng_seed(1000 * member + config.seed)
        prior, family, elbo = scheme(config)
        model = Regression(config, prior)
        # the prior of what ignorance has to learn has a standard deviation of one
        decay = 1 / config.items if config.toy == "ignorance" else 0.0
        module = CoverageTraining(
            model, AttentionGuide(model, family), elbo, learning_rate=config.learning_rate, weight_decay=decay
        )
        module.num_draws = 1 if config.objective == "soft" else 64
        modules.append(module.to(resolve_device(config.device)))
    return TrainedCoverage(config, modules[0], modules[1:])


class Batches:
    """Batches of items, in another order in every pass if they are shuffled."""

    def __init__(self, items: Items, size: int, *, shuffle: bool = False, repeats: int = 1) -> None:
        self.items, self.size, self.shuffle, self.repeats = items, size, shuffle, repeats

    def __len__(self) -> int:
        return self.repeats * math.ceil(len(self.items.y) / self.size)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        count = len(self.items.y)
        for _ in range(self.repeats):
            order = torch.randperm(count) if self.shuffle else torch.arange(count)
            for index in order.split(self.size):
                yield self.items.chosen(index)[:4]


class CoverageTask(Task[CoverageConfig, TrainedCoverage]):
    """Intervals of attention weights that are known."""

    config = CoverageConfig
    script = "experiments.coverage"

    def folder(self, config: CoverageConfig) -> str:
        return f"coverage/{config.toy}-{config.objective}-{config.family}-{config.width}-{config.seed}"

    def main_metrics(self, config: CoverageConfig, metrics: Mapping[str, float]) -> Sequence[str]:  # noqa: ARG002
        return ("mean_coverage", "mean_width", "mean_nll", "mean_error", "mean_error_given")

    def restore(self, config: CoverageConfig, folder: Path) -> TrainedCoverage:  # noqa: ARG002
        return build(config)

    def run(self, config: CoverageConfig) -> dict[str, float]:
        with run_folder(self, config) as run:
            if run.metrics is not None:
                return run.metrics
            with user_errors(*BAD_INPUT):
                data = generate(config)
                folder = run.begin()
                trained = build(config)
            fitted = self.fit(trained, data, folder)
            return run.finish(self.evaluate(trained, data, fitted) | fitted.metrics)

    def fit(self, trained: TrainedCoverage, data: dict[str, Items], folder: Path) -> Fitted:
        config = trained.config
        val = Batches(data["val"], 1000)
        results = []
        for member, module in enumerate(trained.modules):
            items = data["train"]
            if trained.further_members and config.toy == "ignorance":
                # from any start they end at the same optimum: what differs has to be their items
                generator = torch.Generator().manual_seed(1000 * member + config.seed)
                items = items.chosen(torch.randint(config.items, (config.items,), generator=generator))
            train = Batches(items, config.batch_size, shuffle=True, repeats=config.repeats)
            # a member has a folder of its own within that of the run
            path = folder if member == 0 else folder / "checkpoints" / f"member-{member}"
            results.append(
                fit(config, module, train, val, folder=path, patience=config.max_epochs, monitor={"val_loss": "min"},
                    keep="last", gradient_clip=100.0)
            )  # fmt: skip
            module.eval()
        return results[0]

    def evaluate(self, trained: TrainedCoverage, data: dict[str, Items], fitted: Fitted) -> dict[str, float]:
        data = {part: items.to(trained.device) for part, items in data.items()}
        config, test = trained.config, data["test"]
        with seeded(config.seed):
            metrics = scores(
                "mean", test, *draws(trained, test, 1 if config.objective == "soft" else config.num_samples)
            )
            if config.dropout:
                trained.model.dropout.train()
                metrics |= scores("dropout", test, *several(trained, test, nullcontext()))
                trained.model.dropout.eval()
            if config.laplace:
                batches = Batches(data["train"], 2000)
                loss = scheme(replace(config, draws=32))[2](trained.model, trained.guide)
                posterior = LaplacePosterior(trained.model, "query.*", loss, batches)
                metrics |= scores("laplace", test, *several(trained, test, posterior))
                metrics |= scores("truth", test, *true_draws(config.toy, test, config.num_samples))
            if config.objective == "evidence":
                metrics |= _reliability(trained, data)
        if config.objective == "soft":
            metrics |= _at_temperature(trained, data["val"], test, metrics)
        return {**metrics, "val_nll": fitted.history[fitted.best_epoch]["val_loss"]}


def draws(trained: TrainedCoverage, items: Items, count: int) -> tuple[Tensor, Tensor]:
    """Draw weights ``[S, n, KEYS]`` and the log likelihoods with them ``[S, n]``, as many of every member."""
    weights, log_likelihood = [], []
    with torch.no_grad():
        for module in trained.modules:
            for start in range(0, count, _CHUNK):
                with pyro.plate("draws", min(_CHUNK, count - start), dim=-2):
                    run = module.objective.guide.run(*items[:4])
                site = run.trace.nodes["attention"]
                weights.append(attention_weights(site).squeeze(-2))
                log_likelihood.append(run.output)
    shape = items.weights.shape
    return (
        torch.cat([drawn.view(-1, *shape) for drawn in weights]),
        torch.cat([drawn.view(-1, shape[0]) for drawn in log_likelihood]),
    )


def several(trained: TrainedCoverage, items: Items, draw: AbstractContextManager[Any]) -> tuple[Tensor, Tensor]:
    """Call :func:`draws` in many runs, with something drawn around each for all of its items."""
    config, runs = trained.config, []
    for _ in range(_RUNS):
        with draw:
            runs.append(draws(trained, items, 1 if config.objective == "soft" else config.num_samples // _RUNS))
    weights, log_likelihood = zip(*runs, strict=True)
    return torch.cat(weights), torch.cat(log_likelihood)


def true_draws(toy: str, items: Items, count: int) -> tuple[Tensor, Tensor]:
    """Draw as :func:`draws`, with the true scores, spread and noise."""
    likelihood = PROBLEMS[toy].likelihood if toy in PROBLEMS else normal
    noises = torch.randn(count, *items.scores.shape).to(items.scores)
    weights = (items.scores + items.spread.unsqueeze(1) * noises).softmax(-1)
    mean = torch.einsum("snk,nkv->snv", weights, items.values)
    return weights, likelihood(mean, true_noise(toy)).log_prob(items.y)


def scores(kind: str, items: Items, weights: Tensor, log_likelihood: Tensor) -> dict[str, float]:
    """Score the draws on the test items."""
    mean, low, high = equal_tailed(weights, LEVEL)
    inside = ((items.weights >= low) & (items.weights <= high)).float().mean(-1)
    given = (log_likelihood.softmax(0).unsqueeze(-1) * weights).sum(0)
    values = {
        "nll": -log_mean(log_likelihood).mean(),
        "coverage": inside.mean(),
        "width": (high - low).mean(),
        "error": (mean - items.weights).square().mean().sqrt(),
        "error_given": (given - items.weights).square().mean().sqrt(),
    }
    if items.spread.any():
        parts = zip(TERCILES, items.spread.argsort().tensor_split(3), strict=True)
        for name, part in parts:
            values[f"coverage_{name}"] = inside[part].mean()
            if len(weights) > 1:
                ratio = _spread(weights[:, part]) / items.spread[part]
                values[f"ratio_{name}"] = ratio.clamp(min=1e-6).log().mean().exp()
    return {f"{kind}_{name}": value.item() for name, value in values.items()}


def _spread(weights: Tensor) -> Tensor:
    """Return the standard deviation of log S of every item ``[n]``, from draws of its weights ``[S, n, KEYS]``."""
    centered = weights.clamp(min=1e-30).log()
    centered = centered - centered.mean(-1, keepdim=True)
    keys = weights.size(-1)
    return (centered.var(0).mean(-1) * keys / (keys - 1)).sqrt()


def _reliability(trained: TrainedCoverage, data: dict[str, Items]) -> dict[str, float]:
    """Measure the widths without the truth: by the gap, by whether training warned of it, and by check_width."""
    loss: Any = trained.module.objective
    gap, signal = evidence_gap(loss, Batches(data["val"], 1000))
    metrics = {"gap": gap, "signal": signal, "gap_warned": float(loss.elbo.gap_watch.warned > 0)}
    if trained.config.check:
        report = check_width(loss, Batches(data["train"].chosen(torch.arange(min(6400, len(data["train"].y)))), 64))
        names = (f"check_{name}" for name in TERCILES)
        metrics |= dict(zip(names, report.ratios["attention"], strict=True))
        metrics["check_believable"] = float(report.believable)
    return metrics


def _at_temperature(
    trained: TrainedCoverage, val: Items, test: Items, metrics: Mapping[str, float]
) -> dict[str, float]:
    """Return scores with the noise of every member multiplied by the best factor on validation items."""

    def nll(items: Items, temperature: float) -> float:
        for module in trained.modules:
            module.objective.model.temperature = temperature
        return -log_mean(draws(trained, items, 1)[1]).mean().item()

    best = min((math.exp(number / 20) for number in range(-20, 21)), key=partial(nll, val))
    same = {f"scaled_{name.partition('_')[2]}": value for name, value in metrics.items() if name.startswith("mean_")}
    return {**same, "scaled_nll": nll(test, best), "temperature": best}


def train(config: CoverageConfig) -> None:
    """Run the command."""
    task = CoverageTask()
    show_run(task, config, task.run(config))
