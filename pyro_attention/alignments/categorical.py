"""The alignment family: which key a query attends to. Its distributions, its prior and its posteriors."""

from __future__ import annotations

import math
from functools import singledispatch
from typing import Any, ClassVar, NamedTuple, Self

import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints, kl_divergence, register_kl

from pyro_attention._checks import as_float, check_positive
from pyro_attention.attention_call import AttentionCall, enter
from pyro_attention.families.base import FAMILIES, PRIORS, Family, Prior
from pyro_attention.families.distribution import AttentionDistribution, expand_shared
from pyro_attention.layout import Dense, Layout
from pyro_attention.normalizers import Normalizer
from pyro_attention.ops.noise import log_exponential

__all__ = [
    "AlignmentPrior",
    "AlignmentWeights",
    "Categorical",
    "CategoricalAlignment",
    "EnumeratedAlignment",
    "GumbelSoftmax",
    "Marginal",
    "RelaxedAlignment",
    "alignment_over",
    "or_first",
]


class CategoricalAlignment(AttentionDistribution, dist.Categorical):
    r"""The key that a query attends to, :math:`z \sim \mathrm{Categorical}(\mathrm{softmax}(\Phi))`.

    Its value is the index of a key; :meth:`weights` makes it a row of attention weights with a single one. A floating
    point value stands for the weights themselves, such as those of soft attention, ``E[z]``; its log probability is the
    expectation under them.

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

    kind: ClassVar[str] = "alignment"
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
        super().__init__(logits=self._log_probabilities(scores.squeeze(-2), mask), validate_args=validate_args)

    def _log_probabilities(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        """Return log probabilities, up to a constant, of scores ``[..., N]``, where the mask is as large."""
        if mask is None:
            return scores
        # finite, so that a probability of zero times its logarithm is zero
        return scores.masked_fill(~or_first(mask), torch.finfo(scores.dtype).min / 8)

    def expand(self, batch_shape: Any, _instance: Any = None) -> CategoricalAlignment:
        new = type(self).__new__(type(self)) if _instance is None else _instance
        new = super().expand(batch_shape, _instance=new)
        new.layout = self.layout
        return new  # type: ignore[no-any-return]

    def log_prob(self, value: Tensor) -> Tensor:
        if value.is_floating_point():
            return (value.squeeze(-2) * self.logits).sum(-1)
        return super().log_prob(value)  # type: ignore[no-any-return]

    def at_scores(self, scores: Tensor) -> CategoricalAlignment:
        """Return the distribution of other scores ``[..., 1, N]``, zero wherever this one is."""
        return CategoricalAlignment(scores, layout=self.possible_layout)

    @property
    def possible_layout(self) -> Layout:
        """The layout, whose mask takes out every key that is impossible."""
        return self.layout

    @property
    def full_shape(self) -> torch.Size:
        return torch.Size((*self.batch_shape, 1, self._num_events))

    @property
    def mean_value(self) -> Tensor:
        """Probabilities of the keys as attention weights, ``[..., 1, N]``."""
        return self._masked(self.probs.unsqueeze(-2))

    @property
    def over_weights(self) -> AlignmentWeights:
        return AlignmentWeights(self)

    @property
    def log_weights(self) -> Tensor:
        """Log probability of every key, ``[..., 1, N]``."""
        return self.logits.unsqueeze(-2)

    def row_sums(self, weights: Tensor) -> Tensor:
        """Sum weights ``[..., 1, N]`` over the keys, ``[..., 1]``."""
        return weights.sum(-1)

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
    """Give rows of a mask ``[..., N]`` without any key the first one, under prior and posterior alike: KL is 0."""
    first = torch.arange(mask.size(-1), device=mask.device) == 0
    return mask | (first & ~mask.any(-1, keepdim=True))


class _WeightRows(constraints.Constraint):
    """Weights of an alignment: a point on the simplex for every query, or zeros for one without keys."""

    event_dim = 2

    def __init__(self, alignment: Any) -> None:
        self.alignment = alignment
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        sums: Tensor = self.alignment.row_sums(value)
        rows = ((sums - 1).abs() < 1e-4) | (sums == 0)
        return (value >= 0).flatten(-2).all(-1) & rows.all(-1)


class AlignmentWeights(AttentionDistribution, dist.TorchDistribution):
    """An alignment whose value is weights instead of indices of keys; its event is (1, N), or (E, 1) on a graph.

    Log probability (in expectation under the weights), entropy and KL are those of the categorical distribution. As a
    prior it stands beside a posterior that draws weights; only such a posterior has draws.

    Args:
        alignment: The categorical distribution.

    Example:
        >>> p = AlignmentWeights(CategoricalAlignment(torch.zeros(1, 2)))
        >>> p.event_shape, p.log_prob(torch.tensor([[0.5, 0.5]])).item()
        (torch.Size([1, 2]), -0.6931)
    """

    kind: ClassVar[str] = CategoricalAlignment.kind
    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(self, alignment: Any) -> None:
        self.alignment, self.layout = alignment, alignment.layout
        shape = alignment.full_shape
        super().__init__(shape[:-2], shape[-2:], validate_args=alignment._validate_args)

    @property
    def support(self) -> constraints.Constraint:
        """Weights that sum to one."""
        return _WeightRows(self.alignment)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Self:
        new = expand_shared(self, batch_shape)
        new.alignment = self.alignment.expand(batch_shape)
        return new

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return self.alignment.log_prob(value)  # type: ignore[no-any-return]

    def entropy(self) -> Tensor:
        return self.alignment.entropy()  # type: ignore[no-any-return]

    def weights(self, value: Tensor, normalizer: Normalizer | None = None) -> Tensor:  # noqa: ARG002
        return value

    @property
    def mean_value(self) -> Tensor:
        return self.alignment.mean_value  # type: ignore[no-any-return]


@register_kl(AlignmentWeights, AlignmentWeights)
def _kl_weights(q: AlignmentWeights, p: AlignmentWeights) -> Tensor:
    return kl_divergence(q.alignment, p.alignment)


@register_kl(CategoricalAlignment, CategoricalAlignment)
def _kl_alignment(q: CategoricalAlignment, p: CategoricalAlignment) -> Tensor:
    # torch's own is infinite where a probability of p underflows, though its logarithm is known
    return torch.as_tensor((q.probs * (q.logits - p.logits)).sum(-1))


class EnumeratedAlignment(NamedTuple):
    """An alignment whose keys are summed over, for a likelihood below it; shapes as of its value.

    Attributes:
        possible: True at keys of positive probability.
        dim: The dimension of the keys, below 0.
        log_prob: Log probability of the keys, without gradient.
        evidence: The log of a sum is wanted, as without a posterior; else an expectation.
        readers: The sites below it, as far as they have been reached.
    """

    possible: Tensor
    dim: int
    log_prob: Tensor
    evidence: bool
    readers: list[str]


@singledispatch
def alignment_over(layout: Layout, scores: Tensor) -> Any:
    """Return the categorical distribution over the keys of a layout; a layout of another kind registers its own."""
    return CategoricalAlignment(scores, layout=layout)


@PRIORS.register("alignment")
class AlignmentPrior(Prior):
    r"""The attention scores are the prior: :math:`z \sim \mathrm{Categorical}(\mathrm{softmax}(\Phi))`.

    On a graph it is that of an :class:`EdgeAlignment`: which in-edge a node attends to.

    Example:
        >>> AlignmentPrior()(AttentionCall(scores=torch.zeros(2, 1, 3), layout=Dense(event_dim=2))).probs.shape
        torch.Size([2, 3])

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, section 2.
    """

    kind = CategoricalAlignment.kind

    def forward(self, call: AttentionCall) -> Any:
        return alignment_over(call.layout, call.scores)


@FAMILIES.register("marginal")
class Marginal(Family):
    r"""No posterior: the alignment is summed out exactly, :math:`\log \sum_z p(z)\, f(y \mid z)`.

    For :class:`AlignmentELBO`, whose value then is the log evidence; elsewhere it draws from the prior.

    Example:
        >>> Marginal().infer
        {'enumerate': 'parallel'}

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, section 3.
    """

    kind = CategoricalAlignment.kind
    is_marginal = True
    infer: ClassVar[dict[str, Any]] = {"enumerate": "parallel"}

    def posterior(self, call: AttentionCall, prior: CategoricalAlignment) -> TorchDistribution:  # noqa: ARG002
        return prior


@FAMILIES.register("categorical")
class Categorical(Family):
    r"""Categorical posterior, summed out exactly: :math:`\mathrm{E}_q[\log f(y \mid z)] - \mathrm{KL}(q \| p)`.

    By itself q is the prior ("hard attention", whose KL is zero); with :class:`Amortized` its scores come from an
    inference network.

    Args:
        enumerate: Sum over all keys; False draws one, for estimators of its gradient.

    Example:
        >>> Categorical()
        Categorical(enumerate=True)

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, section 3.1.
    """

    kind = CategoricalAlignment.kind

    def __init__(self, *, enumerate: bool = True) -> None:
        super().__init__()
        self.enumerate = enumerate
        self.infer = {"enumerate": "parallel"} if enumerate else {}  # type: ignore[misc]

    def posterior(self, call: AttentionCall, prior: CategoricalAlignment) -> TorchDistribution:
        return prior.at_scores(call.scores)

    def extra_repr(self) -> str:
        return f"enumerate={self.enumerate}"


class RelaxedAlignment(AlignmentWeights):
    r"""An alignment whose draws are weights, :math:`\mathrm{softmax}((\log\pi + G) / \tau)`, G standard Gumbel.

    They tend to one-hot draws of the categorical distribution :math:`\pi` as the temperature falls; log probability (in
    expectation under the weights), entropy and KL are those of that distribution.

    Args:
        alignment: The categorical distribution, over keys or edges.
        temperature: ``tau > 0``.

    Example:
        >>> q = RelaxedAlignment(CategoricalAlignment(torch.zeros(2, 1, 3)), temperature=0.5)
        >>> q.rsample().sum(-1).tolist()
        [[1.0], [1.0]]

    Source: Jang et al. (2017), Categorical Reparameterization with Gumbel-Softmax; Maddison et al. (2017), The
    Concrete Distribution.
    """

    has_rsample = True

    def __init__(self, alignment: Any, *, temperature: float) -> None:
        super().__init__(alignment)
        self.temperature = temperature

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Return weights ``[..., 1, N]``, or ``[..., E, 1]`` on a graph."""
        logits = self.alignment.log_weights
        shape = torch.Size(sample_shape) + logits.shape
        gumbel = -log_exponential(shape, dtype=logits.dtype, device=logits.device)
        return self.layout.softmax((logits + gumbel) / self.temperature)


@FAMILIES.register("gumbel_softmax")
class GumbelSoftmax(Family):
    r"""Relaxed draws of a categorical posterior, for :class:`AttentionELBO`; the KL is the categorical one, exact.

    .. math:: \mathrm{E}[\log f(y \mid \mathrm{softmax}((\log q + G) / \tau))] - \mathrm{KL}(q \| p)

    Its gradient is estimated without bias, but this is no bound on the evidence; it tends to that of
    :class:`Categorical` as the temperature falls, while the variance of its gradient grows.

    By itself q is the prior; with :class:`Amortized` its scores come from an inference network.

    Args:
        temperature: ``tau > 0``, else ValueError.

    Example:
        >>> GumbelSoftmax()
        GumbelSoftmax(temperature=0.1)

    Source: Jang et al. (2017), Categorical Reparameterization with Gumbel-Softmax; Maddison et al. (2017), The
    Concrete Distribution; Deng et al. (2018), Latent Alignment and Variational Attention, for alignments.
    """

    kind = CategoricalAlignment.kind

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__()
        check_positive("temperature", temperature)
        self.temperature = temperature

    def prior(self, prior: CategoricalAlignment) -> AlignmentWeights:
        return prior.over_weights

    def posterior(self, call: AttentionCall, prior: CategoricalAlignment) -> RelaxedAlignment:
        alignment = prior.at_scores(call.scores)
        return RelaxedAlignment(alignment, temperature=self.temperature).expand(prior.batch_shape)

    def extra_repr(self) -> str:
        return f"temperature={self.temperature}"
