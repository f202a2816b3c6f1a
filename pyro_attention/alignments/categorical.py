"""Alignments of queries in plates: which key a query attends to."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Self

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_attention._checks import as_float
from pyro_attention.alignments.base import AlignmentDistribution
from pyro_attention.attention_call import enter
from pyro_attention.layout import Dense, Layout
from pyro_attention.normalizers import Normalizer

__all__ = ["CategoricalAlignment", "or_first"]


class CategoricalAlignment(AlignmentDistribution, dist.Categorical):
    r"""Categorical distribution of the key that a query attends to.

    .. math:: z \sim \mathrm{Categorical}(\mathrm{softmax}(\Phi))

    The value is the index of a key; :meth:`weights` makes it a row of attention weights with a single one.

    Args:
        scores: Unnormalized log probabilities of the keys, ``[..., 1, N]``: one head, queries in plates.
        layout: Dense with ``event_dim=2``; its mask takes keys out. Without any key the weights are zero.
        validate_args: Check values.

    Raises:
        ValueError: More than one head, no key, or a layout with queries in the event or on a graph.

    Example:
        >>> prior = CategoricalAlignment(torch.zeros(2, 1, 3))
        >>> prior.weights(torch.tensor([0, 2])).tolist()
        [[[1.0, 0.0, 0.0]], [[0.0, 0.0, 1.0]]]

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, section 2.
    """

    parameter_names = ("logits",)

    def __init__(self, scores: Tensor, *, layout: Layout | None = None, validate_args: bool | None = None) -> None:
        layout = Dense(event_dim=2) if layout is None else layout
        if not isinstance(layout, Dense) or layout.event_dim != 2:
            raise ValueError(
                f"layout is {layout}, expected Dense(event_dim=2): each query's alignment is its own value"
            )
        if scores.dim() < 2 or scores.size(-2) != 1:
            raise ValueError(f"scores have shape {tuple(scores.shape)}, expected one head, [..., 1, keys]")
        if not scores.size(-1):
            raise ValueError(f"scores have shape {tuple(scores.shape)}, expected at least one key to be attended to")
        scores = as_float(scores)
        self.layout, scores = layout, enter(scores, layout, None)
        mask = None if layout.mask is None else layout.mask.expand(scores.shape).squeeze(-2)
        logits = self._log_probabilities(scores.squeeze(-2), mask)
        dist.Categorical.__init__(self, logits=logits, validate_args=validate_args)

    def _log_probabilities(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        """Return log probabilities, up to a constant, of scores ``[..., N]``, where the mask is as large."""
        if mask is None:
            return scores
        # finite, so that a probability of zero times its logarithm is zero
        return scores.masked_fill(~or_first(mask), torch.finfo(scores.dtype).min / 8)

    def expand(self, batch_shape: Sequence[int], _instance: Self | None = None) -> Self:
        """Return a copy with a larger batch shape."""
        new: Self = type(self).__new__(type(self)) if _instance is None else _instance
        dist.Categorical.expand(self, batch_shape, _instance=new)
        new.layout = self.layout
        return new

    def log_prob_per_query(self, value: Tensor) -> Tensor:
        return torch.as_tensor(dist.Categorical.log_prob(self, value))

    def at_scores(self, scores: Tensor) -> CategoricalAlignment:
        return CategoricalAlignment(scores, layout=self.possible_layout)

    def tilted(self, tilt: Tensor) -> Self:
        """Return a copy with a tilt ``[..., 1, N]`` added to the log probabilities, without normalization."""
        new, mask = copy.copy(self), self.layout.mask
        new.logits = self.logits + (tilt if mask is None else tilt.where(mask, 0)).squeeze(-2)
        return new

    @property
    def full_shape(self) -> torch.Size:
        return torch.Size((*self.batch_shape, 1, self._num_events))

    @property
    def mean_value(self) -> Tensor:
        """Probability of every key as attention weights, ``[..., 1, N]``."""
        return self._masked(self.probs.unsqueeze(-2))

    @property
    def log_weights(self) -> Tensor:
        """Log probability of every key, ``[..., 1, N]``."""
        return self.logits.unsqueeze(-2)

    def sum_over_keys(self, weights: Tensor) -> Tensor:
        """Sum weights ``[..., 1, N]`` over the keys, ``[...]``."""
        return weights.sum((-2, -1))

    def normalize(self, weights: Tensor) -> Tensor:
        return weights / weights.sum(-1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)

    def is_possible(self, value: Tensor) -> Tensor:
        """Return True where an index ``[...]`` is a key that the layout has; without any key the first."""
        if self.layout.mask is None:
            return torch.ones_like(value, dtype=torch.bool)
        mask = torch.atleast_2d(self.layout.mask).squeeze(-2)
        possible = or_first(mask.expand(*mask.shape[:-1], self._num_events))
        shape = torch.broadcast_shapes(value.shape, mask.shape[:-1])
        is_allowed: Tensor = possible.expand(*shape, -1).gather(-1, value.expand(shape).unsqueeze(-1))
        return is_allowed.squeeze(-1)

    def weights(self, value: Tensor, normalizer: Normalizer | None = None) -> Tensor:  # noqa: ARG002
        """Return the attention weights ``[..., 1, N]`` of indices ``[...]``; weights are returned as they are."""
        if value.is_floating_point():
            return value
        chosen = value.unsqueeze(-1) == torch.arange(self._num_events, device=value.device)
        return self._masked(chosen.to(self.logits.dtype).unsqueeze(-2))

    def context(self, value: Tensor, weights: Tensor, values: Tensor) -> Tensor:
        if value.is_floating_point() or value.dim() <= len(self.batch_shape) or value[0].numel() == 1:
            return super().context(value, weights, values)
        # many keys for each query: products with one-hot rows would copy all values for each of them
        *batch, _, keys, width = values.shape
        rows = torch.arange(math.prod(batch), device=value.device).view(batch) * keys + value
        weight = weights.gather(-1, value.expand(weights.shape[:-2])[..., None, None])
        return weight * torch.nn.functional.embedding(rows, values.reshape(-1, width)).unsqueeze(-2)

    def _masked(self, weights: Tensor) -> Tensor:
        return weights if self.layout.mask is None else weights.masked_fill(~self.layout.mask, 0)


def or_first(mask: Tensor) -> Tensor:
    """Return a mask ``[..., N]`` with the first key allowed in rows without any.

    Prior and posterior of such a query are then the same certain distribution, with a KL of zero.
    """
    first = torch.arange(mask.size(-1), device=mask.device) == 0
    return mask | (first & ~mask.any(-1, keepdim=True))
