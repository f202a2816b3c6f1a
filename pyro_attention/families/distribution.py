"""The bases of the distributions over continuous attention weights, whose event is a whole attention call."""

from __future__ import annotations

import copy
import math
from typing import Any, ClassVar, Self, TypeVar

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from pyro_attention._checks import check_finite, check_positive
from pyro_attention.families.proposal import AttentionDistribution, Proposal
from pyro_attention.layout import Dense, Layout
from pyro_attention.normalizers import Softmax
from pyro_attention.ops.transforms import whole

__all__ = ["ContinuousWeights", "LogWeights", "expand_shared"]

Distribution = TypeVar("Distribution", bound=TorchDistribution)

_SOFTMAX = Softmax()
_LOG_2_PI = math.log(2 * math.pi)


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


class ContinuousWeights(AttentionDistribution, TorchDistribution):
    """A distribution over the weights of a whole attention call, or over their logarithms, as one value.

    Its event is (heads, queries, keys), (heads, keys) or (edges, heads). Its parameters stay unexpanded. The layout's
    mask takes entries out of every moment, entropy, KL and weight. Only the density counts them, as standard normal
    under every prior and posterior alike: so it integrates to one, which MCMC needs, and they cancel between prior and
    posterior. Nothing reads their values; in a draw they are zero, without any noise.

    A subclass supplies :meth:`draw`, ``mean_value``, ``entropy_per_weight`` and ``log_density``.

    Args:
        parameters: The parameters by name; their common broadcast shape is batch + event.
        layout: Where the weights live; dense without a mask by default.
        shape: Full shape, when the parameters do not span it.
        validate_args: Check parameters and values; on by default, as everywhere in torch.distributions.

    Attributes:
        positive: Names of the parameters that must be positive.

    Raises:
        ValueError: A parameter that is NaN, infinite or not positive where it must be, or too few dimensions.
    """

    positive: ClassVar[tuple[str, ...]] = ()
    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    has_rsample = True

    def __init__(
        self,
        *,
        layout: Layout | None = None,
        shape: torch.Size | None = None,
        validate_args: bool | None = None,
        **parameters: Tensor,
    ) -> None:
        self.layout: Layout = Dense() if layout is None else layout
        full = torch.broadcast_shapes(*(p.shape for p in parameters.values())) if shape is None else shape
        if len(full) < self.layout.event_dim:
            raise ValueError(
                f"{type(self).__name__}: parameters of shape {tuple(full)} have fewer dimensions than the "
                f"{self.layout.event_dim} event dimensions of {type(self.layout).__name__}; expected [..., heads, "
                f"queries, keys] or [..., edges, heads]"
            )
        split = len(full) - self.layout.event_dim
        super().__init__(full[:split], full[split:], validate_args=validate_args)
        if self._validate_args:
            for name, parameter in parameters.items():
                check = check_positive if name in self.positive else check_finite
                check(f"{type(self).__name__}: {name}", whole(parameter))

    @property
    def support(self) -> constraints.Constraint:
        """Every real tensor of the event's shape."""
        return constraints.independent(constraints.real, len(self.event_shape))

    def expand(self, batch_shape: Any, _instance: Any = None) -> Self:
        """Copy with a larger batch shape; parameters are shared, not expanded."""
        return expand_shared(self, batch_shape)

    def draw(self, shape: torch.Size) -> Tensor:
        """A value of this full shape, whatever the mask."""
        raise NotImplementedError

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        value = self.draw(torch.Size(sample_shape) + self.full_shape)
        return value if self.layout.mask is None else value.masked_fill(~self.layout.mask, 0)

    def weights(self, value: Tensor) -> Tensor:
        """Normalised attention weights of a value that holds their logarithms."""
        normalizer = _SOFTMAX if self._proposal is None else self._proposal.normalizer
        weights: Tensor = normalizer(value, self.layout)
        return weights

    @property
    def entropy_per_weight(self) -> Tensor:
        """Differential entropy of the value, per weight."""
        raise NotImplementedError

    def log_density(self, value: Tensor) -> Tensor:
        """Log density of the value, per weight."""
        raise NotImplementedError

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
        """Log density of the value, masked entries standard normal: the batch shape."""
        if self._validate_args:
            self._validate_sample(value)
        density, dims = self.log_density(value), len(self.event_shape)
        shape = torch.broadcast_shapes(density.shape[: density.dim() - dims], self.batch_shape)
        total = self.expand(shape).sum_event(density)
        if self.layout.mask is None:
            return total
        hidden = (-0.5 * (value.square() + _LOG_2_PI)).masked_fill(self.layout.mask, 0)
        return total + hidden.sum(tuple(range(-dims, 0)))

    def entropy(self) -> Tensor:
        """Entropy summed over the unmasked entries of the event: the batch shape."""
        return self.sum_event(self.entropy_per_weight)


class LogWeights(ContinuousWeights):
    """Independent positive attention weights S, as a distribution over ``log S``.

    The value is ``log S`` because ``softmax(log S)`` is the normalised weight, is stable where ``S / S.sum()`` gives
    NaN, and leaves every KL unchanged (log is a bijection).

    A subclass supplies :meth:`draw`, the moments ``mean`` (E[log S]), ``variance`` (Var[log S]),
    ``log_expected_weight`` (log E[S]) and ``entropy_per_weight``, and, to serve as a prior, ``cross_entropy``.

    Args:
        proposal: The attention layer's, where a posterior was made to have ``E[S] = exp(proposal.scores)``: that
            need not be computed then.
        options: The parameters, and what :class:`ContinuousWeights` takes.
    """

    kind: ClassVar[str] = "positive weights"

    def __init__(self, *, proposal: Proposal | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._known_mean = proposal

    @property
    def expected_total(self) -> Tensor | float | None:
        """Sum of ``E[S]`` over the unmasked entries of the event where it is known; a number, or one a batch entry."""
        return None if self._known_mean is None else self._known_mean.expected_total

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
    def deterministic_value(self) -> Tensor:
        """The value whose weights are ordinary attention, for a layer that Pyro does not run."""
        return self.proposal.scores.expand(self.full_shape)

    @property
    def mean_value(self) -> Tensor:
        """The value ``log E[S]``."""
        return self.log_expected_weight.expand(self.full_shape)

    def cross_entropy(self, q: LogWeights) -> Tensor:
        """``-E_q[log p(log S)]``, p being this distribution, summed over the unmasked entries of the event."""
        raise NotImplementedError(f"{type(self).__name__} has no closed-form cross entropy and is no prior")
