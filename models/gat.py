"""Graph attention networks for node classification: as first published, and with skip connections."""

from __future__ import annotations

from collections.abc import Callable

import pyro
import torch
from pyro.distributions import Categorical
from pyro.nn import PyroModule
from torch import Tensor, nn

from pyro_attention import ContextualGammaPrior, EdgeList, GraphAttention
from pyro_attention.families.base import Prior
from pyro_attention.layers.graph import GraphScores
from pyro_attention.normalizers import Normalizer, Softmax
from pyro_attention.ops.layers import apply_linear
from pyro_attention.ops.noise import Dropout


class GAT(PyroModule):
    r"""Graph attention layers, two by default, and a categorical label on every labeled node.

    .. math:: S_1 \sim p(S_1 \mid \Theta_1 x), \quad h = \mathrm{ELU}(W_1 \Theta_1 x), \quad
              S_2 \sim p(S_2 \mid \Theta_2 h), \quad y \sim \mathrm{Categorical}(\mathrm{softmax}(W_2 \Theta_2 h))

    All labels together are one event of site ``labels``; the attention sites are ``layers.0``, ``layers.1`` and so on.

    Args:
        in_features: Number of node features.
        num_classes: Number of classes.
        hidden: Width of a hidden head; heads are concatenated.
        heads: Number of hidden heads.
        output_heads: Number of output heads, averaged (1 for Cora and Citeseer, 8 for PubMed).
        layers: Number of layers.
        scores: "gat" or "gatv2"; see :class:`GraphAttention`.
        dropout: Dropout of the input of all layers, of the projected features that are aggregated, and of the
            attention weights.
        value_dropout: Whether the projected features are dropped too, as in the original code; PyG's layer does not.
        prior: Makes a prior network from (key width, heads).
        normalizer: Makes a normalizer from the number of heads, such as ``Hybrid``.

    Example:
        >>> from pyro_attention import AttentionELBO, AttentionGuide, Weibull
        >>> model = GAT(5, 3)
        >>> graph = EdgeList.from_edge_index(torch.tensor([[0, 1], [1, 0]]), num_nodes=2, add_self_loops=True)
        >>> loss = AttentionELBO()(model, AttentionGuide(model, Weibull()))
        >>> loss(torch.rand(2, 5), graph, torch.tensor([0, 2])).dim()
        0

    Source: Velickovic et al. (2018), section 3.3; Fan et al. (2020), Bayesian Attention Modules, section 4.1.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        hidden: int = 8,
        heads: int = 8,
        output_heads: int = 1,
        layers: int = 2,
        scores: GraphScores = "gat",
        dropout: float = 0.6,
        value_dropout: bool = True,
        prior: Callable[[int, int], Prior] = ContextualGammaPrior,
        normalizer: Callable[[int], Normalizer] = lambda heads: Softmax(),
    ) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.layers = nn.ModuleList()
        for index in range(layers):
            last = index == layers - 1
            width, count = (num_classes, output_heads) if last else (hidden, heads)
            layer = GraphAttention(
                in_features if index == 0 else hidden * heads, width, count, concat=not last, scores=scores,
                dropout=dropout, value_dropout=dropout if value_dropout else 0.0, name=f"layers.{index}",
                prior=prior(width, count), normalizer=normalizer(count),
            )  # fmt: skip
            self.layers.append(layer)

    def forward(
        self, features: Tensor, graph: EdgeList, labels: Tensor | None = None, labeled: Tensor | None = None
    ) -> Tensor:
        """Logits of every node.

        Args:
            features: ``[N, in_features]``, dense or sparse CSR.
            graph: Edges with self loops.
            labels: Class of every node, int64 ``[N]``; drawn when omitted.
            labeled: True where the label is observed, ``[N]``; every node when omitted.

        Returns:
            Logits ``[..., N, num_classes]``.
        """
        *inner, output = self.layers  # once: Pyro registers the parameters at every access
        x = features
        for layer in inner:
            x = nn.functional.elu(layer(self._drop(x), graph))
        logits: Tensor = output(self._drop(x), graph)
        _observe_labels(logits, labels, labeled)
        return logits

    def _drop(self, x: Tensor) -> Tensor:
        """Dropout; on sparse features of the stored values only, which has the same distribution."""
        if x.layout == torch.strided:
            return self.dropout(x)
        values = self.dropout(x.values())
        return torch.sparse_csr_tensor(x.crow_indices(), x.col_indices(), values, x.shape, check_invariants=False)


class ResidualGAT(PyroModule):
    r"""Residual blocks of layer norm, graph attention and a network of two layers, and a label on every labeled node.

    .. math:: h_0 = \mathrm{GELU}(W x), \quad n_l = \mathrm{LayerNorm}(h_{l-1}), \quad
              h_l = h_{l-1} + \mathrm{MLP}(\mathrm{attention}_l(n_l)), \quad
              y \sim \mathrm{Categorical}(\mathrm{softmax}(W' \mathrm{LayerNorm}(h_L)))

    With ``separate``, the MLP reads :math:`n_l` beside the attention's output ("GAT-sep"), and the graph has no self
    loops: on a graph whose neighbors are of other classes, a node should not be averaged with them. Dropout is that of
    the input layer and the MLPs; attention has none. Sites are ``labels`` and ``layers.0``, ``layers.1`` and so on.

    It differs from the authors' code in two points: the scores are those of :class:`GraphAttention`, which read a
    head's own features where theirs read all heads', and the MLP of ``separate`` reads a node's features before their
    projection, which its first layer makes up for.

    Args:
        hidden: Width of a head; a node has heads times as many.
        layers: Number of blocks, 1 at least.
        dropout: Dropout after the input layer and inside the MLPs.
        separate: Whether own features are kept apart from aggregated ones; the others are as of :class:`GAT`.

    Example:
        >>> from pyro_attention import AttentionELBO, AttentionGuide, Weibull
        >>> model = ResidualGAT(5, 3, separate=True)
        >>> graph = EdgeList.from_edge_index(torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
        >>> loss = AttentionELBO()(model, AttentionGuide(model, Weibull()))
        >>> loss(torch.rand(2, 5), graph, torch.tensor([0, 2])).dim()
        0

    Source: Platonov et al. (2023), A Critical Look at the Evaluation of GNNs under Heterophily, section 4 and appendix.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        hidden: int = 64,
        heads: int = 8,
        layers: int = 2,
        scores: GraphScores = "gat",
        dropout: float = 0.2,
        separate: bool = False,
        prior: Callable[[int, int], Prior] = ContextualGammaPrior,
        normalizer: Callable[[int], Normalizer] = lambda heads: Softmax(),
    ) -> None:
        super().__init__()
        width = hidden * heads
        self.input = nn.Linear(in_features, width)
        self.activation = nn.Sequential(Dropout(dropout), nn.GELU())
        self.blocks = nn.ModuleList()
        for index in range(layers):
            attention = GraphAttention(
                width, hidden, heads, add_self_loops=not separate, scores=scores, name=f"layers.{index}",
                prior=prior(hidden, heads), normalizer=normalizer(heads),
            )  # fmt: skip
            self.blocks.append(_Block(attention, width, dropout=dropout, separate=separate))
        self.output = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, num_classes))

    def forward(
        self, features: Tensor, graph: EdgeList, labels: Tensor | None = None, labeled: Tensor | None = None
    ) -> Tensor:
        """Logits of every node; arguments and shapes are those of :meth:`GAT.forward`.

        With ``separate`` the graph must have no self loops, else they must be there.
        """
        x: Tensor = self.activation(apply_linear(self.input, features))
        for block in self.blocks:
            x = block(x, graph)
        logits: Tensor = self.output(x)
        _observe_labels(logits, labels, labeled)
        return logits


class _Block(nn.Module):
    """What is added to the features of a node ``[..., N, width]``."""

    def __init__(self, attention: GraphAttention, width: int, *, dropout: float, separate: bool) -> None:
        super().__init__()
        self.separate = separate
        self.norm = nn.LayerNorm(width)
        self.attention = attention
        self.feed_forward = nn.Sequential(
            nn.Linear(2 * width if separate else width, width), Dropout(dropout), nn.GELU(),
            nn.Linear(width, width), Dropout(dropout),
        )  # fmt: skip

    def forward(self, x: Tensor, graph: EdgeList) -> Tensor:
        own: Tensor = self.norm(x)
        read: Tensor = self.attention(own, graph)
        if self.separate:  # samples of the attention may have dimensions at the left that the features have not
            read = torch.cat([own.expand(read.shape), read], -1)
        added: Tensor = self.feed_forward(read)
        return x + added


def _observe_labels(logits: Tensor, labels: Tensor | None, labeled: Tensor | None) -> None:
    """Sample site ``labels``: the classes of all nodes as one event, of which the ``labeled`` ones count."""
    observed = Categorical(logits=logits)
    if labeled is not None:
        observed = observed.mask(labeled)
    pyro.sample("labels", observed.to_event(1), obs=labels)
