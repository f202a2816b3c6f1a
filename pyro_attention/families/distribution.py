"""Base classes of the distributions of an attention site, whose event is a whole attention call."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Self, TypedDict, TypeVar

import torch
from pyro.distributions import ExpandedDistribution, MaskedDistribution, TorchDistribution
from torch import Tensor
from torch.distributions import Independent, constraints, register_kl

from pyro_attention._checks import as_float
from pyro_attention.attention_call import AttentionCall
from pyro_attention.layout import Dense, Layout
from pyro_attention.normalizers import Normalizer

__all__ = [
    "AttentionDistribution",
    "ContinuousWeights",
    "LogWeights",
    "WeightsOptions",
    "around_scores",
    "expand_shared",
    "kl_log_weights",
    "of_one_batch",
]

if TYPE_CHECKING:
    from pyro_attention.ops.segment import Segments

Shared = TypeVar("Shared", bound=TorchDistribution)
First = TypeVar("First", bound=TorchDistribution)
Second = TypeVar("Second", bound=TorchDistribution)

_LOG_2_PI = math.log(2 * math.pi)


class AttentionDistribution:
    """Base class of the distributions of an attention site; each subclass is also a Pyro distribution.

    Attributes:
        kind: Kind of the variable; a posterior family fits the priors of its kind.
        parameter_names: Attributes that hold the parameters, unexpanded.
        layout: Mask and structure of the weights.
    """

    kind: ClassVar[str]
    layout: Layout
    parameter_names: tuple[str, ...] = ()
    batch_shape: torch.Size
    event_shape: torch.Size

    def weights(self, value: Tensor, normalizer: Normalizer) -> Tensor:
        """Return the attention weights of a value of the site; exactly zero at masked entries."""
        raise NotImplementedError

    def context(self, value: Tensor, weights: Tensor, values: Tensor) -> Tensor:  # noqa: ARG002
        """Return the sum of the values for every query, weighted by the weights of a value of the site.

        Args:
            value: Value of the site.
            weights: Its attention weights, after dropout.
            values: Values ``[..., heads, keys, width]``, or ``[..., nodes, heads, width]`` on a graph.
        """
        return self.layout.aggregate(weights, values)

    def rows(self, value: Tensor, *, site: str) -> tuple[str, Segments | None] | None:  # noqa: ARG002
        """Describe the rows of the context.

        For alignments over edges a row is an edge; otherwise rows are queries, and this returns None.

        Args:
            value: Value of the site.
            site: Name of the site.
        """
        return None

    @property
    def mean_value(self) -> Tensor:
        """Value of the site without any noise."""
        raise NotImplementedError

    def soft_value(self, call: AttentionCall) -> Tensor:  # noqa: ARG002
        """Return the value whose weights are ordinary attention with the scores of a call under this prior."""
        return self.mean_value

    def mean_weights(self, normalizer: Normalizer) -> Tensor:
        """Return ``E[W]`` where that has a closed form, else the weights of ``E[S]``."""
        return self.weights(self.mean_value, normalizer)

    @property
    def over_weights(self) -> AttentionDistribution:
        """Prior of weights or of their logarithms, if the value of this prior is an index; else this prior itself."""
        return self

    def check_posterior(self, posterior: object, value: Tensor, *, site: str) -> None:
        """Raise TypeError where the values of a posterior from another library would be misread at this site."""

    @property
    def full_shape(self) -> torch.Size:
        """Shape of the weights."""
        return self.batch_shape + self.event_shape

    @property
    def counts(self) -> Tensor:
        """Number of entries that count, for every entry of the batch; an alignment counts as one."""
        counted, dims = self.layout.counted_entries, tuple(range(-len(self.event_shape), 0))
        if counted is None or not dims:
            return torch.tensor(self.event_shape.numel())
        return counted.expand(self.full_shape).sum(dims)


class WeightsOptions(TypedDict, total=False):
    """Keyword arguments of :class:`ContinuousWeights` that its subclasses pass on."""

    layout: Layout | None
    shape: torch.Size | None
    validate_args: bool | None


def expand_shared(distribution: Shared, batch_shape: Sequence[int]) -> Shared:
    """Return a copy of a distribution with a larger batch shape, which shares its tensors."""
    new = copy.copy(distribution)
    new._batch_shape = torch.Size(batch_shape)
    return new


def of_one_batch(q: First, p: Second) -> tuple[First, Second]:
    """Return two distributions in their common batch shape."""
    shape = torch.broadcast_shapes(q.batch_shape, p.batch_shape)
    return (
        q if q.batch_shape == shape else expand_shared(q, shape),
        p if p.batch_shape == shape else expand_shared(p, shape),
    )


class ContinuousWeights(AttentionDistribution, TorchDistribution):
    """Distribution over the weights of a whole attention call, or over their logarithms, as one value.

    Its event is (heads, queries, keys), (heads, keys) or (edges, heads). The layout's mask takes entries out of every
    moment, entropy, KL and weight. In a draw they are zero; in the density they are standard normal, under prior and
    posterior alike, so that it integrates to one.

    A subclass supplies :meth:`draw`, ``mean_value``, ``entropy_per_weight`` and ``log_density``.

    Args:
        parameters: The parameters by name, kept as attributes, unexpanded, in float32 or float64.
        layout: Mask and structure of the weights; dense without a mask by default.
        shape: Full shape, batch + event, when the parameters do not span it.
        validate_args: Whether to check values, as everywhere in torch.distributions.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    has_rsample = True
    holds_logarithms: ClassVar[bool] = True  # of the weights, as the value of the site

    def __init__(
        self,
        *,
        layout: Layout | None = None,
        shape: torch.Size | None = None,
        validate_args: bool | None = None,
        **parameters: Tensor,
    ) -> None:
        self.layout: Layout = Dense() if layout is None else layout
        self.parameter_names = tuple(parameters)
        for name, parameter in parameters.items():
            setattr(self, name, as_float(parameter))
        full = torch.broadcast_shapes(*(p.shape for p in parameters.values())) if shape is None else shape
        split = len(full) - self.layout.event_dim
        super().__init__(full[:split], full[split:], validate_args=validate_args)

    @property
    def support(self) -> constraints.Constraint:
        return constraints.independent(constraints.real, len(self.event_shape))

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> Self:
        return expand_shared(self, batch_shape)

    def draw(self, shape: torch.Size) -> Tensor:
        """Return a draw of this full shape, whatever the mask."""
        raise NotImplementedError

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        value = self.draw(torch.Size(sample_shape) + self.full_shape)
        return value if self.layout.mask is None else value * self.layout.mask

    def check_posterior(self, posterior: object, value: Tensor, *, site: str) -> None:
        if not self.holds_logarithms or isinstance(posterior, AttentionDistribution):
            return
        base: object = posterior
        while isinstance(base, Independent | MaskedDistribution | ExpandedDistribution):
            base = base.base_dist
        if not isinstance(base, torch.distributions.Distribution):
            return
        try:
            support = base.support
            takes_negative = support is None or bool(support.check(value.detach().abs().neg() - 1).all())
        except NotImplementedError:  # a distribution that does not say what its values are
            return
        if not takes_negative:
            name = type(base).__name__
            raise TypeError(
                f"site '{site}' holds log S, the logarithms of weights, but the guide draws it from {name}, whose "
                f"values are never negative, so they would be misread; draw it from AttentionGuide(model, family), "
                f"from a distribution of pyro_attention.families, such as WeibullWeights(log_scale, concentration), or "
                f"from the logarithm, dist.TransformedDistribution({name}(...), [ExpTransform().inv])"
            )

    def weights(self, value: Tensor, normalizer: Normalizer) -> Tensor:
        weights: Tensor = normalizer(value, self.layout)
        return weights

    @property
    def entropy_per_weight(self) -> Tensor:
        """Differential entropy of the value, per weight."""
        raise NotImplementedError

    def log_density(self, value: Tensor) -> Tensor:
        """Return the log density of the value, per weight."""
        raise NotImplementedError

    def sum_event(self, term: Tensor) -> Tensor:
        """Sum a term per weight, unexpanded, over the entries of the event that count, to the batch shape."""
        dims, counted = tuple(range(-len(self.event_shape), 0)), self.layout.counted_entries
        if term.dim() < len(dims):
            term = term[(None,) * (len(dims) - term.dim())]
        alike = [dim for dim in dims if term.size(dim) == 1]
        if counted is not None:
            varying = [dim for dim in alike if counted.dim() >= -dim and counted.size(dim) > 1]
            alike = [dim for dim in alike if dim not in varying]
            count = counted.sum(varying, keepdim=True) if varying else counted
            # where, not a product alone: 0 * inf would be NaN
            term = term.where(count > 0, 0) * count if varying else term.where(counted, 0)
        total, times = term.sum(dims), math.prod(self.event_shape[dim] for dim in alike)
        return (total if times == 1 else total * times).expand(self.batch_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of the value in the batch shape; masked entries are standard normal."""
        if self._validate_args:
            self._validate_sample(value)
        density, dims = self.log_density(value), len(self.event_shape)
        shape = torch.broadcast_shapes(density.shape[: density.dim() - dims], self.batch_shape)
        total = self.expand(shape).sum_event(density)
        if self.layout.counted_entries is None:
            return total
        hidden = (-0.5 * (value.square() + _LOG_2_PI)).masked_fill(self.layout.counted_entries, 0)
        return total + hidden.sum(tuple(range(-dims, 0)))

    def entropy(self) -> Tensor:
        """Return the entropy, summed over the unmasked entries of the event, in the batch shape."""
        return self.sum_event(self.entropy_per_weight)


class LogWeights(ContinuousWeights):
    """Distribution over ``log S`` of independent positive numbers S, whose softmax is the attention weights.

    A subclass supplies :meth:`draw`, :meth:`log_density`, the moments per weight ``mean`` (E[log S]) and ``variance``
    (Var[log S]), ``entropy_per_weight``, and ``log_expected_weight`` (log E[S]) as a ``functools.cached_property``,
    because :func:`around_scores` assigns it. To serve as a prior it also supplies :meth:`cross_entropy`.
    """

    kind: ClassVar[str] = "positive weights"

    @cached_property
    def log_expected_weight(self) -> Tensor:
        """Logarithm ``log E[S]``, per weight."""
        raise NotImplementedError

    @property
    def mean_gap(self) -> Tensor:
        """Difference ``log E[S] - E[log S]``, per weight; it depends on the spread alone."""
        return self.log_expected_weight - self.mean

    def soft_value(self, call: AttentionCall) -> Tensor:
        return call.scores.expand(self.full_shape)

    @property
    def mean_value(self) -> Tensor:
        """Value ``log E[S]``."""
        return self.log_expected_weight.expand(self.full_shape)

    def cross_entropy(self, q: LogWeights) -> Tensor:
        """Return ``-E_q[log p(log S)]``, p being this distribution, summed over the entries of the event that count."""
        raise NotImplementedError(f"{type(self).__name__} has no closed-form cross entropy and is no prior")


Posterior = TypeVar("Posterior", bound=LogWeights)


def around_scores(
    posterior: type[Posterior], call: AttentionCall, prior: AttentionDistribution, *parameters: Tensor
) -> Posterior:
    """Return the posterior with these parameters at the site of a call; they make ``E[S] = exp(scores)``."""
    q = posterior(*parameters, layout=call.layout, shape=prior.full_shape)
    q.log_expected_weight = call.scores  # known, so that it is not computed
    return q


@register_kl(LogWeights, LogWeights)
def kl_log_weights(q: LogWeights, p: LogWeights) -> Tensor:
    r"""Return the KL of log weights, :math:`-\mathrm{E}_q[\log p] - \mathrm{H}[q]`, in the common batch shape.

    One rule serves every pair, because every prior is linear in a few moments of the posterior.
    """
    q, p = of_one_batch(q, p)
    return p.cross_entropy(q) - q.entropy()
