"""Sums below alignments: a record of the alignments above an observation, and the base of likelihoods that sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.nn.functional import pad

from pyro_attention.ops.segment import Segments

__all__ = ["AlignmentsAbove", "EdgeSum", "EnumeratedAlignment", "SummedLikelihood"]


class EnumeratedAlignment(NamedTuple):
    """An alignment whose keys stand along a dimension at the left of the plates.

    Attributes:
        possible: True at keys of positive probability, ``[keys, 1, ..., *plates]``.
        dim: Dimension of the keys, negative, counted without the event of the likelihood.
        log_prob: Log probability of the keys, without gradient, in the shape of ``possible``.
        evidence: True where the log of a sum is wanted, as under ``Marginal``; else an expectation.
        readers: Names of the sites below it, in their order, as far as the model has run.
    """

    possible: Tensor
    dim: int
    log_prob: Tensor
    evidence: bool
    readers: list[str]


class EdgeSum:
    r"""Sum over the edges of every node, built up site by site, of what is observed below an alignment.

    .. math:: \log \sum_{e \to i} p(e)\, f(y_i \mid e) \quad\text{or}\quad \sum_{e \to i} q(e) \log f(y_i \mid e)

    Args:
        rows: The node of every row ``[R]``: of each edge, and behind the edges of each node that has none.
        log_weights: Log probability of each edge under p or q, ``[..., E]``; -inf where an edge is masked.
        evidence: Whether the first of the sums is meant, else the second.

    Attributes:
        is_used: Whether anything was observed.
    """

    def __init__(self, rows: Segments, log_weights: Tensor, *, evidence: bool) -> None:
        self.rows, self.evidence, self.is_used = rows, evidence, False
        # a node without edges has one row, which is certain
        self.log_weights = pad(log_weights, (0, rows.index.numel() - log_weights.size(-1)))

    def add(self, log_prob: Tensor) -> Tensor:
        """Sum log probabilities of an observation at the rows ``[..., R]``: ``[..., N]``.

        The sum of a second observation is conditional on the first, so that all of them make up the joint evidence.
        """
        self.is_used = True
        joint = self.log_weights + log_prob
        nodes = joint.new_zeros((*joint.shape[:-1], self.rows.count))
        if not self.evidence:
            weights = self.log_weights.exp()
            return nodes.index_add(-1, self.rows.index, weights * log_prob.where(weights > 0, 0))
        index = self.rows.index.expand(joint.shape)
        highest = nodes.scatter_reduce(-1, index, joint.detach(), "amax", include_self=False)
        highest = highest.masked_fill(highest.isinf(), 0)
        total = nodes.index_add(-1, self.rows.index, (joint - highest.gather(-1, index)).exp()).log() + highest
        self.log_weights = joint - total.gather(-1, index)
        return total


@dataclass(frozen=True)
class AlignmentsAbove:
    """Alignments that are summed out above an observed site.

    Attributes:
        enumerated: Alignments whose keys stand along a dimension, in the order of the model.
        edges: Running sums of alignments over the edges of a graph, by the names of their sites.
        mask: Pyro's mask of the observation; None without one.
        is_only_sum: Whether nothing else is enumerated at the observation, and one scale holds for all of its items.
        roulette: Share of the gradient below which a term may be left out at random, in [0, 1).
    """

    enumerated: Sequence[EnumeratedAlignment] = ()
    edges: Mapping[str, EdgeSum] = field(default_factory=dict)
    mask: Tensor | bool | None = None
    is_only_sum: bool = False
    roulette: float = 0.0


class SummedLikelihood(TorchDistribution):
    r"""Optional base of likelihoods that make the sum over alignments cheaper.

    Any distribution that broadcasts is summed exactly without it. Alignments *above* an observation are sites that are
    drawn before it and whose keys are summed out.

    :class:`AlignmentELBO` calls :meth:`below_alignments` of every observed site whose distribution is a
    ``SummedLikelihood``, and takes the log probability from the distribution that comes back. All other objectives take
    it from the likelihood as it is. The library has two: :class:`TokenLikelihood` is computed at possible keys alone,
    and :class:`NodeLikelihood` sums over the edges of every node.

    Give the distribution itself to ``pyro.sample``: under ``.to_event()`` or ``.mask()`` it is an ordinary one, too.

    Attributes:
        site: Name of the alignment over edges whose nodes are observed, each by itself; None for queries in plates.

    Example:
        >>> import pyro
        >>> from pyro_attention import AlignmentELBO, AlignmentPrior, AttentionGuide, Dense, LatentAttention, Marginal
        >>> class Careful(pyro.distributions.Normal, SummedLikelihood):
        ...     def below_alignments(self, alignments):
        ...         possible = alignments.enumerated[0].possible
        ...         print(possible.squeeze(-1).tolist())  # the third key is padding
        ...         return self.mask(possible)
        >>> attention = LatentAttention("alignment", AlignmentPrior())
        >>> layout = Dense(torch.tensor([[True, True, False]]), event_dim=2)
        >>> def model(y):
        ...     with pyro.plate("queries", 1):
        ...         context = attention(torch.zeros(1, 1, 3), torch.ones(1, 3, 1), layout=layout).context
        ...         pyro.sample("y", Careful(context[..., 0, 0], 1.0), obs=y)
        >>> elbo = AlignmentELBO(max_plate_nesting=1)
        >>> loss = elbo.loss(model, AttentionGuide(model, Marginal()), torch.ones(1))  # the first call looks twice
        [True, True, False]
        [True, True, False]
        >>> round(loss, 3)  # 0.5 log 2 pi
        0.919
    """

    site: str | None = None

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> Self:
        """Return the likelihood itself at its own batch shape; a subclass that can grow overrides this.

        Pyro's wrapper of other distributions would hide :meth:`below_alignments` from the objective.

        Raises:
            NotImplementedError: Another batch shape.
        """
        if torch.Size(batch_shape) == self.batch_shape:
            return self
        problem = f"{type(self).__name__} has batch shape {tuple(self.batch_shape)}, but the plates around it need"
        raise NotImplementedError(
            f"{problem} {tuple(batch_shape)}; give its parameters that shape, or its class a method "
            f"expand(self, batch_shape, _instance=None) that returns a likelihood of the same class"
        )

    def below_alignments(self, alignments: AlignmentsAbove) -> TorchDistribution:
        """Return the distribution whose log probability counts below alignments that are summed out.

        Below keys along a dimension the log probability has that dimension, and the objective sums over it; it counts
        where a key is possible and the mask is true, and must be finite elsewhere. Below edges the log probability is
        the sum itself, made by :meth:`EdgeSum.add` of log probabilities that are zero where the mask is false.

        Args:
            alignments: Alignments above the site; some of them may have nothing to do with it.
        """
        raise NotImplementedError

    def log_prob_per_query(self, value: Tensor) -> Tensor:
        """Return the log probability of the observation of each query; for queries in plates that is ``log_prob``."""
        return torch.as_tensor(self.log_prob(value))
