"""Graph attention networks for node classification, as first published and with skip connections."""

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
    r"""Graph attention network, with two layers by default, and a categorical label of every labeled node.

    .. math:: p(y, S \mid x) = p(S_1 \mid \Theta_1 x)\, p(S_2 \mid \Theta_2 h) \prod_{n \in \mathrm{labeled}}
              \mathrm{softmax}(W_2 \Theta_2 h)_{n, y_n}, \qquad h = \mathrm{ELU}(W_1 \Theta_1 x)

    W are the normalized weights S of the edges. The labels of all N nodes are one event of the site ``labels``. The
    attention sites are ``layers.0``, ``layers.1``, and so on.

    Args:
        in_features: Number of node features.
        num_classes: Number of classes.
        hidden: Width of a hidden head; heads are concatenated.
        heads: Number of hidden heads.
        output_heads: Number of output heads, averaged (1 for Cora and Citeseer, 8 for PubMed).
        layers: Number of layers.
        scores: "gat" or "gatv2"; see :class:`GraphAttention`.
        dropout: Dropout of the inputs of all layers, of the aggregated projected features, and of the attention
            weights.
        value_dropout: Whether projected features have dropout, as in the original code but not in PyG's layer.
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
        """Sample or observe the labels, and return the logits of every node.

        Args:
            features: Node features ``[N, in_features]``, dense or sparse CSR.
            graph: The E edges, with self loops.
            labels: Class of every node, int64 ``[N]``; drawn when omitted.
            labeled: True at nodes whose label is observed, ``[N]``; all nodes when omitted.

        Returns:
            Logits ``[..., N, num_classes]``.
        """
        *inner, output = self.layers  # a single access, since Pyro registers the parameters at each
        x = features
        for layer in inner:
            x = nn.functional.elu(layer(self._drop(x), graph))
        logits: Tensor = output(self._drop(x), graph)
        _observe_labels(logits, labels, labeled)
        return logits

    def _drop(self, x: Tensor) -> Tensor:
        """Apply dropout; for sparse features only to the stored values, which has the same distribution."""
        if x.layout == torch.strided:
            return self.dropout(x)
        values = self.dropout(x.values())
        return torch.sparse_csr_tensor(x.crow_indices(), x.col_indices(), values, x.shape, check_invariants=False)


class ResidualGAT(PyroModule):
    r"""Graph attention network of residual blocks, with a categorical label of every labeled node.

    .. math:: p(y, S \mid x) = \prod_l p(S_l \mid n_l) \prod_{n \in \mathrm{labeled}}
              \mathrm{softmax}(W' \mathrm{LayerNorm}(h_L))_{n, y_n}, \\
              h_0 = \mathrm{GELU}(W x), \quad n_l = \mathrm{LayerNorm}(h_{l-1}), \quad
              h_l = h_{l-1} + \mathrm{MLP}(\mathrm{attention}_l(n_l))

    With ``separate``, the MLP also reads :math:`n_l` ("GAT-sep"), and the graph has no self loops: a node should not be
    averaged with its neighbors if these are of other classes. The input layer and the MLPs have dropout, attention has
    none. The sites are ``labels`` and ``layers.0``, ``layers.1``, and so on.

    The network differs from the authors' code in two points. The scores of :class:`GraphAttention` read the features
    of one head, theirs those of all heads. The MLP of ``separate`` reads the features of a node before their
    projection, which its first layer can learn.

    Args:
        in_features: Number of node features.
        num_classes: Number of classes.
        hidden: Width of a head; the width of a node is this times the heads.
        heads: Number of heads.
        layers: Number of blocks, at least 1.
        scores: "gat" or "gatv2"; see :class:`GraphAttention`.
        dropout: Dropout after the input layer and inside the MLPs.
        separate: Whether the MLP reads the features of the node beside the aggregated ones.
        prior: Makes a prior network from (key width, heads).
        normalizer: Makes a normalizer from the number of heads.

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
        """Sample or observe the labels, and return the logits of every node, as :meth:`GAT.forward`.

        With ``separate`` the graph must have no self loops; otherwise it must have them.
        """
        x: Tensor = self.activation(apply_linear(self.input, features))
        for block in self.blocks:
            x = block(x, graph)
        logits: Tensor = self.output(x)
        _observe_labels(logits, labels, labeled)
        return logits


class _Block(nn.Module):
    """Residual block of layer norm, graph attention and a network of two layers, on features ``[..., N, width]``."""

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
        normed: Tensor = self.norm(x)
        aggregated: Tensor = self.attention(normed, graph)
        if self.separate:  # samples of the attention may have further dimensions at the left
            aggregated = torch.cat([normed.expand(aggregated.shape), aggregated], -1)
        added: Tensor = self.feed_forward(aggregated)
        return x + added


def _observe_labels(logits: Tensor, labels: Tensor | None, labeled: Tensor | None) -> None:
    """Sample the site ``labels``, the classes of all nodes as one event; only ``labeled`` nodes have a likelihood."""
    observed = Categorical(logits=logits)
    if labeled is not None:
        observed = observed.mask(labeled)
    pyro.sample("labels", observed.to_event(1), obs=labels)
