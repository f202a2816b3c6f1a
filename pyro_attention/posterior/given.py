"""Posteriors of attention that have seen the observations, by weights of the draws of any guide, by Bayes' rule."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self

import torch
from pyro.ops.stats import fit_generalized_pareto
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_attention.guide import AttentionGuide
from pyro_attention.objectives.evidence import ItemWeights, item_weights
from pyro_attention.posterior.passes import Noise, Pass, Run, depth, passes, seeded

__all__ = ["UnreliableWeights", "WeightedPosterior", "read_draws", "weighted_posterior"]


def weighted_posterior(
    guide: AttentionGuide,
    *args: Any,
    num_samples: int = 100,
    noise: Noise = "attention",
    chunk_size: int = 1,
    seed: int | None = None,
    **kwargs: Any,
) -> WeightedPosterior:
    r"""Draw attention weights from the guide, with their weights given the observations.

    .. math:: p(W \mid x, y) \propto f(y \mid W)\, p(W \mid x) = w(W)\, q(W)

    For every guide whose posterior has a density, and for one that keeps the prior; it need not have seen y.

    Args:
        guide: The guide, with or without handlers around it.
        args: Arguments of the model, with the observations; options are those of :func:`sample_posterior`.
        num_samples: Number of draws S.
        noise: "attention", or "both", where dropout masks are weighted with the rest.
        chunk_size: Draws in one pass at most.
        seed: Seed of this call alone.
        kwargs: Keyword arguments of the model.

    Raises:
        TypeError: As there.
        ValueError: As there, or as at a call of :class:`EvidenceELBO`; another ``noise``; importance weights that all
            vanish.

    Example:
        >>> import pyro
        >>> from pyro_attention import Dense, FromPrior, LatentAttention, LogNormal, ScorePrior
        >>> attention = LatentAttention("attention", ScorePrior(LogNormal(scale=1.0)))
        >>> def model(scores, values, y):
        ...     with pyro.plate("data", len(y)):
        ...         mean = attention(scores, values, layout=Dense(event_dim=2)).context.squeeze(-1).squeeze(-1)
        ...         pyro.sample("y", pyro.distributions.Normal(mean, 0.5), obs=y)
        >>> data = torch.zeros(2, 1, 3), torch.ones(1, 3, 1), torch.ones(2)
        >>> found = weighted_posterior(AttentionGuide(model, FromPrior()), *data, num_samples=50)
        >>> found.samples["attention"].shape, found.log_weights.shape, found.effective_sample_size.round().tolist()
        (torch.Size([50, 2, 1, 3]), torch.Size([50, 2]), [50.0, 50.0])

    Source: Vehtari et al. (2024), Pareto Smoothed Importance Sampling, for the diagnostic.
    """
    return _weigh(Run(guide, args, kwargs), num_samples, noise, chunk_size, seed, Pass.weights)


Read = Callable[[Pass], Iterator[tuple[str, Tensor]]]  # what is taken from a pass, by site, with a sample dimension


def _weigh(
    run: Run, num_samples: int, noise: Noise, chunk_size: int, seed: int | None, read: Read
) -> WeightedPosterior:
    if noise not in ("attention", "both"):
        raise ValueError(f"noise is '{noise}', but draws without noise have no weights; use 'attention' or 'both'")
    with closing(passes(run, num_samples, noise, chunk_size, seed)) as draws:
        return WeightedPosterior.of(draws, read)


def read_draws(
    run: Run,
    read: Read,
    *,
    num_samples: int,
    noise: Noise,
    chunk_size: int,
    seed: int | None,
    given: Literal["observations"] | None,
) -> dict[str, Tensor]:
    """Return what is read from draws of the posterior, by site ``[S, ...]``; see :func:`sample_posterior`.

    Given the observations, draws are drawn again by their importance weights, each item by itself.

    Raises:
        ValueError: ``given`` is neither None nor "observations", or as there.
    """
    if given is not None:
        if given != "observations":
            raise ValueError(f"given is {given!r}, expected 'observations'")
        with seeded(seed):
            weighted = _weigh(run, num_samples, noise, chunk_size, None, read)
            weighted.warn()
            return weighted.resample()
    samples: dict[str, list[Tensor]] = {}
    with closing(passes(run, num_samples, noise, chunk_size, seed)) as draws:
        for drawn in draws:
            for name, value in read(drawn):
                samples.setdefault(name, []).append(value)
            del drawn, value  # the next pass needs the memory
    return {name: torch.cat(samples.pop(name)) for name in list(samples)}  # one at a time, for the memory


class UnreliableWeights(UserWarning):
    """Few draws carry nearly all of the weight of an item, so that what they say about it cannot be trusted."""


@dataclass(frozen=True)
class WeightedPosterior:
    r"""Draws of a guide, and the weights that make them draws given the observations.

    An item is an entry of the plates that all latent sites and observations have in common (see :class:`EvidenceELBO`).

    Attributes:
        samples: Attention weights of every site, ``[S, ...]``, as of :func:`sample_posterior`.
        log_weights: Log weights :math:`\log f(y_i \mid W_i) + \log p(W_i) - \log q(W_i)` of the items, ``[S, *items]``.
        dims: Dimensions of the items' plates, negative, in the order of ``log_weights``.
        plates: Number of plate dimensions of every site.
    """

    samples: dict[str, Tensor]
    log_weights: Tensor
    dims: tuple[int, ...]
    plates: dict[str, int]

    @classmethod
    def of(cls, passes: Iterable[Any], read: Read = Pass.weights) -> Self:
        """Collect the passes of a whole model; raise ValueError where the weights of an item all vanish.

        ``read`` gives what ``samples`` hold.
        """
        samples: dict[str, list[Tensor]] = {}
        log_weights: list[Tensor] = []
        for drawn in passes:
            for name, value in read(drawn):
                samples.setdefault(name, []).append(value)
            items = _items(drawn.trace)
            rows = items.log_weights.unsqueeze(0) if drawn.nesting is None else items.log_weights
            # plates within an item have size one
            log_weights.append(rows.squeeze([dim for dim in range(1 - rows.dim(), 0) if dim not in items.dims]))
            plates = {name: depth(drawn.trace.nodes[name]) for name in samples}
            del drawn, value  # the next pass needs the memory
        joined = torch.cat(log_weights)
        lost = (~(joined.amax(0) > -math.inf)).sum().item()
        if lost:
            raise ValueError(
                f"the weights of {lost} items vanish in all {len(joined)} draws, or are NaN; take more draws, look for "
                f"NaN in the observations, or use a guide that sees them (Amortized)"
            )
        return cls({name: torch.cat(parts) for name, parts in samples.items()}, joined, items.dims, plates)

    @property
    def log_evidence(self) -> Tensor:
        """Estimated log evidence of every item: the test likelihood of the model."""
        return self.log_weights.logsumexp(0) - math.log(len(self.log_weights))

    @cached_property
    def effective_sample_size(self) -> Tensor:
        r"""Number of draws that as many equal weights would count for, :math:`1 / \sum_s \tilde w_s^2`, an item."""
        return self.log_weights.softmax(0).square().sum(0).reciprocal()

    @cached_property
    def pareto_k(self) -> Tensor:
        """Shape of the tail of the weights of every item: above 0.7 they cannot be trusted (Vehtari et al., 2024).

        NaN where no tail is seen: with fewer than 25 draws, or equal weights.
        """
        return _pareto_k(self.log_weights)

    @property
    def trusted(self) -> Tensor:
        """The items whose Pareto k is at most 0.7, or not known, and that have ten effective draws or more.

        Also those whose draws count for more than 99 % of their number: such weights move the mean of an attention
        weight, which lies between 0 and 1, by 0.05 at most, whatever the shape of their tail.
        """
        alike = self.effective_sample_size > max(1, 0.99 * len(self.log_weights))  # one draw tells nothing
        return alike | (~(self.pareto_k > 0.7) & (self.effective_sample_size >= 10))

    def warn(self) -> None:
        """Warn of :class:`UnreliableWeights` where items cannot be trusted."""
        bad = ~self.trusted
        if bad.any():
            least = self.effective_sample_size.min().item()
            known = self.pareto_k[bad & ~self.pareto_k.isnan()]
            worst = f"{known.max().item():.2f}" if len(known) else "unknown"
            warnings.warn(
                f"draws given the observations cannot be trusted in {bad.sum().item()} of {bad.numel()} items (least "
                f"effective sample size {least:.1f} of {len(self.log_weights)}, largest Pareto k {worst}); take "
                f"more draws, or a guide that sees the observations (Amortized); weighted_posterior tells which items",
                UnreliableWeights,
                stacklevel=3,
            )

    def resample(self) -> dict[str, Tensor]:
        """Resample the draws of each item by their weights (systematically), as many as before."""
        count, weights = len(self.log_weights), self.log_weights.double().softmax(0)
        start = torch.rand(weights.shape[1:], dtype=weights.dtype, device=weights.device)
        points = (torch.arange(count, device=weights.device).view(-1, *[1] * start.dim()) + start) / count
        cumulated = weights.cumsum(0).movedim(0, -1).contiguous()
        chosen = torch.searchsorted(cumulated, points.movedim(0, -1).contiguous()).movedim(-1, 0).clamp(max=count - 1)
        resampled = {}
        for name, drawn in self.samples.items():
            shape = [count, *[1] * (drawn.dim() - 1)]
            for dim, size in zip(self.dims, chosen.shape[1:], strict=True):
                shape[1 + self.plates[name] + dim] = size
            resampled[name] = drawn.take_along_dim(chosen.reshape(shape), 0)
        return resampled


def _items(trace: Any) -> ItemWeights:
    try:
        trace.compute_log_prob(lambda _, site: site["is_observed"])  # whose errors name the site
    except ValueError as error:
        error.add_note("Put a number in place of missing observations, and hide them by poutine.mask.")
        raise
    nodes = [site for site in trace.nodes.values() if site["type"] == "sample" and not site_is_subsample(site)]
    latent = [(site, site["infer"].get("prior")) for site in nodes if not site["is_observed"]]
    return item_weights(latent, [site for site in nodes if site["is_observed"]])


def _pareto_k(log_weights: Tensor) -> Tensor:
    """Return the shape of a generalized Pareto distribution over the largest weights of every item."""
    columns = log_weights.reshape(len(log_weights), -1)  # one column where the model has no plates
    size = math.ceil(min(0.2 * len(log_weights), 3 * math.sqrt(len(log_weights))))
    shapes = [math.nan if size < 5 else _shape(column, size) for column in columns.double().unbind(1)]
    return log_weights.new_tensor(shapes).reshape(log_weights.shape[1:])


def _shape(log_weights: Tensor, size: int) -> float:
    largest = (log_weights - log_weights.max()).exp().topk(size + 1).values.flip(0)
    tail = largest[1:] - largest[0]
    if tail[-1] < 1e-5:  # nothing but ties, up to rounding
        return math.nan
    # Pyro divides by the tail's quarter, which is zero where a few weights stand beside ties or zeros
    return float(fit_generalized_pareto(tail)[0]) if tail[int(size / 4 - 0.5)] > 0 else math.inf
