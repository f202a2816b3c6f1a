"""Neural processes on functions of Gaussian processes: functions, network, training and metrics."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import pyro
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from experiments.files import user_errors
from experiments.neural_process.config import NeuralProcessConfig
from experiments.run import BAD_INPUT, Task, run_folder
from experiments.training import Fitted, OneCycleTraining, Trained, fit, resolve_device
from models.neural_process import HEADS, WIDTH, NeuralProcess
from pyro_attention import (
    AttentionELBO,
    AttentionGuide,
    ContextualGammaPrior,
    EvidenceELBO,
    FixedGammaPrior,
    FromPrior,
    LogNormal,
    ScorePrior,
    Soft,
    Weibull,
    WidthNetwork,
    predict,
)
from pyro_attention.families.base import Family, Prior
from pyro_attention.objectives.correction import correction_of

CONTEXTS, TARGETS = 60, 20  # points of a function, the contexts at most
NOISE = 0.05  # standard deviation of an observation


@dataclass(frozen=True)
class Kernel:
    """Covariance function of a Gaussian process, with a range of lengthscales and more noise at context points."""

    lengthscale: tuple[float, float] = (0.1, 0.6)
    matern: bool = False
    noise: float = 0.0

    def __call__(self, x: Tensor, z: Tensor, lengthscale: Tensor, variance: Tensor) -> Tensor:
        distance = (x.unsqueeze(-1) - z.unsqueeze(-2)).abs() / lengthscale
        if self.matern:  # 3/2
            return variance * (1 + math.sqrt(3) * distance) * (-math.sqrt(3) * distance).exp()
        return variance * (-distance.square() / 2).exp()


class Functions(NamedTuple):
    """Values of F functions at points; the first points are the context."""

    x: Tensor  # [F, CONTEXTS + TARGETS]
    y: Tensor  # values [F, CONTEXTS + TARGETS]
    lengthscale: Tensor  # [F, 1, 1]
    variance: Tensor  # [F, 1, 1]

    def split(self, contexts: int) -> tuple[Tensor, ...]:
        """Return the arguments of a network: points and values ``[F, n]`` of the context and of the targets."""
        return self.x[:, :contexts], self.y[:, :contexts], self.x[:, -TARGETS:], self.y[:, -TARGETS:]


@lru_cache(16)
def generate(kernel: Kernel, count: int, seed: int) -> Functions:
    """Draw functions with variances from .1 to 1, observed with noise at random points from -2 to 2."""
    generator = torch.Generator().manual_seed(seed)
    points = CONTEXTS + TARGETS
    x = 4 * torch.rand(count, points, generator=generator, dtype=torch.float64) - 2
    low, high = kernel.lengthscale
    lengthscale = low + (high - low) * torch.rand(count, 1, 1, generator=generator, dtype=torch.float64)
    variance = 0.1 + 0.9 * torch.rand(count, 1, 1, generator=generator, dtype=torch.float64)
    noise = torch.full((points,), NOISE**2, dtype=torch.float64)
    noise[:CONTEXTS] += kernel.noise**2
    normal = torch.randn(count, points, 1, generator=generator, dtype=torch.float64)
    y = torch.cat([  # in parts, for the memory of the covariances
        torch.linalg.cholesky(kernel(a, a, b, c) + noise.diag()) @ d
        for a, b, c, d in zip(*(tensor.split(500) for tensor in (x, lengthscale, variance, normal)), strict=True)
    ])  # fmt: skip
    return Functions(x.float(), y.squeeze(-1).float(), lengthscale, variance)


def oracle(kernel: Kernel, functions: Functions, contexts: int) -> Tensor:
    """Return the log density of every target ``[F, TARGETS]`` under the Gaussian process that drew the functions."""
    x, y, z, target = (tensor.double() for tensor in functions.split(contexts))
    hyper = functions.lengthscale, functions.variance
    within = kernel(x, x, *hyper) + (NOISE**2 + kernel.noise**2) * torch.eye(contexts, dtype=torch.float64)
    solved = torch.linalg.solve(within, kernel(x, z, *hyper)).mT
    variance = functions.variance.squeeze(-1) - (solved * kernel(z, x, *hyper)).sum(-1) + NOISE**2
    mean = (solved @ y.unsqueeze(-1)).squeeze(-1)
    return torch.distributions.Normal(mean, variance.sqrt()).log_prob(target)


def scheme(config: NeuralProcessConfig) -> tuple[Prior, Family, AttentionELBO]:
    """Return prior, posterior family and objective of the options."""
    if config.objective == "soft":
        return FixedGammaPrior(), Soft(), AttentionELBO(max_plate_nesting=1)
    if config.objective == "evidence":
        width = WidthNetwork(WIDTH // HEADS, HEADS, hidden_dim=16, minimum=1e-2)
        return (
            ScorePrior(LogNormal(width)),
            FromPrior(),
            EvidenceELBO(config.draws, correction=correction_of(config.draws), max_plate_nesting=1),
        )
    elbo = AttentionELBO(kl_weight=config.kl_weight_schedule(config.kl_weight), max_plate_nesting=1)
    return ContextualGammaPrior(WIDTH // HEADS, HEADS), Weibull(config.concentration), elbo


class NeuralProcessTraining(OneCycleTraining):
    """Training on batches of arguments of the network; the validation loss is the predictive one, by one draw."""

    def observations(self, batch: Any) -> int:
        return int(batch[-1].numel())

    def evaluate(self, batch: Any) -> dict[str, Tensor]:
        return {"loss": -predictive(self.objective.guide, batch, 1).mean()}


def predictive(guide: AttentionGuide, batch: Any, draws: int) -> Tensor:
    """Return the log likelihood of every target ``[F, TARGETS]``, as a mean over draws of the attention."""
    options: dict[str, Any] = {"num_samples": draws, "chunk_size": min(draws, 8), "seed": 0, "keep_samples": True}
    drawn = predict(guide, *batch, **options).samples
    assert drawn is not None
    return drawn.logsumexp(0) - math.log(draws)


TrainedProcess = Trained[NeuralProcessConfig, NeuralProcess]


def build(config: NeuralProcessConfig) -> TrainedProcess:
    """Build the untrained network with its guide; a seed gives the same initial weights."""
    pyro.set_rng_seed(config.seed)  # before the scheme: the width of the evidence is a network
    prior, family, elbo = scheme(config)
    model = NeuralProcess(config.scores, prior)
    module = NeuralProcessTraining(model, AttentionGuide(model, family), elbo, learning_rate=config.learning_rate)
    return Trained(config, module.to(resolve_device(config.device)))


class Batches:
    """Batches of functions with a random number of random context points."""

    def __init__(self, functions: Functions, size: int, steps: int) -> None:
        self.functions, self.size, self.steps = functions, size, steps

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        x, y = self.functions[:2]
        for _ in range(self.steps):
            chosen = torch.randint(len(x), (self.size, 1))
            points = torch.rand(self.size, x.size(1)).argsort(-1)
            contexts = int(torch.randint(3, CONTEXTS + 1, ()))
            yield Functions(x[chosen, points], y[chosen, points], *self.functions[2:]).split(contexts)


KERNELS = {
    "same": Kernel(),
    "short": Kernel(lengthscale=(0.05, 0.1)),
    "long": Kernel(lengthscale=(0.6, 1.2)),
    "matern": Kernel(matern=True),
    "noisy": Kernel(noise=0.3),
}
TESTS = [("same", 5), ("same", 10), ("same", 20), ("same", 60), *((name, 20) for name in list(KERNELS)[1:])]
TEST_FUNCTIONS = 128


class NeuralProcessTask(Task[NeuralProcessConfig, TrainedProcess]):
    """Training of attentive neural processes."""

    config = NeuralProcessConfig
    script = "experiments.neural_process"

    def folder(self, config: NeuralProcessConfig) -> str:
        return f"neural-process/{config.scores}-{config.objective}-{config.seed}"

    def main_metrics(self, config: NeuralProcessConfig, metrics: Mapping[str, float]) -> Sequence[str]:  # noqa: ARG002
        return ("mean_same_20", "mean_same_5", "mean_same_10", "mean_same_60")

    def load(self, config: NeuralProcessConfig) -> dict[str, Functions]:
        """Draw the functions of the seed; training, validation and test have different ones."""
        tests = {name: generate(kernel, TEST_FUNCTIONS, 2000 + config.seed) for name, kernel in KERNELS.items()}
        val = generate(Kernel(), 128, 1000 + config.seed)
        return tests | {"train": generate(Kernel(), config.functions, config.seed), "val": val}

    def restore(self, config: NeuralProcessConfig, folder: Path) -> TrainedProcess:  # noqa: ARG002
        return build(config)

    def run(self, config: NeuralProcessConfig) -> dict[str, float]:
        with run_folder(self, config) as run:
            if run.metrics is not None:
                return run.metrics
            with user_errors(*BAD_INPUT):
                data = self.load(config)
                folder = run.begin()
                trained = build(config)
            fitted = self.fit(trained, data, folder)
            return run.finish(self.evaluate(trained, data) | fitted.metrics)

    def fit(self, trained: TrainedProcess, data: dict[str, Functions], folder: Path) -> Fitted:
        config = trained.config
        train = Batches(data["train"], config.batch_size, max(1, config.steps // config.max_epochs))
        batches: Any = [data["val"].split(contexts) for contexts in (5, 20)]
        val = DataLoader[Any](batches, batch_size=None)
        return fit(
            config, trained.module, train, val, folder=folder, patience=config.max_epochs,
            monitor={"val_loss": "min"}, keep="last", gradient_clip=10.0,
        )  # fmt: skip

    def evaluate(self, trained: TrainedProcess, data: dict[str, Functions]) -> dict[str, float]:
        soft, metrics = trained.config.objective == "soft", {}
        quiet = AttentionGuide(trained.model, Soft())
        for name, contexts in TESTS:
            batch, suffix = [tensor.to(trained.device) for tensor in data[name].split(contexts)], f"{name}_{contexts}"
            draws = 1 if soft else trained.config.num_samples
            metrics[f"mean_{suffix}"] = predictive(trained.guide, batch, draws).mean().item()
            # references: the true process, which needs no training, and attention without noise, which needs no draws
            reference = oracle(KERNELS[name], data[name], contexts) if soft else predictive(quiet, batch, 1)
            metrics[f"{'oracle' if soft else 'quiet'}_{suffix}"] = reference.mean().item()
        return metrics
