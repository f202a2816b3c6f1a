"""The base of all alignment distributions, over keys or edges, and the same distributions over weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Self

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints, register_kl

from pyro_attention.alignments.summed import EdgeSum
from pyro_attention.families.distribution import AttentionDistribution, expand_shared
from pyro_attention.layout import Layout
from pyro_attention.normalizers import Normalizer

__all__ = ["AlignmentDistribution", "AlignmentWeights", "SummedEvent", "kl_alignments"]


class AlignmentDistribution(AttentionDistribution, TorchDistribution):
    r"""The base of distributions whose value says which key every query attends to: one of them, or none.

    .. math:: z_i \sim \mathrm{Categorical}(p_i), \qquad
              \log p(z) = \sum_i \log p_{i z_i}, \qquad
              \mathrm{KL}(q \| p) = \sum_i \sum_n q_{in} (\log q_{in} - \log p_{in})

    The queries lie in plates (the value has no event dimension, and Pyro enumerates the keys along a dimension of their
    own), or in the event (the nodes of a graph, one event dimension). A query without any key that its layout allows
    has weights of zero and adds nothing to log probability, entropy and KL.

    The value is integer; a floating point value stands for weights, such as those of soft attention, ``E[z]``, and its
    log probability is the expectation under them.

    A subclass supplies :attr:`full_shape`, :attr:`log_weights`, :attr:`mean_value`, :meth:`log_prob_per_query`,
    :meth:`sample`, :meth:`weights`, :meth:`is_possible`, :meth:`normalize`, :meth:`sum_over_keys`, :meth:`at_scores`
    and :meth:`tilted`; one that can be enumerated also ``enumerate_support``, and one whose queries lie in the event
    :meth:`sum_in_event`.

    Attributes:
        is_sparse: Whether keys that the layout allows may have a probability of exactly zero.
    """

    kind: ClassVar[str] = "alignment"
    is_sparse: ClassVar[bool] = False

    # probabilities

    @property
    def log_weights(self) -> Tensor:
        """Log probability of every key, in the shape of the weights; finite, also where a key is impossible."""
        raise NotImplementedError

    @property
    def mean_value(self) -> Tensor:
        """Probability of every key, as attention weights; zero where a key is impossible."""
        raise NotImplementedError

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log probability of alignments, or its expectation under weights: the batch shape."""
        if value.is_floating_point():
            return (value * self.log_weights).sum((-2, -1))
        log_prob = self.log_prob_per_query(value)
        return log_prob.sum(-1) if self.event_dim else log_prob

    def log_prob_per_query(self, value: Tensor) -> Tensor:
        """Return the log probability of the key of each query, in the shape of the (integer) value."""
        raise NotImplementedError

    def entropy(self) -> Tensor:
        """Entropy, summed over the queries of the event: the batch shape."""
        return -(self.mean_value * self.log_weights).sum((-2, -1))

    @property
    def counts(self) -> Tensor:
        return torch.tensor(self.event_shape.numel())

    # keys

    def weights(self, value: Tensor, normalizer: Normalizer | None = None) -> Tensor:
        """Return the attention weights of a value, rows with a single one; weights are returned as they are."""
        raise NotImplementedError

    def is_possible(self, value: Tensor) -> Tensor:
        """Return True for the queries whose key may be attended to, in the shape of the value.

        For a query without any key it is one value: the first key, or -1 where a value may say that there is none.
        """
        raise NotImplementedError

    def sum_over_keys(self, weights: Tensor) -> Tensor:
        """Sum weights over the keys of every query, in the shape of the value."""
        raise NotImplementedError

    def normalize(self, weights: Tensor) -> Tensor:
        """Scale weights so that those of every query sum to one, as Bayes' rule does; weights of zero stay zero."""
        raise NotImplementedError

    @property
    def support_size(self) -> Tensor:
        """Number of values of positive probability of every query, at least 1; it broadcasts to batch and event."""
        return self.sum_over_keys((self.mean_value > 0).to(self.mean_value.dtype)).long().clamp_min(1)

    @property
    def is_cut(self) -> Tensor:
        """True for queries of which a limit on the number of keys has taken some out; it broadcasts so, too."""
        return torch.zeros((), dtype=torch.bool, device=self.log_weights.device)

    # other distributions of the same queries

    @property
    def possible_layout(self) -> Layout:
        """The layout, whose mask takes out every key that is impossible."""
        return self.layout

    def at_scores(self, scores: Tensor) -> AlignmentDistribution:
        """Return the distribution of other scores, shaped like the weights; impossible keys stay impossible."""
        raise NotImplementedError

    def uniform(self) -> AlignmentDistribution:
        """Return the distribution that gives every possible key of a query the same probability."""
        return self.at_scores(torch.zeros_like(self.log_weights))

    def tilted(self, tilt: Tensor) -> AlignmentDistribution:
        """Return a copy with a tilt added to the log probabilities of possible keys, without normalization.

        At a tilt of zero the log evidence has the posterior probabilities as its gradient.
        """
        raise NotImplementedError

    @property
    def over_weights(self) -> AlignmentWeights:
        """Distribution of the weights in place of the keys."""
        return AlignmentWeights(self)

    # sums

    def sum_in_event(self, prior: AlignmentDistribution, *, evidence: bool) -> SummedEvent | None:  # noqa: ARG002
        """Return how all alignments of this posterior are summed out at once, without a dimension for the keys.

        Args:
            prior: Prior of the site.
            evidence: Sum under the prior, for the log evidence; else take expectations under this posterior.

        Returns:
            None where Pyro enumerates the keys along a dimension, as it does for queries in plates.
        """
        return None


class SummedEvent(NamedTuple):
    """A site whose queries lie in the event, all of whose alignments are summed over at once.

    Attributes:
        value: Value of the site, which stands for all alignments.
        prior: Prior of the site, which gives that value the log probability 0, or the bound -KL below a posterior.
        edges: Running sum over the edges, for the likelihoods below.
    """

    value: Tensor
    prior: AlignmentDistribution
    edges: EdgeSum


def kl_alignments(q: AlignmentDistribution, p: AlignmentDistribution) -> Tensor:
    """Return the KL between two alignments of the same queries, in the batch shape.

    It uses the log probabilities: torch's rule is infinite where a probability of p underflows.
    """
    return (q.mean_value * (q.log_weights - p.log_weights)).sum((-2, -1))


register_kl(AlignmentDistribution, AlignmentDistribution)(kl_alignments)


class _WeightRows(constraints.Constraint):
    """Weights of an alignment: a point on the simplex for every query, or zeros for a query without keys."""

    event_dim = 2

    def __init__(self, alignment: AlignmentDistribution) -> None:
        self.alignment = alignment
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        sums = self.alignment.sum_over_keys(value)
        rows = ((sums - 1).abs() < 1e-4) | (sums == 0)
        return (value >= 0).flatten(-2).all(-1) & (rows.all(-1) if self.alignment.event_dim else rows)


class AlignmentWeights(AttentionDistribution, TorchDistribution):
    """An alignment whose value is weights instead of indices of keys; its event is (1, N), or (E, 1) on a graph.

    Log probability (in expectation under the weights), entropy and KL are those of the categorical distribution. It is
    the prior of posteriors that draw weights; it has no draws itself.

    Args:
        alignment: The categorical distribution.

    Example:
        >>> from pyro_attention.alignments.categorical import CategoricalAlignment
        >>> p = AlignmentWeights(CategoricalAlignment(torch.zeros(1, 2)))
        >>> p.event_shape, p.log_prob(torch.tensor([[0.5, 0.5]])).item()
        (torch.Size([1, 2]), -0.6931)
    """

    kind: ClassVar[str] = AlignmentDistribution.kind
    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}

    def __init__(self, alignment: AlignmentDistribution) -> None:
        self.alignment, self.layout = alignment, alignment.layout
        shape = alignment.full_shape
        super().__init__(shape[:-2], shape[-2:], validate_args=alignment._validate_args)

    @property
    def support(self) -> constraints.Constraint:
        """Weights that are not negative and sum to one, or zeros."""
        return _WeightRows(self.alignment)

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> Self:
        """Return a copy with a larger batch shape."""
        new = expand_shared(self, batch_shape)
        new.alignment = self.alignment.expand(batch_shape)
        return new

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the expected log probability of the keys under weights: the batch shape."""
        if self._validate_args:
            self._validate_sample(value)
        return self.alignment.log_prob(value)

    def entropy(self) -> Tensor:
        """Entropy of the categorical distribution."""
        return self.alignment.entropy()

    def weights(self, value: Tensor, normalizer: Normalizer | None = None) -> Tensor:  # noqa: ARG002
        return value

    @property
    def mean_value(self) -> Tensor:
        return self.alignment.mean_value


@register_kl(AlignmentWeights, AlignmentWeights)
def _kl_weights(q: AlignmentWeights, p: AlignmentWeights) -> Tensor:
    return kl_alignments(q.alignment, p.alignment)
