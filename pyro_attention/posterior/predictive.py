"""Posterior samples of attention weights, and Monte Carlo predictions whose variance splits into its sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

import torch
from torch import Tensor

from pyro_attention.guide import AttentionGuide, check_guide
from pyro_attention.posterior.handlers import seeded
from pyro_attention.posterior.passes import Noise, Pass, Request, passes
from pyro_attention.posterior.streaming import Moments, OrderStatistics

__all__ = ["Noise", "Prediction", "predict", "sample_posterior", "seeded"]


# What torch's allocators say: for a CPU on each system, for a GPU, and of a size beyond 64 bits.
_OUT_OF_MEMORY = "can't allocate memory", "not enough memory", "out of memory", "overflow"

# Pyro has one stack of handlers, and torch one generator, for all threads: they take turns.
_TURN = RLock()


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
    chunk_size: int | None = None,
    memory_budget: float | None = None,
    seed: int | None = None,
    **kwargs: Any,
) -> dict[str, Tensor]:
    r"""Draw attention weights from the posterior, :math:`W^{(s)} = \mathrm{normalize}(S^{(s)}),\ S^{(s)} \sim q`.

    The first pass is one sample; the others are drawn in chunks. A chunk computes what is ahead of the first attention
    site once, and nothing behind the last one: many samples of a single site cost little more than two passes.

    Args:
        guide: The guide, with or without handlers around it; its model is run.
        args: Arguments of the model.
        num_samples: Number of samples S.
        noise: What is random: "attention", "dropout", "both", or "none"; whatever the training mode of the modules.
        log_weights: Return the site's value ``log S`` instead of the normalised weights.
        chunk_size: Samples drawn in one pass, by a plate at the left (the model must broadcast over it, as for
            vectorised particles; two more passes check this). One when omitted, which suits every model.
        memory_budget: Bytes that the samples of one pass may take, beside the results: as many are drawn in it as fit,
            ``chunk_size`` at most, by what the first pass takes from the first attention site on.
        seed: Seed of this call alone; the global generator goes on as if nothing had happened.
        kwargs: Keyword arguments of the model.

    Other latent sites are random under every ``noise``. Threads take turns, each with a guide of its own. At the same
    time no other thread may run the model, train, or draw random numbers: a process has one stack of handlers, so that
    a model that another thread calls would be random, too, and one generator.

    Returns:
        For every attention site ``[S, ..., H, M, N]`` or ``[S, ..., E, H]``; of alignments ``[S, ..., 1, N]``, or with
        ``log_weights`` the chosen keys ``[S, ...]``, int64. Weights are in float32, or float64 where the scores are.

    Raises:
        TypeError: The guide is no AttentionGuide, or ``num_samples`` or ``chunk_size`` is no integer.
        ValueError: ``num_samples`` or ``chunk_size`` below one, chunks with dropout, a memory budget below one sample,
            samples that do not fit in memory, attention sites that change from pass to pass, or chunks of a model that
            does not broadcast.

    Example:
        >>> from pyro_attention import FixedGammaPrior, LatentAttention, Weibull
        >>> attention = LatentAttention("attention", FixedGammaPrior())
        >>> guide = AttentionGuide(lambda scores, values: attention(scores, values).context, Weibull())
        >>> samples = sample_posterior(guide, torch.zeros(1, 2, 3), torch.ones(1, 3, 4), num_samples=5, seed=0)
        >>> samples["attention"].shape
        torch.Size([5, 1, 2, 3])
    """
    check_guide(guide)
    request = Request(num_samples, noise, chunk_size, memory_budget, seed)
    with _TURN, closing(passes(guide, args, kwargs, request, whole=False)) as draws:
        return _collect(draws, num_samples, log_weights=log_weights)


def _collect(draws: Iterable[Pass], num_samples: int, *, log_weights: bool) -> dict[str, Tensor]:
    """Samples of every attention site; ValueError where a site was not reached by all of them."""
    samples: dict[str, Tensor] = {}
    counts: Counter[str] = Counter()
    for drawn in draws:
        for name, site in drawn.attention_sites():
            prior, value = site["infer"]["prior"], site["value"]
            value = value.to_dense() if log_weights else prior.weights(value)
            value = drawn.samples_first(value, site)
            if name not in samples:
                samples[name] = _room(name, num_samples, value)
            samples[name][counts[name] : counts[name] + len(value)] = value
            counts[name] += len(value)
        del drawn, prior, value, site  # the next pass needs the memory
    for name, count in counts.items():
        if count != num_samples:
            raise ValueError(
                f"site '{name}' was reached by {count} of {num_samples} samples, expected all: the attention sites of "
                f"a model may not change from pass to pass"
            )
    return samples


def _room(name: str, num_samples: int, value: Tensor) -> Tensor:
    """Memory for all samples of a site, of which ``value`` has one first."""
    shape = (num_samples, *value.shape[1:])
    try:
        return value.new_empty(shape)
    except RuntimeError as error:
        if not any(reason in str(error) for reason in _OUT_OF_MEMORY):
            raise
        size = 1e-9 * num_samples * value[0].nbytes
        raise ValueError(
            f"site '{name}': {num_samples} samples of shape {shape[1:]} would take {size:.1f} GB, more than can be "
            f"allocated; draw fewer, or use predict, which streams over samples"
        ) from error


def predict(
    guide: AttentionGuide,
    *args: Any,
    num_samples: int = 100,
    noise: Noise = "attention",
    transform: Callable[[Tensor], Tensor] | None = None,
    quantiles: Sequence[float] = (),
    keep_samples: bool = False,
    chunk_size: int | None = None,
    memory_budget: float | None = None,
    seed: int | None = None,
    **kwargs: Any,
) -> Prediction:
    r"""Average a model's output over the posterior, :math:`\frac1S \sum_s f(x, W^{(s)})`, in a stream.

    Mean and variance need no memory for the samples; a quantile ``q`` keeps the ``min(q, 1 - q) * S`` outermost ones
    and is exact (linear interpolation, as :func:`torch.quantile`). Run it with ``noise`` "attention", "dropout" and
    "both" to split the predictive variance into its sources.

    Args:
        guide: The guide, with or without handlers around it; its model is run and must return a tensor.
        args: Arguments of the model (without observations).
        num_samples: Number of samples S.
        noise: What is random: "attention", "dropout", "both" or "none"; whatever the training mode of the modules.
            Dropout is recognised as dropout modules, and modules with a float attribute ``dropout``.
        transform: Applied to each output, for example ``lambda logits: logits.softmax(-1)``.
        quantiles: Probabilities in [0, 1].
        keep_samples: Return the samples too.
        chunk_size: Samples drawn in one pass; see :func:`sample_posterior`.
        memory_budget: Bytes that the samples of one pass may take; see there. Samples that are kept come on top.
        seed: Seed of this call alone.
        kwargs: Keyword arguments of the model.

    Raises:
        TypeError: The guide is no AttentionGuide, the output is no floating-point tensor, or a count is no integer.
        ValueError: A count below one, a probability outside [0, 1], chunks with dropout or of a model that does not
            broadcast, or a memory budget below one sample.

    Example:
        >>> from pyro_attention import FixedGammaPrior, LatentAttention, Weibull
        >>> attention = LatentAttention("attention", FixedGammaPrior())
        >>> guide = AttentionGuide(lambda scores, values: attention(scores, values).context, Weibull())
        >>> prediction = predict(guide, torch.zeros(1, 2, 3), torch.ones(1, 3, 4), num_samples=5, quantiles=[0.5])
        >>> prediction.mean.shape, sorted(prediction.quantiles)
        (torch.Size([1, 2, 4]), [0.5])

    Source: Fan et al. (2020), Bayesian Attention Modules, section 4.2, for the use of both sources of noise.
    """
    check_guide(guide)
    request = Request(num_samples, noise, chunk_size, memory_budget, seed)
    order = {q: OrderStatistics(q, num_samples) for q in quantiles}
    with _TURN, closing(passes(guide, args, kwargs, request, whole=True)) as draws:
        return _average(draws, transform, order, keep_samples=keep_samples)


def _average(
    draws: Iterable[Pass],
    transform: Callable[[Tensor], Tensor] | None,
    order: dict[float, OrderStatistics],
    *,
    keep_samples: bool,
) -> Prediction:
    """Moments and quantiles of the transformed outputs."""
    moments, samples = Moments(), []
    for drawn in draws:
        chunk = drawn.outputs() if transform is None else transform(drawn.outputs())
        _check_averageable(chunk, transformed=transform is not None)
        moments.update(chunk)
        for statistics in order.values():
            statistics.update(chunk)
        if keep_samples:
            samples.append(chunk)
        del drawn, chunk  # the next pass needs the memory
    return Prediction(
        mean=moments.mean,
        variance=moments.variance,
        num_samples=moments.count,
        quantiles={q: statistics.result() for q, statistics in order.items()},
        samples=torch.cat(samples) if keep_samples else None,
    )


def _check_averageable(chunk: Any, *, transformed: bool) -> None:
    """Raise TypeError or ValueError unless outputs are numbers that have a mean."""
    if not isinstance(chunk, Tensor) or not chunk.is_floating_point():
        seen = f"{chunk.dtype} (labels, say)" if isinstance(chunk, Tensor) else type(chunk).__name__
        raise TypeError(
            f"{'transform' if transformed else 'the model'} returned {seen}, whose mean says nothing, expected "
            f"floating point such as logits; return those from the model, or pass transform=, for example "
            f"lambda labels: torch.nn.functional.one_hot(labels, classes).float()"
        )
    if not chunk.isfinite().all():
        raise ValueError(
            f"{'transform' if transformed else 'the model'} returned {int((~chunk.isfinite()).sum())} of "
            f"{chunk.numel()} numbers NaN or infinite, which have no mean; where -inf stands for an impossible class, "
            f"pass transform=lambda logits: logits.softmax(-1)"
        )
