"""Attention scores: how well a query fits a key."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from pyro_attention.edge_list import EdgeList

__all__ = ["Additive", "Bilinear", "GraphAdditive", "GraphAdditiveV2", "ScaledDotProduct"]


class ScaledDotProduct(nn.Module):
    r""":math:`\Phi_{ij} = q_i \cdot k_j / \sqrt{D}`.

    Called with queries ``[..., M, D]`` and keys ``[..., N, D]``; returns ``[..., M, N]``.

    Example:
        >>> ScaledDotProduct()(torch.ones(2, 4), torch.ones(3, 4)).shape
        torch.Size([2, 3])

    Source: Vaswani et al. (2017), equation (1).
    """

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return scores ``[..., M, N]``."""
        return (queries / math.sqrt(queries.size(-1))) @ keys.transpose(-1, -2)


class Bilinear(nn.Module):
    r""":math:`\Phi_{ij} = q_i^\top W k_j` ("general" attention).

    Args:
        query_dim: Width of a query.
        key_dim: Width of a key.

    Example:
        >>> Bilinear(4, 6)(torch.ones(2, 4), torch.ones(3, 6)).shape
        torch.Size([2, 3])

    Source: Luong et al. (2015), section 3.1.
    """

    def __init__(self, query_dim: int, key_dim: int) -> None:
        super().__init__()
        self.projection = nn.Linear(query_dim, key_dim, bias=False)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return scores ``[..., M, N]`` of queries ``[..., M, query_dim]`` and keys ``[..., N, key_dim]``."""
        return torch.as_tensor(self.projection(queries) @ keys.transpose(-1, -2))


class Additive(nn.Module):
    r""":math:`\Phi_{ij} = v^\top \tanh(W_q q_i + W_k k_j)` (MLP attention).

    Args:
        query_dim: Width of a query.
        key_dim: Width of a key.
        hidden_dim: Width of the hidden layer.

    Example:
        >>> Additive(4, 6, 8)(torch.ones(2, 4), torch.ones(3, 6)).shape
        torch.Size([2, 3])

    Source: Bahdanau et al. (2015), appendix A.1.2; without biases, as Deng et al. (2018).
    """

    def __init__(self, query_dim: int, key_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.query = nn.Linear(query_dim, hidden_dim, bias=False)
        self.key = nn.Linear(key_dim, hidden_dim, bias=False)
        self.out = nn.Linear(hidden_dim, 1, bias=False)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return scores ``[..., M, N]`` of queries ``[..., M, query_dim]`` and keys ``[..., N, key_dim]``."""
        hidden = self.query(queries).unsqueeze(-2) + self.key(keys).unsqueeze(-3)
        return torch.as_tensor(self.out(hidden.tanh()).squeeze(-1))


class GraphAdditive(nn.Module):
    r"""On an edge j -> i, :math:`\Phi_{ij} = \mathrm{LeakyReLU}(a_\mathrm{src} \cdot z_j + a_\mathrm{dst} \cdot z_i)`.

    Args:
        heads: Number of heads.
        dim: Width of a projected node per head.
        negative_slope: Slope of the LeakyReLU below zero.
        edge_features: Whether a third term :math:`a_\mathrm{edge} \cdot e_{ij}` is added inside.

    Example:
        >>> graph = EdgeList.from_edge_index(torch.tensor([[0], [1]]), num_nodes=2)
        >>> GraphAdditive(heads=3, dim=4)(torch.ones(2, 3, 4), torch.ones(2, 3, 4), graph).shape
        torch.Size([1, 3])

    Source: Velickovic et al. (2018), equation (3).
    """

    def __init__(self, heads: int, dim: int, negative_slope: float = 0.2, *, edge_features: bool = False) -> None:
        super().__init__()
        self.att_src = nn.Parameter(torch.empty(1, heads, dim))
        self.att_dst = nn.Parameter(torch.empty(1, heads, dim))
        self.att_edge = nn.Parameter(torch.empty(1, heads, dim)) if edge_features else None
        self.negative_slope = negative_slope
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw Xavier-uniform parameters, as the original."""
        for parameter in self.parameters():
            _xavier(parameter)

    def forward(self, sources: Tensor, targets: Tensor, graph: EdgeList, edges: Tensor | None = None) -> Tensor:
        """Score edges ``[..., E, H]`` by source and target nodes ``[..., N, H, D]`` and edge features ``[E, H, D]``."""
        if sources is targets:
            source_term, target_term = _head_products(sources, self.att_src, self.att_dst).chunk(2, -1)
        else:
            source_term, target_term = _head_products(sources, self.att_src), _head_products(targets, self.att_dst)
        scores = graph.sources.spread(source_term) + graph.targets.spread(target_term)
        if edges is not None and self.att_edge is not None:
            scores = scores + _head_products(edges, self.att_edge)
        return nn.functional.leaky_relu(scores, self.negative_slope, inplace=self.negative_slope >= 0)


class GraphAdditiveV2(nn.Module):
    r"""On an edge j -> i, :math:`\Phi_{ij} = a \cdot \mathrm{LeakyReLU}(z_j + z_i)` (GATv2).

    The order of the keys may differ between queries, which it cannot in :class:`GraphAdditive`, where the query only
    adds a number inside the LeakyReLU. It costs a vector per edge and head instead of a number.

    Args:
        heads: Number of heads.
        dim: Width of a projected node per head.
        negative_slope: Slope of the LeakyReLU below zero.

    Example:
        >>> graph = EdgeList.from_edge_index(torch.tensor([[0], [1]]), num_nodes=2)
        >>> GraphAdditiveV2(heads=3, dim=4)(torch.ones(2, 3, 4), torch.ones(2, 3, 4), graph).shape
        torch.Size([1, 3])

    Source: Brody et al. (2022), How Attentive are Graph Attention Networks?, equation (7).
    """

    def __init__(self, heads: int, dim: int, negative_slope: float = 0.2) -> None:
        super().__init__()
        self.att = nn.Parameter(torch.empty(1, heads, dim))
        self.negative_slope = negative_slope
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw Xavier-uniform parameters, as the original."""
        _xavier(self.att)

    def forward(self, sources: Tensor, targets: Tensor, graph: EdgeList, edges: Tensor | None = None) -> Tensor:
        """Score edges ``[..., E, H]`` by source and target nodes ``[..., N, H, D]`` and edge features ``[E, H, D]``."""
        hidden = graph.sources.spread(sources.flatten(-2)) + graph.targets.spread(targets.flatten(-2))
        if edges is not None:
            hidden = hidden + edges.flatten(-2)
        hidden = nn.functional.leaky_relu(hidden, self.negative_slope, inplace=self.negative_slope >= 0)
        return _head_products(torch.unflatten(hidden, -1, self.att.shape[1:]), self.att)


def _xavier(parameter: Tensor) -> None:
    bound = math.sqrt(6 / (parameter.size(-2) + parameter.size(-1)))
    nn.init.uniform_(parameter, -bound, bound)


def _head_products(vectors: Tensor, *atts: Tensor) -> Tensor:
    """Return the dot products per head of ``[..., N, H, D]`` with vectors ``[1, H, D]``, side by side: ``[..., N, H]``.

    One product with a block-diagonal matrix; sums over a short last dimension are slow.
    """
    blocks = torch.diag_embed(torch.cat(atts).movedim(-1, 0), dim1=0, dim2=-1)  # [H, D, products, H]
    return vectors.flatten(-2) @ blocks.flatten(-2).flatten(0, 1)
