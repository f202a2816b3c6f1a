"""Monte Carlo predictions of a model's output or of its observations, whose variance splits into its sources."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from tqdm import tqdm

from pyro_attention._checks import as_float
from pyro_attention._typing import Message
from pyro_attention.families.distribution import AttentionDistribution
from pyro_attention.guide import AttentionGuide, first_match, is_attention_site, keeps_prior
from pyro_attention.posterior.passes import AtMean, Noise, Pass, Run, outputs, passes, seeded

__all__ = ["Moments", "Noise", "Prediction", "predict", "seeded"]


class Moments:
    """Number, mean and variance of a stream, which need no memory for the samples."""

    def __init__(self) -> None:
        self.count, self.mean, self._squares = 0, torch.zeros(()), torch.zeros(())

    def update(self, chunk: Tensor) -> None:
        """Count samples ``[S, ...]``, by Chan's update of mean and sum of squared deviations."""
        chunk = as_float(chunk)  # in half precision the sums would stop to grow
        size, mean = len(chunk), chunk.mean(0)
        shift, total = mean - self.mean, self.count + size
        self._squares = self._squares + (chunk - mean).square().sum(0) + shift.square() * (self.count * size / total)
        self.mean, self.count = self.mean + shift * (size / total), total

    @property
    def variance(self) -> Tensor:
        """Unbiased variance; zero for a single sample."""
        return self._squares / max(1, self.count - 1)


@dataclass(frozen=True)
class Prediction:
    """Moments of a prediction over posterior samples: of the model's output, or of an observation.

    Of the output, such as the mean of y, they say how far the draws of the weights move it, and two quantiles are an
    interval of that output: far fewer observations lie in it than its level says, since it leaves out their noise. With
    ``predict(..., observed="y")`` they are those of a new observation y.

    Attributes:
        mean: Mean over samples, of the shape of the output, or of the observation.
        variance: Unbiased variance over samples; zero for a single sample.
        quantiles: One tensor of that shape for each probability asked for.
        num_samples: Number of samples.
        samples: ``[S, ...]`` when asked for.
        observed: Name of the observed site; None where it is the model's output.
    """

    mean: Tensor
    variance: Tensor
    num_samples: int
    quantiles: dict[float, Tensor] = field(default_factory=dict)
    samples: Tensor | None = None
    observed: str | None = None


def predict(
    guide: AttentionGuide,
    *args: object,
    observed: str | None = None,
    num_samples: int = 100,
    noise: Noise | Collection[str] = "attention",
    transform: Callable[[Tensor], Tensor] | None = None,
    quantiles: Sequence[float] = (),
    keep_samples: bool = False,
    chunk_size: int = 1,
    seed: int | None = None,
    **kwargs: object,
) -> Prediction:
    r"""Average a model's output over the posterior, :math:`\frac1S \sum_s f(x, W^{(s)})`, in a stream.

    Quantiles are intervals *of the output*, such as the mean of y; they hold fewer observations than their level says.
    With ``observed="y"`` every sample is a draw :math:`y^{(s)} \sim p(y \mid x, W^{(s)})`, and quantiles are
    intervals *of the observation*, with its noise. Intervals *of weights* are those of :func:`sample_posterior`.

    Mean and variance need no memory for the samples; quantiles (linear interpolation, as :func:`torch.quantile`) do.
    Run it with ``noise`` "attention", "dropout" and "both" to split the predictive variance into its sources.

    Args:
        guide: The guide, with or without handlers around it; its model is run and must return a tensor, unless
            ``observed`` is set.
        args: Arguments of the model (without observations; where they are passed, draws of ``observed`` are new ones).
        observed: Name of the site of an observation, to predict that in place of the model's output.
        num_samples: Number of samples S.
        noise: What is random, as in :func:`sample_posterior`. Dropout is that of dropout modules, and of modules with a
            float attribute ``dropout``. An observation has its own noise under all of them. Or patterns, such as
            ``["decoder.*"]``: their attention sites are drawn, the others are at their mean, and in chunks what is
            ahead of the drawn ones is computed once a pass.
        transform: Applied to each output, for example ``lambda logits: logits.softmax(-1)``.
        quantiles: Probabilities in [0, 1].
        keep_samples: Return the samples too.
        chunk_size: Samples drawn in one pass at most.
        seed: Seed of this call alone.
        kwargs: Keyword arguments of the model.

    Raises:
        TypeError: The guide is no AttentionGuide, or the output is no floating-point tensor.
        ValueError: As for :func:`sample_posterior`, or a probability outside [0, 1], a pattern that no attention site
            matches, or a name in ``observed`` that no observation has.

    Example:
        >>> from pyro_attention import FixedGammaPrior, LatentAttention, Weibull
        >>> attention = LatentAttention("attention", FixedGammaPrior())
        >>> guide = AttentionGuide(lambda scores, values: attention(scores, values).context, Weibull())
        >>> prediction = predict(guide, torch.zeros(1, 2, 3), torch.ones(1, 3, 4), num_samples=5, quantiles=[0.5])
        >>> prediction.mean.shape, sorted(prediction.quantiles)
        (torch.Size([1, 2, 4]), [0.5])

        The mean of y is known here, y is not:

        >>> import pyro
        >>> def model(scores, values):
        ...     mean = attention(scores, values).context
        ...     pyro.sample("y", pyro.distributions.Normal(mean, 2.0).to_event(4))
        ...     return mean
        >>> guide, inputs = AttentionGuide(model, Weibull()), (torch.zeros(1, 1, 2, 3), torch.ones(1, 1, 3, 4))
        >>> of_the_mean = predict(guide, *inputs, num_samples=400, seed=0)
        >>> of_y = predict(guide, *inputs, num_samples=400, observed="y", seed=0)
        >>> of_the_mean.variance.mean().sqrt().round().item(), of_y.variance.mean().sqrt().round().item()
        (0.0, 2.0)

    Source: Fan et al. (2020), Bayesian Attention Modules, section 4.2, for the use of both sources of noise.
    """
    if not all(0 <= q <= 1 for q in quantiles):
        raise ValueError(f"quantiles are {list(quantiles)}, expected probabilities in [0, 1]")
    source = "the model" if observed is None else f"site '{observed}'"  # of what is averaged, for messages
    if transform is not None:
        source = "transform"
    kind: Any = "attention"
    if isinstance(noise, str):
        kind, run = noise, Run(guide, args, kwargs)
    else:
        run = Run(_AtMeanBut(noise)(guide), args, kwargs)
    moments, samples = Moments(), []
    draws = passes(run, num_samples, kind, chunk_size, seed)
    # a bar for long work on a terminal
    with closing(draws), tqdm(total=num_samples, unit="draw", delay=5, disable=None, leave=False) as bar:
        for drawn in draws:
            chunk = outputs(drawn) if observed is None else _observations(drawn, observed)
            chunk = chunk if transform is None else transform(chunk)
            _check_averageable(chunk, source)
            moments.update(chunk)
            if keep_samples or quantiles:
                samples.append(chunk)
            bar.update(drawn.size)
            del drawn, chunk  # the next pass needs the memory
    joined = torch.cat(samples) if samples else None
    ordered = joined.sort(0).values if joined is not None and quantiles else torch.empty(0)
    return Prediction(
        mean=moments.mean,
        variance=moments.variance,
        num_samples=moments.count,
        quantiles={q: _quantile(ordered, q) for q in quantiles},
        samples=joined if keep_samples else None,
        observed=observed,
    )


def _observations(drawn: Pass, name: str) -> Tensor:
    """Return draws of an observation in a pass, with a leading sample dimension.

    They are drawn even where the model was passed a value.
    """
    nodes = {key: site for key, site in drawn.trace.nodes.items() if site["type"] == "sample"}
    site = nodes.get(name)
    if site is None or not _may_be_observed(site):
        names = ", ".join(repr(key) for key, other in nodes.items() if _may_be_observed(other)) or "none"
        raise ValueError(
            f"observed is {name!r}, expected the site of an observation, of which the model has {names}; weights are "
            f"drawn by sample_posterior, and observed=None predicts what the model returns; a model that observes only "
            f"what it is given takes an observation of the right shape (y=torch.zeros(...))"
        )
    value = site["fn"].sample() if site["is_observed"] else site["value"]
    return drawn.rows(site, value)


def _may_be_observed(site: Message) -> bool:
    """Return whether a site is observed, or would be with the observation, without which it is drawn as a prior is."""
    is_observation = site["is_observed"] or keeps_prior(site)
    return is_observation and not is_attention_site(site) and not site_is_subsample(site)


class _AtMeanBut(AtMean):
    """Handler that draws the attention sites that match a pattern, and has the others at their mean.

    Attributes:
        drawn: The patterns.
        unknown: Patterns that no attention site of the runs so far has matched; an error at the end of a run.
    """

    def __init__(self, drawn: Collection[str]) -> None:
        super().__init__()
        self.drawn, self.unknown = tuple(drawn), set(drawn)

    def _pyro_sample(self, msg: Message) -> None:
        if not is_attention_site(msg) and not isinstance(msg["fn"], AttentionDistribution):
            return  # a site that is given inside of the guide has the distribution alone
        pattern = first_match(msg["name"], self.drawn)
        if pattern is None:
            super()._pyro_sample(msg)
        else:
            self.unknown.discard(pattern)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, traceback)
        if kind is None and self.unknown:
            raise ValueError(f"noise: no attention site matches {sorted(self.unknown)}, expected patterns of names")


def _quantile(ordered: Tensor, q: float) -> Tensor:
    """Return a quantile of sorted samples, as :func:`torch.quantile`, which takes no large tensors."""
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    return torch.lerp(ordered[low], ordered[min(low + 1, len(ordered) - 1)], position - low)


def _check_averageable(chunk: object, source: str) -> None:
    """Raise TypeError or ValueError unless samples are numbers that have a mean; ``source`` says what gave them."""
    if not isinstance(chunk, Tensor) or not chunk.is_floating_point():
        actual = f"{chunk.dtype} (labels, say)" if isinstance(chunk, Tensor) else type(chunk).__name__
        raise TypeError(
            f"{source} returned {actual}, whose mean says nothing, expected "
            f"floating point such as logits; return those from the model, or pass transform=, for example "
            f"lambda labels: torch.nn.functional.one_hot(labels, classes).float()"
        )
    if not chunk.isfinite().all():
        raise ValueError(
            f"{source} returned {int((~chunk.isfinite()).sum())} of "
            f"{chunk.numel()} numbers NaN or infinite, which have no mean; where -inf stands for an impossible class, "
            f"pass transform=lambda logits: logits.softmax(-1)"
        )
