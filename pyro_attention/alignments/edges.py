"""Alignments over the edges of a graph: which in-edge a node attends to, one categorical variable a node."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.nn.functional import pad

from pyro_attention._checks import as_float
from pyro_attention.alignments.base import AlignmentDistribution, SummedEvent, kl_alignments
from pyro_attention.alignments.summed import EdgeSum
from pyro_attention.attention_call import enter
from pyro_attention.edge_list import EdgeList
from pyro_attention.families.distribution import expand_shared
from pyro_attention.normalizers import Normalizer
from pyro_attention.ops.noise import log_exponential
from pyro_attention.ops.segment import Segments

__all__ = ["EdgeAlignment"]


class EdgeAlignment(AlignmentDistribution):
    r"""Categorical distributions of the in-edges that nodes attend to.

    .. math:: z_i \sim \mathrm{Categorical}(\mathrm{softmax}_{e \to i}\Phi_e)

    The edges of all nodes are one value of event shape (nodes,): ids of edges, int64, in the order of the layout; -1
    where a node has none, whose context is zero. A floating point value stands for the weights ``[..., E, 1]``. A
    boolean value ``[..., E, 1]`` is the set of edges that are summed over: the context has then a row an edge, its
    message (and a row of zeros for every node without edges), so that sums need no padding.

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

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> Self:
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
        """Probability of every edge, ``[..., E, 1]``."""
        return self._clear(self.log_weights.exp())

    def at_scores(self, scores: Tensor) -> EdgeAlignment:
        return EdgeAlignment(scores, layout=self.layout)

    def tilted(self, tilt: Tensor) -> Self:
        """Return a copy with a tilt ``[..., E, 1]`` added to the log probabilities, without normalization."""
        new = copy.copy(self)
        new._log_weights = self._log_weights + self._clear(tilt)
        return new

    def bounded_by(self, posterior: EdgeAlignment) -> Self:
        """Return a copy that gives a set of all edges, whose log probability is 0, its bound -KL(posterior || self)."""
        new = copy.copy(self)
        new._posterior = posterior
        return new

    def sum_over_keys(self, weights: Tensor) -> Tensor:
        """Sum weights ``[..., E, 1]`` over the edges of each node, ``[..., N]``."""
        return self.layout.targets.sum(weights).squeeze(-1)

    def normalize(self, weights: Tensor) -> Tensor:
        total = self.layout.targets.gather(self.layout.targets.sum(weights))
        return weights / total.clamp_min(torch.finfo(weights.dtype).tiny)

    def sample(self, sample_shape: Sequence[int] = torch.Size()) -> Tensor:
        """Return ids of edges ``[..., N]``, -1 for nodes without any."""
        shape, targets = torch.Size(sample_shape) + self.full_shape, self.layout.targets
        log_weights = self._possible().detach()
        noisy = log_weights - log_exponential(shape, dtype=log_weights.dtype, device=log_weights.device)
        highest = (noisy == targets.gather(targets.max(noisy))) & noisy.isfinite()
        chosen = torch.arange(shape[-2], device=noisy.device).where(highest.squeeze(-1), -1)
        none = chosen.new_full((*shape[:-2], targets.count), -1)
        return none.scatter_reduce(-1, targets.index.expand(chosen.shape), chosen, "amax")

    def log_prob(self, value: Tensor) -> Tensor:
        if value.dtype != torch.bool:
            return super().log_prob(value)
        if self._posterior is None:
            return self.log_weights.new_zeros(self.batch_shape)
        return -kl_alignments(self._posterior, self)

    def log_prob_per_query(self, value: Tensor) -> Tensor:
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

    def is_possible(self, value: Tensor) -> Tensor:
        """Return True where an id ``[..., N]`` is an unmasked in-edge of the node; without any, where it is -1."""
        return self.log_prob_per_query(value) > -torch.inf

    def weights(self, value: Tensor, normalizer: Normalizer | None = None) -> Tensor:  # noqa: ARG002
        """Return the attention weights ``[..., E, 1]`` of a value: ones at a set of edges, zeros where masked."""
        if value.is_floating_point():
            return value
        if value.dtype == torch.bool:
            return value.to(self._log_weights.dtype)
        targets = self.layout.targets.index
        chosen = (value[..., targets] == torch.arange(len(targets), device=value.device)).unsqueeze(-1)
        return self._clear(chosen.to(self._log_weights.dtype))

    def context(self, value: Tensor, weights: Tensor, values: Tensor) -> Tensor:
        if value.dtype != torch.bool:
            return super().context(value, weights, values)
        messages = weights * self.layout.sources.spread(values.flatten(-2))
        nothing = self.layout.candidates.index.numel() - messages.size(-2)
        return torch.unflatten(pad(messages, (0, 0, 0, nothing)), -1, values.shape[-2:])

    def rows(self, value: Tensor, *, site: str) -> tuple[str, Segments | None]:
        return site, self.layout.candidates if value.dtype == torch.bool else None

    def sum_in_event(self, prior: AlignmentDistribution, *, evidence: bool) -> SummedEvent:
        """Return the set of all edges, the prior that scores it, and the sum over the edges of every node."""
        assert isinstance(prior, EdgeAlignment)  # a posterior lives on the graph of its prior
        value = torch.ones(prior.full_shape, dtype=torch.bool, device=prior.log_weights.device)
        if prior.layout.mask is not None:
            value = value & prior.layout.mask
        summed = prior if evidence else self
        edges = EdgeSum(summed.layout.candidates, summed._possible().squeeze(-1), evidence=evidence)
        return SummedEvent(value, prior if evidence else prior.bounded_by(self), edges)

    def _possible(self) -> Tensor:
        """Return the log probability of every edge, ``[..., E, 1]``; -inf where masked."""
        log_weights, mask = self.log_weights, self.layout.mask
        return log_weights if mask is None else log_weights.masked_fill(~mask, -torch.inf)

    def _clear(self, weights: Tensor) -> Tensor:
        return weights if self.layout.mask is None else weights.masked_fill(~self.layout.mask, 0)
