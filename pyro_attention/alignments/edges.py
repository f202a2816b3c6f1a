"""Alignments over the edges of a graph: which in-edge a node attends to, one categorical variable a node."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints, register_kl
from torch.nn.functional import pad

from pyro_attention._checks import as_float
from pyro_attention.alignments.categorical import AlignmentWeights, CategoricalAlignment, alignment_over
from pyro_attention.attention_call import enter
from pyro_attention.edge_list import EdgeList
from pyro_attention.families.distribution import AttentionDistribution, expand_shared
from pyro_attention.normalizers import Normalizer
from pyro_attention.ops.noise import log_exponential
from pyro_attention.ops.segment import Segments

__all__ = ["EdgeAlignment", "EdgeSum"]


class EdgeAlignment(AttentionDistribution, TorchDistribution):
    r"""The in-edge that every node attends to, :math:`z_i \sim \mathrm{Categorical}(\mathrm{softmax}_{e \to i}\Phi_e)`.

    The edges of all nodes are one value of event shape (nodes,): ids of edges, int64, in the order of the layout; -1
    where a node has none, whose context is zero. A floating point value stands for the weights ``[..., E, 1]``, such as
    those of soft attention; its log probability is the expectation under them. A boolean value ``[..., E, 1]`` is the
    set of edges that are summed over: the context has then a row an edge, its message (and a row of zeros for every
    node without edges), so that sums need no padding.

    Args:
        scores: Unnormalized log probabilities of the edges, ``[..., E, 1]``: one head.
        layout: The graph.
        validate_args: Check values.

    Raises:
        ValueError: More than one head.

    Example:
        >>> graph = EdgeList.from_edge_index(torch.tensor([[0, 1, 2], [2, 2, 0]]), num_nodes=3)
        >>> p = EdgeAlignment(torch.tensor([[0.0], [0.0], [5.0]]), layout=graph)
        >>> p.mean_value.flatten().tolist(), p.weights(torch.tensor([2, -1, 1])).flatten().tolist()
        ([0.5, 0.5, 1.0], [0.0, 1.0, 1.0])

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, section 2, for one query's keys.
    """

    kind: ClassVar[str] = CategoricalAlignment.kind
    parameter_names = ("log_weights",)
    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    layout: EdgeList

    def __init__(self, scores: Tensor, *, layout: EdgeList, validate_args: bool | None = None) -> None:
        if scores.dim() < 2 or scores.size(-1) != 1:
            problem = f"scores have shape {tuple(scores.shape)}"
            raise ValueError(f"{problem}, expected one head, [..., edges, 1]; an alignment is one edge: pass heads=1")
        scores = as_float(scores)
        self.layout = layout
        self._log_weights = layout.log_softmax(enter(scores, layout, None))
        self._posterior: EdgeAlignment | None = None
        super().__init__(scores.shape[:-2], torch.Size((layout.targets.count,)), validate_args=validate_args)

    @property
    def support(self) -> constraints.Constraint:
        """Ids of edges; of those that are no unmasked in-edge of the node the probability is zero."""
        return constraints.independent(constraints.integer_interval(-1, len(self.layout.targets.index) - 1), 1)

    def expand(self, batch_shape: Any, _instance: Any = None) -> EdgeAlignment:
        """Return a copy with a larger batch shape; parameters are shared, not expanded."""
        return expand_shared(self, batch_shape)

    @property
    def full_shape(self) -> torch.Size:
        return torch.Size((*self.batch_shape, len(self.layout.targets.index), 1))

    @property
    def log_weights(self) -> Tensor:
        """Log probability of every edge, ``[..., E, 1]``; 0 where masked."""
        return self._log_weights.expand(self.full_shape)

    @property
    def mean_value(self) -> Tensor:
        """Probabilities of the edges, ``[..., E, 1]``."""
        return self._clear(self.log_weights.exp())

    @property
    def over_weights(self) -> AlignmentWeights:
        return AlignmentWeights(self)

    @property
    def counts(self) -> Tensor:
        return torch.tensor(self.layout.targets.count)

    @property
    def possible_layout(self) -> EdgeList:
        """The layout."""
        return self.layout

    def at_scores(self, scores: Tensor) -> EdgeAlignment:
        """Return the distribution of other scores ``[..., E, 1]``."""
        return EdgeAlignment(scores, layout=self.layout)

    def tilted(self, tilt: Tensor) -> EdgeAlignment:
        """Return a copy whose log probabilities have something added, without normalization."""
        new = copy.copy(self)
        new._log_weights = self._log_weights + self._clear(tilt)
        return new

    def bounded_by(self, posterior: EdgeAlignment) -> EdgeAlignment:
        """Return a copy that gives a set of all edges, whose log probability is 0, its bound -KL(posterior || self)."""
        new = copy.copy(self)
        new._posterior = posterior
        return new

    def row_sums(self, weights: Tensor) -> Tensor:
        """Sum weights ``[..., E, 1]`` over the edges of each node, ``[..., N]``."""
        return self.layout.targets.sum(weights).squeeze(-1)

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:
        shape, targets = torch.Size(sample_shape) + self.full_shape, self.layout.targets
        log_weights = self._possible().detach()
        noisy = log_weights - log_exponential(shape, dtype=log_weights.dtype, device=log_weights.device)
        highest = (noisy == targets.gather(targets.max(noisy))) & noisy.isfinite()
        chosen = torch.arange(shape[-2], device=noisy.device).where(highest.squeeze(-1), -1)
        none = chosen.new_full((*shape[:-2], targets.count), -1)
        return none.scatter_reduce(-1, targets.index.expand(chosen.shape), chosen, "amax")

    def log_prob(self, value: Tensor) -> Tensor:
        if value.dtype == torch.bool:
            if self._posterior is None:
                return self.log_weights.new_zeros(self.batch_shape)
            return -torch.as_tensor(_kl_edges(self._posterior, self))
        if value.is_floating_point():
            return (value * self.log_weights).sum((-2, -1))
        return self.log_prob_nodes(value).sum(-1)

    def log_prob_nodes(self, value: Tensor) -> Tensor:
        """Return the log probability of the edge of each node, ``[..., N]``; -inf where the node has no such edge."""
        if self._validate_args:
            self._validate_sample(value)
        shape = torch.broadcast_shapes(value.shape[:-1], self.batch_shape)
        nodes = torch.arange(value.size(-1), device=value.device)
        # behind the edges stands -1, which is what nodes have that have a row behind them
        owner = pad(self.layout.targets.index, (0, 1), value=-1)
        nodes[self.layout.candidates.index[len(owner) - 1 :]] = -1
        log_weights = pad(self._possible().squeeze(-1), (0, 1)).expand(*shape, -1)
        value = (value % len(owner)).expand(*shape, -1)
        return log_weights.gather(-1, value).where(owner[value] == nodes, -torch.inf)

    def entropy(self) -> Tensor:
        return -(self.mean_value * self.log_weights).sum((-2, -1))

    def weights(self, value: Tensor, normalizer: Normalizer | None = None) -> Tensor:  # noqa: ARG002
        """Return the attention weights ``[..., E, 1]`` of a value; those of a set of edges are ones."""
        if value.is_floating_point():
            return value
        if value.dtype != torch.bool:
            targets = self.layout.targets.index
            value = (value[..., targets] == torch.arange(len(targets), device=value.device)).unsqueeze(-1)
        return value.to(self._log_weights.dtype)

    def context(self, value: Tensor, weights: Tensor, values: Tensor) -> Tensor:
        if value.dtype != torch.bool:
            return super().context(value, weights, values)
        messages = weights * self.layout.sources.spread(values.flatten(-2))
        nothing = self.layout.candidates.index.numel() - messages.size(-2)
        return torch.unflatten(pad(messages, (0, 0, 0, nothing)), -1, values.shape[-2:])

    def rows(self, value: Tensor, *, site: str) -> tuple[str, Segments | None]:
        return site, self.layout.candidates if value.dtype == torch.bool else None

    def _possible(self) -> Tensor:
        """Return the log probability of every edge, ``[..., E, 1]``; -inf where masked."""
        log_weights, mask = self.log_weights, self.layout.mask
        return log_weights if mask is None else log_weights.masked_fill(~mask, -torch.inf)

    def _clear(self, weights: Tensor) -> Tensor:
        return weights if self.layout.mask is None else weights.masked_fill(~self.layout.mask, 0)


@register_kl(EdgeAlignment, EdgeAlignment)
def _kl_edges(q: EdgeAlignment, p: EdgeAlignment) -> Tensor:
    return (q.mean_value * (q.log_weights - p.log_weights)).sum((-2, -1))


@alignment_over.register
def _(layout: EdgeList, scores: Tensor) -> EdgeAlignment:
    return EdgeAlignment(scores, layout=layout)


class EdgeSum:
    r"""The sum over the edges of every node, while a model runs: of what is observed below an alignment, site by site.

    .. math:: \log \sum_{e \to i} p(e)\, f(y_i \mid e) \quad\text{or}\quad \sum_{e \to i} q(e) \log f(y_i \mid e)

    Args:
        alignment: The distribution of the edges, p or q.
        evidence: The first of the sums, else the second.

    Attributes:
        is_used: Whether anything was observed.
    """

    def __init__(self, alignment: EdgeAlignment, *, evidence: bool) -> None:
        self.rows, self.evidence, self.is_used = alignment.layout.candidates, evidence, False
        log_weights = alignment._possible().squeeze(-1)
        # a node without edges has one row, which is certain
        self.log_weights = pad(log_weights, (0, self.rows.index.numel() - log_weights.size(-1)))

    def add(self, log_prob: Tensor) -> Tensor:
        """Sum log probabilities of an observation at the rows ``[..., R]``: ``[..., N]``.

        Of a second observation it is that given the first, so that all of them make up the evidence of all.
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
