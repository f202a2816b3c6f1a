"""Posterior samples of attention weights, and Monte Carlo predictions whose variance splits into its sources."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import pyro
import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from pyro_attention.distributions import BlockedValue, LogWeights
from pyro_attention.distributions.alignment import CategoricalAlignment
from pyro_attention.guide import AttentionGuide

__all__ = ["Noise", "Prediction", "predict", "sample_posterior", "seeded"]

_ATTENTION = (LogWeights, CategoricalAlignment)
Noise = Literal["attention", "dropout", "both", "none"]


@dataclass(frozen=True)
class Prediction:
    """Moments of a model's output over posterior samples.

    Attributes:
        mean: Mean over samples, of the output's shape.
        variance: Unbiased variance over samples; zero for a single sample.
        quantiles: One tensor of the output's shape for each probability asked for.
        num_samples: Number of samples.
        samples: ``[S, ...]`` when asked for.
    """

    mean: Tensor
    variance: Tensor
    num_samples: int
    quantiles: dict[float, Tensor] = field(default_factory=dict)
    samples: Tensor | None = None


def sample_posterior(
    guide: AttentionGuide,
    *args: Any,
    num_samples: int = 100,
    noise: Noise = "attention",
    log_weights: bool = False,
    chunk_size: int = 1,
    seed: int | None = None,
    **kwargs: Any,
) -> dict[str, Tensor]:
    r"""Draw attention weights from the posterior, :math:`W^{(s)} = \mathrm{normalize}(S^{(s)}),\ S^{(s)} \sim q`.

    Args:
        guide: The guide; its model is run.
        args: Arguments of the model.
        num_samples: Number of samples S.
        noise: What is random: "attention", "dropout", "both", or "none"; whatever the training mode of the modules.
        log_weights: Return the site's value ``log S`` instead of the normalised weights.
        chunk_size: Samples drawn in one pass, by a plate at the left (the model must broadcast over it, as for
            vectorised particles); 1 suits every model.
        seed: Seed of this call alone; the global generator goes on as if nothing had happened.
        kwargs: Keyword arguments of the model.

    Returns:
        For every attention site ``[S, ..., H, M, N]`` or ``[S, ..., E, H]``, in float32.

    Raises:
        ValueError: ``num_samples`` or ``chunk_size`` below one, chunks with dropout, or blocked attention whose weights
            do not fit in memory.

    Example:
        >>> from pyro_attention import FixedGammaPrior, LatentAttention, Weibull
        >>> attention = LatentAttention("attention", FixedGammaPrior())
        >>> guide = AttentionGuide(lambda scores, values: attention(scores, values).context, Weibull())
        >>> samples = sample_posterior(guide, torch.zeros(1, 2, 3), torch.ones(1, 3, 4), num_samples=5, seed=0)
        >>> samples["attention"].shape
        torch.Size([5, 1, 2, 3])
    """
    draws: dict[str, list[Tensor]] = {}
    for drawn in _passes(guide, args, kwargs, num_samples, noise, chunk_size, seed):
        for name, site in drawn.attention_sites():
            prior, value = site["infer"]["prior"], site["value"]
            if not log_weights:
                value = prior.weights(value)
            elif isinstance(value, BlockedValue):
                value = value.dense()
            draws.setdefault(name, []).append(drawn.samples_first(value, site))
    return {name: torch.cat(values) for name, values in draws.items()}


def predict(
    guide: AttentionGuide,
    *args: Any,
    num_samples: int = 100,
    noise: Noise = "attention",
    transform: Callable[[Tensor], Tensor] | None = None,
    quantiles: Sequence[float] = (),
    keep_samples: bool = False,
    chunk_size: int = 1,
    seed: int | None = None,
    **kwargs: Any,
) -> Prediction:
    r"""Average a model's output over the posterior, :math:`\frac1S \sum_s f(x, W^{(s)})`, in a stream.

    Mean and variance need no memory for the samples; a quantile ``q`` keeps the ``min(q, 1 - q) * S`` outermost ones
    and is exact (linear interpolation, as :func:`torch.quantile`). Run it with ``noise`` "attention", "dropout" and
    "both" to split the predictive variance into its sources.

    Args:
        guide: The guide; its model is run and must return a tensor.
        args: Arguments of the model (without observations).
        num_samples: Number of samples S.
        noise: What is random: "attention", "dropout", "both" or "none"; whatever the training mode of the modules.
            Dropout is recognised as dropout modules, and modules with a float attribute ``dropout``.
        transform: Applied to each output, for example ``lambda logits: logits.softmax(-1)``.
        quantiles: Probabilities in [0, 1].
        keep_samples: Return the samples too.
        chunk_size: Samples drawn in one pass; see :func:`sample_posterior`.
        seed: Seed of this call alone.
        kwargs: Keyword arguments of the model.

    Raises:
        TypeError: The model returns no tensor.
        ValueError: A count below one, a probability outside [0, 1], or chunks with dropout.

    Example:
        >>> from pyro_attention import FixedGammaPrior, LatentAttention, Weibull
        >>> attention = LatentAttention("attention", FixedGammaPrior())
        >>> guide = AttentionGuide(lambda scores, values: attention(scores, values).context, Weibull())
        >>> prediction = predict(guide, torch.zeros(1, 2, 3), torch.ones(1, 3, 4), num_samples=5, quantiles=[0.5])
        >>> prediction.mean.shape, sorted(prediction.quantiles)
        (torch.Size([1, 2, 4]), [0.5])

    Source: Fan et al. (2020), Bayesian Attention Modules, section 4.2, for the use of both sources of noise.
    """
    order = {q: _OrderStatistics(q, num_samples) for q in quantiles}
    samples: list[Tensor] = []
    count, mean, squares = 0, torch.zeros(()), torch.zeros(())
    for drawn in _passes(guide, args, kwargs, num_samples, noise, chunk_size, seed):
        chunk, size = drawn.outputs(), drawn.size
        chunk = chunk if transform is None else transform(chunk)
        # Chan's update of mean and sum of squared deviations
        shift = chunk.mean(0) - mean
        squares = squares + (chunk - chunk.mean(0)).square().sum(0) + shift.square() * count * size / (count + size)
        mean, count = mean + shift * size / (count + size), count + size
        for statistics in order.values():
            statistics.update(chunk)
        if keep_samples:
            samples.append(chunk)
    return Prediction(
        mean=mean,
        variance=squares / max(1, count - 1),
        num_samples=count,
        quantiles={q: statistics.result() for q, statistics in order.items()},
        samples=torch.cat(samples) if keep_samples else None,
    )


class _OrderStatistics:
    """Exact quantile of a stream of known length: keeps only the samples beyond it, on its shorter side."""

    def __init__(self, q: float, num_samples: int) -> None:
        if not 0 <= q <= 1:
            raise ValueError(f"quantile {q} lies outside [0, 1]")
        self.largest = q > 0.5
        # position counted from the kept end
        self.position = (1 - q if self.largest else q) * (num_samples - 1)
        self.keep = min(num_samples, math.floor(self.position) + 2)
        self.kept: Tensor | None = None

    def update(self, chunk: Tensor) -> None:
        pool = chunk if self.kept is None else torch.cat([self.kept, chunk])
        self.kept = pool.topk(min(self.keep, pool.size(0)), dim=0, largest=self.largest).values

    def result(self) -> Tensor:
        if self.kept is None:
            raise ValueError("no samples")
        low = math.floor(self.position)
        high = min(low + 1, self.kept.size(0) - 1)
        return torch.lerp(self.kept[low], self.kept[high], self.position - low)


class _AtMean(Messenger):
    """Sets every attention weight to its posterior mean; stands outside the guide."""

    def _pyro_sample(self, msg: Any) -> None:
        if msg["is_observed"]:
            return
        if isinstance(msg["fn"], LogWeights):
            msg["value"] = msg["fn"].mean_value
        elif isinstance(msg["fn"], CategoricalAlignment):
            msg["value"] = msg["fn"].expected_weights


@contextmanager
def _dropout_mode(active: bool) -> Iterator[None]:
    """Evaluation mode for every module that runs, except dropout when it is to be sampled.

    A hook on all modules also reaches those that a plain model function holds in its closure.
    """
    before: dict[nn.Module, bool] = {}

    def set_mode(module: nn.Module, _: Any) -> None:
        before.setdefault(module, module.training)
        is_dropout = isinstance(module, nn.modules.dropout._DropoutNd)
        module.training = active and (is_dropout or isinstance(getattr(module, "dropout", None), float))

    handle = register_module_forward_pre_hook(set_mode)
    try:
        yield
    finally:
        handle.remove()
        for module, training in before.items():
            module.training = training


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Seed torch's generators inside the context and restore them after it; nothing when the seed is None.

    Example:
        >>> with seeded(0):
        ...     first = torch.rand(1)
        >>> with seeded(0):
        ...     bool(first == torch.rand(1))
        True
    """
    if seed is None:
        yield
        return
    # every other device's generator too would draw a warning where there are many
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield


def _passes(
    guide: AttentionGuide,
    args: Any,
    kwargs: Any,
    num_samples: int,
    noise: Noise,
    chunk_size: int,
    seed: int | None,
) -> Iterator[_Pass]:
    """Run the model under the guide until all samples are drawn."""
    if noise not in ("attention", "dropout", "both", "none"):
        raise ValueError(f"noise is '{noise}', expected 'attention', 'dropout', 'both' or 'none'")
    dropout = noise in ("dropout", "both")
    for name, count in (("num_samples", num_samples), ("chunk_size", chunk_size)):
        if count < 1:
            raise ValueError(f"{name} is {count}, expected at least 1")
    if dropout and chunk_size > 1:
        raise ValueError(
            f"chunk_size is {chunk_size} with noise='{noise}': samples of one pass would share dropout masks ahead of "
            f"the first attention; use chunk_size=1"
        )
    attention: AbstractContextManager[Any] = _AtMean() if noise in ("dropout", "none") else nullcontext()
    with torch.no_grad(), seeded(seed), _dropout_mode(dropout), attention:
        nesting = _plate_nesting(guide, args, kwargs) if chunk_size > 1 else 0
        for start in range(0, num_samples, chunk_size):
            size = min(chunk_size, num_samples - start)
            if chunk_size > 1:
                with pyro.plate("_samples", size, dim=-1 - nesting):
                    output = guide.run(*args, **kwargs)
            else:
                output = guide.run(*args, **kwargs)
            trace = guide.trace
            del guide.trace
            yield _Pass(trace, output, size, nesting, chunk_size > 1)


def _plate_nesting(guide: AttentionGuide, args: Any, kwargs: Any) -> int:
    """Number of plate dimensions the model uses."""
    guide.run(*args, **kwargs)
    sites = [site for site in guide.trace.nodes.values() if site["type"] == "sample"]
    return max((_depth(site) for site in sites), default=0)


def _depth(site: Any) -> int:
    """Number of plate dimensions of a site, without that of the samples."""
    frames = site["cond_indep_stack"]
    return max((-frame.dim for frame in frames if frame.vectorized and frame.name != "_samples"), default=0)


@dataclass(frozen=True)
class _Pass:
    """One run of the model: ``size`` samples, in one extra plate at the left when ``vectorized``."""

    trace: Any
    output: Any
    size: int
    nesting: int
    vectorized: bool

    def attention_sites(self) -> Iterator[tuple[str, Any]]:
        """Name and trace node of every attention site."""
        for name, site in self.trace.nodes.items():
            if site["type"] == "sample" and isinstance(site["infer"].get("prior"), _ATTENTION):
                yield name, site

    def samples_first(self, value: Tensor, site: Any) -> Tensor:
        """Site value with one leading sample dimension, without the unit dimensions of plates it is not in."""
        if not self.vectorized:
            return value.unsqueeze(0)
        return value.flatten(0, self.nesting - _depth(site))

    def outputs(self) -> Tensor:
        """The model's return value with a leading sample dimension."""
        if not isinstance(self.output, Tensor):
            raise TypeError(f"the model returned {type(self.output).__name__}, expected a tensor such as logits")
        if not self.vectorized:
            return self.output.unsqueeze(0)
        if self.output.dim() == 0 or self.output.size(0) != self.size:
            raise ValueError(
                f"the model returned shape {tuple(self.output.shape)} for {self.size} samples in one pass, expected a "
                f"leading dimension of {self.size}; use chunk_size=1 unless the model broadcasts over it"
            )
        return self.output
