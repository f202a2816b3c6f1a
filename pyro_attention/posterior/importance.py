"""Posterior of attention given the observations: draws of any guide, weighted by Bayes' rule."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from pyro.ops.stats import fit_generalized_pareto
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_attention._typing import Trace
from pyro_attention.guide import AttentionGuide
from pyro_attention.objectives.evidence import ItemWeights, item_weights
from pyro_attention.posterior.passes import Noise, Pass, Run, depth, passes, seeded

__all__ = ["ImportancePosterior", "UnreliableWeights", "importance_posterior"]


def importance_posterior(
    guide: AttentionGuide,
    *args: object,
    num_samples: int = 100,
    noise: Noise = "attention",
    values: bool = False,
    chunk_size: int = 1,
    seed: int | None = None,
    **kwargs: object,
) -> ImportancePosterior:
    r"""Draw attention weights from the guide, and weight the draws so that they follow :math:`p(W \mid x, y)`.

    .. math:: p(W \mid x, y) \propto f(y \mid W)\, p(W \mid x) = w(W)\, q(W)

    It takes every guide whose posterior has a density, and a guide that keeps the prior; the guide need not have seen
    y. ``importance_posterior(...).resample()`` returns draws given y, in the form of :func:`sample_posterior`.

    Args:
        guide: The guide, with or without handlers around it.
        args: Arguments of the model, with the observations.
        num_samples: Number of draws S.
        noise: "attention", or "both", where dropout masks are weighted with the rest.
        values: Draw the values of all latent sites, in the form of :func:`sample_sites`, instead of attention weights.
        chunk_size: Draws in one pass at most.
        seed: Seed of this call alone.
        kwargs: Keyword arguments of the model.

    Returns:
        The draws with their importance weights.

    Raises:
        TypeError: The guide is no AttentionGuide.
        ValueError: ``noise`` is neither "attention" nor "both"; ``num_samples`` or ``chunk_size`` is no positive
            integer; the model has no attention site or no observation; the importance weights of an item all vanish; or
            as at a call of :class:`EvidenceELBO`.

    Example:
        >>> import pyro
        >>> from pyro_attention import Dense, FromPrior, LatentAttention, LogNormal, ScorePrior
        >>> attention = LatentAttention("attention", ScorePrior(LogNormal(scale=1.0)))
        >>> def model(scores, values, y):
        ...     with pyro.plate("data", len(y)):
        ...         mean = attention(scores, values, layout=Dense(event_dim=2)).context.squeeze(-1).squeeze(-1)
        ...         pyro.sample("y", pyro.distributions.Normal(mean, 0.5), obs=y)
        >>> data = torch.zeros(2, 1, 3), torch.ones(1, 3, 1), torch.ones(2)
        >>> posterior = importance_posterior(AttentionGuide(model, FromPrior()), *data, num_samples=50)
        >>> posterior.log_importance_weights.shape, posterior.effective_sample_size.round().tolist()
        (torch.Size([50, 2]), [50.0, 50.0])
        >>> posterior.resample()["attention"].shape
        torch.Size([50, 2, 1, 3])

    Source: Vehtari et al. (2024), Pareto Smoothed Importance Sampling, for the diagnostic.
    """
    if noise not in ("attention", "both"):
        raise ValueError(f"noise is '{noise}', but draws without noise have no weights; use 'attention' or 'both'")
    run = Run(guide, args, kwargs)
    with closing(passes(run, num_samples, noise, chunk_size, seed)) as draws:
        return ImportancePosterior.of(draws, Pass.latent_values if values else Pass.weights)


class UnreliableWeights(UserWarning):
    """Few draws carry nearly all of the importance weight of an item, so that estimates for it are unreliable."""


@dataclass(frozen=True)
class ImportancePosterior:
    r"""Draws of a guide with importance weights, which make them draws given the observations.

    An item is an entry of the plates that all latent sites and observations have in common (see :class:`EvidenceELBO`).

    Attributes:
        samples: Attention weights of every site, ``[S, ...]``, in the form of :func:`sample_posterior`, or values of
            all latent sites, in the form of :func:`sample_sites`.
        log_importance_weights: :math:`\log f(y_i \mid W_i) + \log p(W_i) - \log q(W_i)` of the items,
            ``[S, *items]``.
        dims: Dimensions of the items' plates, negative, in the order of ``log_importance_weights``.
        plates: Number of plate dimensions of every site.
    """

    samples: dict[str, Tensor]
    log_importance_weights: Tensor
    dims: tuple[int, ...]
    plates: dict[str, int]

    @classmethod
    def of(cls, passes: Iterable[Pass], read: Callable[[Pass], Iterator[tuple[str, Tensor]]] = Pass.weights) -> Self:
        """Collect the passes of a whole model.

        Args:
            passes: The passes.
            read: Yields from a pass what ``samples`` holds: names of sites with tensors ``[draws, ...]``.

        Raises:
            ValueError: The importance weights of an item all vanish.
        """
        samples: dict[str, list[Tensor]] = {}
        log_importance_weights: list[Tensor] = []
        for drawn in passes:
            for name, value in read(drawn):
                samples.setdefault(name, []).append(value)
            items = _items(drawn.trace)
            rows = items.log_importance_weights.unsqueeze(0) if drawn.nesting is None else items.log_importance_weights
            dims_within_items = [dim for dim in range(1 - rows.dim(), 0) if dim not in items.dims]  # of size one
            log_importance_weights.append(rows.squeeze(dims_within_items))
            plates = {name: depth(drawn.trace.nodes[name]) for name in samples}
            del drawn, value  # the next pass needs the memory
        joined = torch.cat(log_importance_weights)
        lost = (~(joined.amax(0) > -math.inf)).sum().item()
        if lost:
            raise ValueError(
                f"the weights of {lost} items vanish in all {len(joined)} draws, or are NaN; take more draws, look for "
                f"NaN in the observations, or use a guide that sees them (Amortized)"
            )
        return cls({name: torch.cat(parts) for name, parts in samples.items()}, joined, items.dims, plates)

    @property
    def log_evidence(self) -> Tensor:
        """Estimated log evidence of every item in nats: the test likelihood of the model."""
        return self.log_importance_weights.logsumexp(0) - math.log(len(self.log_importance_weights))

    @cached_property
    def effective_sample_size(self) -> Tensor:
        r"""Effective sample size of every item, :math:`1 / \sum_s \tilde w_s^2` of its normalized weights."""
        return self.log_importance_weights.softmax(0).square().sum(0).reciprocal()

    @cached_property
    def pareto_k(self) -> Tensor:
        """Shape of the tail of every item's importance weights: above 0.7 they are unreliable (Vehtari et al., 2024).

        NaN where there is no tail: with fewer than 25 draws, or equal weights.
        """
        return _pareto_k(self.log_importance_weights)

    @property
    def trusted(self) -> Tensor:
        """Boolean mask of the items with a Pareto k of at most 0.7, or unknown, and ten effective draws or more.

        Items whose effective sample size is above 99 % of the draws are trusted as well: such importance weights move
        the mean of an attention weight, which lies between 0 and 1, by 0.05 at most, whatever the shape of their tail.
        """
        nearly_all = max(1, 0.99 * len(self.log_importance_weights))  # a single draw says nothing about the spread
        has_equal_weights = self.effective_sample_size > nearly_all
        has_light_tail = ~(self.pareto_k > 0.7)  # or an unknown one, NaN
        return has_equal_weights | (has_light_tail & (self.effective_sample_size >= 10))

    def resample(self, *, seed: int | None = None) -> dict[str, Tensor]:
        """Resample the draws of every item by their importance weights (systematically), as many as there are.

        Args:
            seed: Seed of this call alone.

        Returns:
            Draws given the observations, ``[S, ...]``, by the name of the site.

        Warns:
            UnreliableWeights: Some items are not :attr:`trusted`.
        """
        self._warn()
        with seeded(seed):
            return self._resampled()

    def _resampled(self) -> dict[str, Tensor]:
        """Return the draws of every item that equally spaced points, shifted at random, choose by the weights."""
        count, weights = len(self.log_importance_weights), self.log_importance_weights.double().softmax(0)
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

    def _warn(self) -> None:
        """Warn where items are not trusted."""
        bad = ~self.trusted
        if bad.any():
            least = self.effective_sample_size.min().item()
            known = self.pareto_k[bad & ~self.pareto_k.isnan()]
            worst = f"{known.max().item():.2f}" if len(known) else "unknown"
            warnings.warn(
                f"draws given the observations cannot be trusted in {bad.sum().item()} of {bad.numel()} items (least "
                f"effective sample size {least:.1f} of {len(self.log_importance_weights)}, largest Pareto k {worst}); "
                f"take more draws, or a guide that sees the observations (Amortized); .trusted is False at these items",
                UnreliableWeights,
                stacklevel=3,  # the caller of resample
            )


def _items(trace: Trace) -> ItemWeights:
    """Weigh the items of a pass by the observations and the priors of its latent sites."""
    try:
        trace.compute_log_prob(lambda _, site: site["is_observed"])  # whose errors name the site
    except ValueError as error:
        error.add_note("Put a number in place of missing observations, and hide them by poutine.mask.")
        raise
    nodes = [site for site in trace.nodes.values() if site["type"] == "sample" and not site_is_subsample(site)]
    latent = [(site, site["infer"].get("prior")) for site in nodes if not site["is_observed"]]
    return item_weights(latent, [site for site in nodes if site["is_observed"]])


def _pareto_k(log_importance_weights: Tensor) -> Tensor:
    """Return the shape of a generalized Pareto distribution over the largest weights of every item."""
    count = len(log_importance_weights)
    # a column for each item, one where the model has no plates; on the CPU, where Pyro's fit computes whatever it gets
    columns = log_importance_weights.reshape(count, -1).cpu()
    size = math.ceil(min(0.2 * count, 3 * math.sqrt(count)))
    shapes = [math.nan if size < 5 else _shape(column, size) for column in columns.double().unbind(1)]
    return log_importance_weights.new_tensor(shapes).reshape(log_importance_weights.shape[1:])


def _shape(log_importance_weights: Tensor, size: int) -> float:
    """Return the shape of the tail of an item's weights, which are ``size`` in number; NaN where there is none."""
    largest = (log_importance_weights - log_importance_weights.max()).exp().topk(size + 1).values.flip(0)
    tail = largest[1:] - largest[0]
    if tail[-1] < 1e-5:  # nothing but ties, up to rounding
        return math.nan
    # Pyro divides by the tail's quarter, which is zero where a few weights stand beside ties or zeros
    return float(fit_generalized_pareto(tail)[0]) if tail[int(size / 4 - 0.5)] > 0 else math.inf
