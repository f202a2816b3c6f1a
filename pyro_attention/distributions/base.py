"""The base of all distributions over log attention weights."""

from __future__ import annotations

import copy
import math
from typing import Any, ClassVar, TypeVar

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from pyro_attention.layout import Dense, Layout
from pyro_attention.normalizers import Normalizer, Softmax

__all__ = ["LogWeights", "expand_shared"]

Distribution = TypeVar("Distribution", bound=TorchDistribution)


def expand_shared(distribution: Distribution, batch_shape: Any) -> Distribution:
    """Copy with a larger batch shape that shares the tensors it holds, unexpanded.

    Raises:
        ValueError: The batch shape does not expand to this one.
    """
    shape = torch.Size(batch_shape)
    padded = (1,) * (len(shape) - len(distribution.batch_shape)) + distribution.batch_shape
    if len(padded) > len(shape) or any(a not in (1, b) for a, b in zip(padded, shape, strict=True)):
        raise ValueError(f"cannot expand batch shape {tuple(distribution.batch_shape)} to {tuple(shape)}")
    new = copy.copy(distribution)
    new._batch_shape = shape
    return new


class LogWeights(TorchDistribution):
    """Independent positive attention weights S, as a distribution over ``log S``.

    The value is ``log S`` because ``softmax(log S)`` is the normalised weight, is stable where ``S / S.sum()`` gives
    NaN, and leaves every KL unchanged (log is a bijection). One object holds a whole attention call: its event is
    (heads, queries, keys) or (edges, heads), its parameters stay unexpanded, and the layout's mask takes entries
    out of every sum.

    A subclass supplies the moments ``mean`` (E[log S]), ``variance`` (Var[log S]), ``log_expected_weight``
    (log E[S]), ``entropy_per_weight``, and, to serve as a prior, ``cross_entropy``.

    Args:
        parameters: Tensors whose common broadcast shape is batch + event.
        layout: Where the weights live; dense without a mask by default.
        shape: Full shape, when the parameters do not span it.
        validate_args: Check parameters and values; on by default, as everywhere in torch.distributions.

    Attributes:
        scores: ``log E[S]`` that the attention layer proposes; a posterior family starts from it. None on
            distributions made by hand.
        expected_total: Sum of ``E[S]`` over the unmasked entries of the event where it is known, as for normalised
            scores; a number, or one for each batch entry.
        normalizer: From log weights to weights; softmax over the keys unless set.
    """

    kind: ClassVar[str] = "positive weights"
    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    has_rsample = True

    def __init__(
        self,
        *parameters: Tensor,
        layout: Layout | None = None,
        shape: torch.Size | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self.layout: Layout = Dense() if layout is None else layout
        self.scores = None
        self.normalizer: Normalizer = Softmax()
        full = torch.broadcast_shapes(*(p.shape for p in parameters)) if shape is None else shape
        if len(full) < self.layout.event_dim:
            raise ValueError(
                f"{type(self).__name__}: parameters of shape {tuple(full)} have fewer dimensions than the "
                f"{self.layout.event_dim} event dimensions of {type(self.layout).__name__}; expected [..., heads, "
                f"queries, keys] or [..., edges, heads]"
            )
        split = len(full) - self.layout.event_dim
        super().__init__(full[:split], full[split:], validate_args=validate_args)

    @property
    def support(self) -> constraints.Constraint:
        """Every real tensor of the event's shape."""
        return constraints.independent(constraints.real, len(self.event_shape))

    def expand(self, batch_shape: Any, _instance: Any = None) -> LogWeights:
        """Copy with a larger batch shape; parameters are shared, not expanded."""
        return expand_shared(self, batch_shape)

    @property
    def scores(self) -> Tensor | None:
        """``log E[S]`` that the attention layer proposes."""
        return self._scores

    @scores.setter
    def scores(self, scores: Tensor | None) -> None:
        self._scores = scores
        self.expected_total: Tensor | float | None = None  # that of other scores

    @property
    def proposal(self) -> Tensor:
        """The attention layer's ``log E[S]``, from which a posterior family starts."""
        if self.scores is None:
            raise ValueError(
                f"{type(self).__name__} carries no scores; sample it through LatentAttention, or set .scores"
            )
        return self.scores

    def weights(self, value: Tensor) -> Tensor:
        """Normalised attention weights of a value ``log S``."""
        weights: Tensor = self.normalizer(value, self.layout)
        return weights

    # Moments of log S, per weight, each in the smallest shape that holds it.

    @property
    def log_expected_weight(self) -> Tensor:
        """``log E[S]``, per weight."""
        raise NotImplementedError

    @property
    def mean_gap(self) -> Tensor:
        """``log E[S] - E[log S]``, per weight; it depends on the spread alone."""
        return self.log_expected_weight - self.mean

    @property
    def mean_value(self) -> Tensor:
        """The value ``log E[S]``."""
        return self.log_expected_weight.expand(self.full_shape)

    @property
    def deterministic_value(self) -> Tensor:
        """The value whose weights are ordinary attention, for a layer that Pyro does not run."""
        return self.proposal.expand(self.full_shape)

    @property
    def entropy_per_weight(self) -> Tensor:
        """Differential entropy of ``log S``, per weight."""
        raise NotImplementedError

    def log_density(self, value: Tensor) -> Tensor:
        """Log density of ``log S``, per weight."""
        raise NotImplementedError

    def cross_entropy(self, q: LogWeights) -> Tensor:
        """``-E_q[log p(log S)]``, p being this distribution, summed over the unmasked entries of the event."""
        raise NotImplementedError(f"{type(self).__name__} has no closed-form cross entropy and is no prior")

    # What torch and Pyro ask for, from the above.

    def sum_event(self, term: Tensor, *, summed: tuple[int, ...] = ()) -> Tensor:
        """Sum over the unmasked entries of the event, without expanding what broadcasts: the batch shape.

        Args:
            term: Per weight, in the smallest shape that holds it.
            summed: Event dimensions (negative) that it was summed over already.
        """
        dims = tuple(range(-len(self.event_shape), 0))
        if self.layout.mask is not None:
            # where, not a product: 0 * inf would be NaN
            term = term.where(self.layout.mask, 0)
        term = term[(None,) * (len(dims) - term.dim())]
        repeats = math.prod(self.event_shape[dim] for dim in dims if term.size(dim) == 1 and dim not in summed)
        return (term.sum(dims) * repeats).expand(self.batch_shape)

    def sum_products(self, term: Tensor, factor: Tensor) -> Tensor:
        """Sum of ``term * factor`` over the unmasked entries of the event: the batch shape.

        The term is summed first over the dimensions that neither factor nor mask has: scores meet the parameters of
        a key once, as a sum over the queries.
        """
        others = [factor] if self.layout.mask is None else [factor, self.layout.mask]
        dims = tuple(
            dim
            for dim in range(-min(term.dim(), len(self.event_shape)), 0)
            if term.size(dim) > 1 and all(other.dim() < -dim or other.size(dim) == 1 for other in others)
        )
        if dims:
            term = term.sum(dims, keepdim=True)
        return self.sum_event(term * factor, summed=dims)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density of ``log S`` summed over the unmasked entries of the event: the batch shape."""
        if self._validate_args:
            self._validate_sample(value)
        density = self.log_density(value)
        shape = torch.broadcast_shapes(density.shape[: density.dim() - len(self.event_shape)], self.batch_shape)
        return self.expand(shape).sum_event(density)

    def entropy(self) -> Tensor:
        """Entropy of ``log S`` summed over the unmasked entries of the event: the batch shape."""
        return self.sum_event(self.entropy_per_weight)

    @property
    def full_shape(self) -> torch.Size:
        """Batch shape followed by event shape: the shape of a value."""
        return self.batch_shape + self.event_shape
