"""NodeLikelihood: observations of the nodes of a graph, below attention whose edges may be summed over."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import ClassVar, Self

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from pyro_attention._checks import check_boolean_mask
from pyro_attention.alignments.summed import AlignmentsAbove, EdgeSum, SummedLikelihood
from pyro_attention.attention import AttentionOutput

__all__ = ["NodeLikelihood"]


class NodeLikelihood(SummedLikelihood):
    r"""Distribution of the observations of all nodes, as one event, given the output of attention along edges.

    Under most families the context has a row for each node, and the likelihood is ``distribution.to_event(1)`` with its
    mask. Below an alignment that is summed out, the context and the distribution have a row for each edge. The
    likelihood then sums over the edges of every node, for :class:`AlignmentELBO` and :func:`exact_alignments`:

    .. math:: \sum_i \log \sum_{e \to i} p(e)\, f(y_i \mid e) \quad\text{or}\quad \sum_i \sum_{e \to i} q(e) \log f

    Bring other features of the nodes that the distribution reads to these rows by :meth:`AttentionOutput.at_rows`.

    Args:
        distribution: Distribution of each row of ``attention.context``, of batch shape ``[..., rows]``.
        attention: The output of :meth:`GraphAttention.attend`, or of :class:`LatentAttention` on an :class:`EdgeList`.
        mask: True for the nodes that are observed, boolean ``[N]``; all of them when omitted.
        validate_args: Check values.

    Raises:
        TypeError: The mask is not boolean.
        ValueError: The distribution has another number of rows than a context of edges; in ``log_prob``: nothing sums
            over the edges, as under another objective.

    Example:
        >>> from pyro.distributions import Normal
        >>> output = AttentionOutput(context=torch.zeros(3, 1), weights=None)
        >>> likelihood = NodeLikelihood(Normal(output.context.squeeze(-1), 1.0), output)
        >>> likelihood.batch_shape, likelihood.event_shape
        (torch.Size([]), torch.Size([3]))
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}

    def __init__(
        self,
        distribution: TorchDistribution,
        attention: AttentionOutput,
        *,
        mask: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        check_boolean_mask(mask)
        rows = attention.rows
        self.distribution, self._observed = distribution, mask
        self.site = None if rows is None else rows[0]
        self.nodes = None if rows is None else rows[1]
        self._sum: EdgeSum | None = None
        shape, expected = distribution.batch_shape, None if self.nodes is None else len(self.nodes.index)
        if not shape or expected not in (None, shape[-1]):
            problem = f"NodeLikelihood: the distribution has batch shape {tuple(shape)}, the context {expected} rows"
            raise ValueError(
                f"{problem}, expected [..., {expected}]; bring what nodes have to them: attention.at_rows(x)"
            )
        count = shape[-1] if self.nodes is None else self.nodes.count
        super().__init__(shape[:-1], torch.Size((count, *distribution.event_shape)), validate_args=validate_args)

    @property
    def support(self) -> constraints.Constraint:
        """Support of the distribution, for every node."""
        return constraints.independent(self.distribution.support, 1)

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> Self:
        """Return a copy with a larger batch shape."""
        new = copy.copy(self)
        new.distribution = self.distribution.expand((*batch_shape, self.distribution.batch_shape[-1]))
        new._batch_shape = torch.Size(batch_shape)
        return new

    def below_alignments(self, alignments: AlignmentsAbove) -> Self:
        """Return a copy whose rows are summed over the edges of every node, together with what was observed before."""
        if self.site is None or self.site not in alignments.edges:
            return self
        new = copy.copy(self)
        new._sum = alignments.edges[self.site]
        if alignments.mask is not None:
            # what is masked says nothing of the edge, so that a later observation is not conditional on it
            mask = torch.as_tensor(alignments.mask, device=new._sum.log_weights.device).unsqueeze(-1)
            observed = mask if self._observed is None else mask & self._observed
            new._observed = observed.expand(*observed.shape[:-1], self.event_shape[0])
        return new

    def log_prob_per_query(self, value: Tensor) -> Tensor:
        """Return the log probability of the observation of each node, ``[..., N]``; 0 where masked."""
        mask, nodes = self._observed, self.nodes
        if nodes is None:
            log_prob: Tensor = self.distribution.log_prob(value)
            return log_prob if mask is None else log_prob.where(mask, 0)
        if self._sum is None:
            remedy = "use AlignmentELBO, and give pyro.sample this distribution itself, without to_event or mask"
            raise ValueError(f"NodeLikelihood: nothing sums over the edges of site '{self.site}'; {remedy}")
        log_prob = self.distribution.log_prob(value.index_select(-len(self.event_shape), nodes.index))
        # a node that is not observed says nothing of its edge
        return self._sum.add(log_prob if mask is None else log_prob.where(mask[..., nodes.index], 0))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log probability of what is observed of all nodes: the batch shape."""
        return self.log_prob_per_query(value).sum(-1)

    def sample(self, sample_shape: Sequence[int] = torch.Size()) -> Tensor:
        """Return values of all nodes, observed or not; raise ValueError where rows are edges."""
        if self.nodes is not None:
            raise ValueError(f"NodeLikelihood: the edges of site '{self.site}' are summed out, expected obs=")
        drawn: Tensor = self.distribution.sample(torch.Size(sample_shape))
        return drawn
