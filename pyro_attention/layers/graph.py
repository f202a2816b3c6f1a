"""Graph attention with the arguments of PyG's GATConv and GATv2Conv and latent weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, Protocol, TypedDict, get_args

import torch
from torch import Tensor, nn

from pyro_attention.attention import AttentionOutput, LatentAttention
from pyro_attention.edge_list import EdgeList
from pyro_attention.families.base import Prior
from pyro_attention.families.gamma import ContextualGammaPrior
from pyro_attention.layers.scores import GraphAdditive, GraphAdditiveV2
from pyro_attention.normalizers import Normalizer
from pyro_attention.ops.layers import apply_linear
from pyro_attention.ops.noise import Dropout

__all__ = ["GraphAttention", "GraphScores"]

GraphScores = Literal["gat", "gatv2"]

# beginnings of the names of parameters that have another name in PyG
_NAMES = {
    "GATConv": {"att_": "score.att_", "lin.": "lin_src."},
    "GATv2Conv": {"att": "score.att", "lin_l.": "lin_src.", "lin_r.": "lin_dst."},
}
_REDUCTIONS = {"mean": "mean", "add": "sum", "sum": "sum", "max": "amax", "min": "amin", "mul": "prod"}


class _PyGConv(Protocol):
    """Attributes of ``GATConv`` and ``GATv2Conv`` of torch_geometric that :meth:`GraphAttention.from_pyg` reads."""

    in_channels: int | tuple[int, int]
    out_channels: int
    heads: int
    concat: bool
    negative_slope: float
    dropout: float
    add_self_loops: bool
    lin_edge: nn.Linear | None
    fill_value: float | Tensor | str
    bias: Tensor | None
    residual: bool
    share_weights: bool  # of a GATv2Conv
    flow: str
    training: bool

    def state_dict(self) -> dict[str, Tensor]: ...


class _ScoreOptions(TypedDict, total=False):
    scores: GraphScores
    share_weights: bool


class GraphAttention(nn.Module):
    r"""Graph attention layer (GAT, GATv2) whose weights are one sample site with event (edges, heads).

    .. math:: o_i = \sum_{j \in N(i)} W_{ij}\, \Theta x_j, \qquad
              \Phi_{ij} = \mathrm{LeakyReLU}(a_\mathrm{dst}\cdot\Theta x_i + a_\mathrm{src}\cdot\Theta x_j)

    These are the scores "gat", which rank the neighbors of all nodes alike. The scores "gatv2" need not:

    .. math:: \Phi_{ij} = a \cdot \mathrm{LeakyReLU}(\Theta_\mathrm{dst} x_i + \Theta x_j)

    It replaces PyG's ``GATConv`` or ``GATv2Conv``, such as in a ``Sequential`` or a ``HeteroConv``: arguments and
    results of a call are equal; :meth:`attend` returns an :class:`AttentionOutput`. Under the guide ``Soft()``, and
    where Pyro does not run the model (see :class:`LatentAttention`), the numbers are the same, too; :meth:`from_pyg`
    copies a layer.

    ============================================  ==================================================================
    PyG                                           here
    ============================================  ==================================================================
    ``in_channels`` ... ``residual``              the same, but for sizes of -1
    ``share_weights`` of ``GATv2Conv``            the same
    ``aggr, flow, node_dim``                      sums along edges from source to target
    ``x``                                         the same, also a batch or a sparse matrix; zeros for None
    ``edge_index``                                the same, or an :class:`EdgeList`; no ``SparseTensor``
    ``edge_attr``                                 the same
    ``size``                                      checked
    ``return_attention_weights``                  the same, edges in PyG's order
    ``add_self_loops`` on a bipartite graph       only with as many sources as targets
    ``to_hetero``                                 of a ``MessagePassing`` that calls the layer; or a ``HeteroConv``
    ``torch_geometric.explain``                   :func:`exact_alignments` as edge mask; no masks of messages
    ============================================  ==================================================================

    Args:
        in_channels: Width of a node, or (source width, target width) of a bipartite graph.
        out_channels: Width of the output per head.
        heads: Number of heads.
        concat: Concatenate the heads, else average them.
        negative_slope: Slope of the LeakyReLU.
        dropout: Dropout probability of the weights, in training mode.
        add_self_loops: Give every node one self loop; see :meth:`EdgeList.from_edge_index`.
        edge_dim: Width of edge features, if there are any.
        fill_value: Edge feature of an added self loop: a number, a tensor ``[edge_dim]``, or how the features of a
            node's in-edges are reduced ("mean", "add", "max", "min", "mul").
        bias: Whether to add a bias; with "gatv2" the projections have biases, too.
        residual: Whether to add a linear map of the target's features.
        scores: "gat" or "gatv2".
        share_weights: Whether "gatv2" projects sources and targets by the same matrix; "gat" always does, but on
            bipartite graphs.
        name: Name of the sample site; by default the path of the layer in the model, see :func:`name_sites`.
        prior: Prior network; a contextual Gamma prior with one network a head by default.
        normalizer: From log weights to weights; softmax by default.
        normalize_scores: See :class:`LatentAttention`.
        value_dropout: Dropout probability of the projected features where they are aggregated (not in the scores), in
            training mode; the original code has it, PyG's layer has not.

    Raises:
        ValueError: An unknown ``fill_value`` or ``scores``, or weights shared by nodes of two widths.

    Example:
        >>> from pyro_attention import AttentionGuide, Weibull
        >>> layer = GraphAttention(5, 8, heads=2)
        >>> x, edge_index = torch.randn(3, 5), torch.tensor([[0, 1], [1, 2]])
        >>> guide = AttentionGuide(lambda x: layer(x, edge_index), Weibull())
        >>> guide(x)["graph_attention"].shape  # two edges and three self loops
        torch.Size([5, 2])

    Source: Velickovic et al. (2018); "gatv2": Brody et al. (2022), equation (7); latent weights from Fan et al. (2020),
    Bayesian Attention Modules.
    """

    default_name = "graph_attention"

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        edge_dim: int | None = None,
        fill_value: float | Tensor | str = "mean",
        bias: bool = True,
        residual: bool = False,
        *,
        scores: GraphScores = "gat",
        share_weights: bool = False,
        name: str | None = None,
        prior: Prior | None = None,
        normalizer: Normalizer | None = None,
        normalize_scores: bool = True,
        value_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        widths = (in_channels, in_channels) if isinstance(in_channels, int) else in_channels
        _check_options(scores, fill_value, share_weights, widths)
        self.in_channels, self.out_channels, self.heads, self.concat = in_channels, out_channels, heads, concat
        self.add_self_loops, self.edge_dim, self.fill_value = add_self_loops, edge_dim, fill_value
        source_width, target_width = widths
        width = heads * out_channels
        is_gatv2 = scores == "gatv2"
        is_one_matrix = share_weights if is_gatv2 else isinstance(in_channels, int)
        self.lin_src = nn.Linear(source_width, width, bias=bias and is_gatv2)
        self.lin_dst = None if is_one_matrix else nn.Linear(target_width, width, bias=bias and is_gatv2)
        self.lin_edge = None if edge_dim is None else nn.Linear(edge_dim, width, bias=False)
        self.score: GraphAdditive | GraphAdditiveV2
        if is_gatv2:
            self.score = GraphAdditiveV2(heads, out_channels, negative_slope)
        else:
            self.score = GraphAdditive(heads, out_channels, negative_slope, edge_features=edge_dim is not None)
        out_width = width if concat else out_channels
        self.res = nn.Linear(target_width, out_width, bias=False) if residual else None
        self.bias = nn.Parameter(torch.zeros(out_width)) if bias else None
        prior = ContextualGammaPrior(out_channels, heads) if prior is None else prior
        self.attention = LatentAttention(
            name or self.default_name, prior, normalizer=normalizer, dropout=dropout, normalize_scores=normalize_scores
        )
        self.attention.default_name = self.default_name if name is None else None
        self.value_dropout = Dropout(value_dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw Xavier-uniform weights and set a zero bias, as the original; uniform biases of projections, as PyG."""
        for linear in (self.lin_src, self.lin_dst, self.lin_edge, self.res):
            if linear is not None:
                nn.init.xavier_uniform_(linear.weight)
                if linear.bias is not None:
                    bound = linear.in_features**-0.5
                    nn.init.uniform_(linear.bias, -bound, bound)
        self.score.reset_parameters()
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @classmethod
    @torch.no_grad()
    def from_pyg(cls, conv: _PyGConv, *, name: str | None = None, prior: Prior | None = None) -> GraphAttention:
        """Copy a trained ``GATConv`` or ``GATv2Conv`` of torch_geometric, on its device, in its dtype and mode.

        Args:
            conv: The layer.
            name: Name of the sample site; the path of the layer by default.
            prior: Prior of the weights.

        Raises:
            TypeError: The layer is neither of them.
            ValueError: It lets messages flow from target to source, or does not add them up.
        """
        _check_conv(conv)
        state, score_options = _parameters(conv)
        # of the matrices, as a layer of PyG may have been made with widths of -1
        source = state["lin_src.weight"]
        target = state.get("lin_dst.weight", source)
        is_bipartite = not isinstance(conv.in_channels, int)
        new = cls(
            in_channels=(source.size(1), target.size(1)) if is_bipartite else source.size(1),
            out_channels=conv.out_channels,
            heads=conv.heads,
            concat=conv.concat,
            negative_slope=conv.negative_slope,
            dropout=conv.dropout,
            add_self_loops=conv.add_self_loops,
            edge_dim=None if conv.lin_edge is None else conv.lin_edge.weight.size(1),
            fill_value=conv.fill_value,
            bias=conv.bias is not None,
            residual=conv.residual,
            name=name,
            prior=prior,
            **score_options,
        )
        new.to(source)
        new.load_state_dict(new.state_dict() | state)
        return new.train(conv.training)

    def forward(
        self,
        x: Tensor | tuple[Tensor, Tensor],
        edge_index: Tensor | EdgeList,
        edge_attr: Tensor | None = None,
        size: tuple[int | None, int | None] | None = None,
        return_attention_weights: bool | None = None,
    ) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor]]:
        """Attend along the edges.

        Args:
            x: Nodes ``[..., N, in_channels]`` (dense or a sparse matrix), or (sources, targets) of a bipartite graph.
            edge_index: int64 or int32 ``[2, E]``, a sparse matrix as PyG's ``adj_t``, with a row for each target, or an
                :class:`EdgeList` built once for many calls.
            edge_attr: Edge features ``[E, edge_dim]``, or ``[E]`` where ``edge_dim`` is 1.
            size: Numbers of sources and targets, which must be those of ``x``.
            return_attention_weights: Whether to return the weights as well.

        Returns:
            ``[..., N, heads * out_channels]``, or ``[..., N, out_channels]`` of averaged heads. With weights: a pair of
            this and ``(edge_index, weights)``: the E' edges that were passed, without self loops that the layer
            replaces, then the self loops that it adds, and their weights ``[..., E', heads]``.

        Raises:
            TypeError: An input is of another type.
            ValueError: Shapes do not fit, an edge index is out of range, edge features are missing or unexpected, or
                the edges of an alignment are summed over, which needs :meth:`attend`.
        """
        output, graph = self._attend(x, edge_index, edge_attr, size)
        if output.rows is not None and output.rows[1] is not None:
            remedy = "call attend(x, edge_index), and observe the nodes by NodeLikelihood(distribution, output)"
            raise ValueError(f"site '{output.rows[0]}': its edges are summed over, so its rows are edges; {remedy}")
        if not return_attention_weights or output.weights is None:
            return output.context
        edge_index = torch.stack([graph.sources.index, graph.targets.index])
        if graph.mask is None:
            return output.context, (edge_index, output.weights)
        mask = graph.mask.squeeze(-1)  # PyG drops the self loops that it replaces
        return output.context, (edge_index[:, mask], output.weights[..., mask, :])

    def attend(
        self, x: Tensor | tuple[Tensor, Tensor], edge_index: Tensor | EdgeList, edge_attr: Tensor | None = None
    ) -> AttentionOutput:
        """Attend as :meth:`forward`, but return an :class:`AttentionOutput`.

        Returns:
            Context; ``weights [..., E, heads]`` in the order of the given edges, zero at self loops that the layer
            replaces; ``self_loop_weights [..., N, heads]`` of those that it adds.
        """
        output, graph = self._attend(x, edge_index, edge_attr)
        if output.weights is None or not graph.has_self_loops:
            return output
        edges, loops = output.weights.split([graph.num_input_edges, graph.targets.count], dim=-2)
        return replace(output, weights=edges, self_loop_weights=loops)

    def _attend(
        self,
        x: Tensor | tuple[Tensor, Tensor],
        edge_index: Tensor | EdgeList,
        edge_attr: Tensor | None,
        size: tuple[int | None, int | None] | None = None,
    ) -> tuple[AttentionOutput, EdgeList]:
        """Return context and weights of all edges of the graph, and the graph."""
        sources, targets = _nodes(x)
        counts = sources.size(-2), targets.size(-2)
        if size is not None and any(given not in (None, count) for given, count in zip(size, counts, strict=True)):
            raise ValueError(f"size is {tuple(size)}, but x has (sources, targets) {counts}; leave size out")
        graph = self._layout(edge_index, counts)
        keys = self._project(sources, self.lin_src)
        shared = self.lin_dst is None and targets is sources
        queries = keys if shared else self._project(targets, self.lin_dst or self.lin_src)
        scores = self.score(keys, queries, graph, self._edge_features(edge_attr, graph))
        output = self.attention(scores, self.value_dropout(keys), keys=keys, queries=queries, layout=graph)
        context = output.context.flatten(-2) if self.concat else output.context.mean(-2)
        if self.res is not None:
            context = context + output.at_rows(self.res(targets))
        if self.bias is not None:
            context = context + self.bias
        return replace(output, context=context), graph

    def _layout(self, edge_index: Tensor | EdgeList, sizes: tuple[int, int]) -> EdgeList:
        """Return the graph of an edge index; raise where an edge list does not fit the nodes, or the layer."""
        if isinstance(edge_index, Tensor):
            return EdgeList.from_edge_index(edge_index, num_nodes=sizes, add_self_loops=self.add_self_loops)
        if not isinstance(edge_index, EdgeList):
            problem = f"edge_index is of type {type(edge_index).__name__}, expected int64 [2, edges] or an EdgeList"
            raise TypeError(f"{problem}; a SparseTensor adj_t becomes the first by torch.stack(adj_t.t().coo()[:2])")
        counts = edge_index.sources.count, edge_index.targets.count
        if counts != sizes:
            raise ValueError(f"the EdgeList has (sources, targets) {counts}, but x has {sizes}; build one for x")
        loops = edge_index.has_self_loops
        if loops != self.add_self_loops:
            raise ValueError(f"the EdgeList has add_self_loops={loops}, expected {self.add_self_loops} as in the layer")
        return edge_index

    def _project(self, x: Tensor, linear: nn.Linear) -> Tensor:
        """Return projected nodes ``[..., N, H, D]``."""
        return torch.unflatten(apply_linear(linear, x), -1, (self.heads, self.out_channels))

    def _edge_features(self, edge_attr: Tensor | None, graph: EdgeList) -> Tensor | None:
        """Return projected edge features ``[E, H, D]``, then those of the added self loops."""
        if (edge_attr is None) != (self.lin_edge is None):
            raise ValueError(f"edge_attr is {'missing' if edge_attr is None else 'given'}, which does not fit edge_dim")
        if edge_attr is None or self.lin_edge is None:
            return None
        if edge_attr.dim() == 1:
            edge_attr = edge_attr.unsqueeze(-1)
        if edge_attr.shape != (graph.num_input_edges, self.lin_edge.in_features):
            expected = graph.num_input_edges, self.lin_edge.in_features
            raise ValueError(f"edge_attr has shape {tuple(edge_attr.shape)}, expected {expected}")
        if graph.has_self_loops:
            edge_attr = torch.cat([edge_attr, self._loop_features(edge_attr, graph)])
        return torch.unflatten(self.lin_edge(edge_attr), -1, (self.heads, self.out_channels))

    def _loop_features(self, edge_attr: Tensor, graph: EdgeList) -> Tensor:
        """Return the features of the added self loops, ``[N, edge_dim]``."""
        count, width = graph.targets.count, edge_attr.size(-1)
        if not isinstance(self.fill_value, str):
            return torch.as_tensor(self.fill_value).to(edge_attr).expand(count, width)
        target = graph.targets.index[: graph.num_input_edges]
        if graph.mask is not None:  # self loops among the input are replaced: they go to a row that is left out
            target = target.masked_fill(~graph.mask[: graph.num_input_edges, 0], count)
        rows = target.unsqueeze(-1).expand_as(edge_attr)
        of_no_edges = 1.0 if self.fill_value == "mul" else 0.0
        features = edge_attr.new_full((count + 1, width), of_no_edges)
        return features.scatter_reduce(0, rows, edge_attr, _REDUCTIONS[self.fill_value], include_self=False)[:-1]


def _check_options(scores: str, fill_value: float | Tensor | str, share_weights: bool, widths: tuple[int, int]) -> None:
    """Raise ValueError where options of the layer are unknown, or nodes of two widths should share a matrix."""
    if scores not in get_args(GraphScores):
        raise ValueError(f"scores is '{scores}', expected one of {', '.join(get_args(GraphScores))}")
    if isinstance(fill_value, str) and fill_value not in _REDUCTIONS:
        raise ValueError(f"fill_value is '{fill_value}', expected a number or one of {', '.join(_REDUCTIONS)}")
    if share_weights and (scores == "gat" or widths[0] != widths[1]):
        raise ValueError(f"share_weights needs scores='gatv2' and one width, got '{scores}' and in_channels {widths}")


def _check_conv(conv: _PyGConv) -> None:
    """Raise unless a layer of PyG can be copied."""
    kind, aggregation = type(conv), type(getattr(conv, "aggr_module", None)).__name__
    # by name, as PyG need not be installed; a subclass may compute something else
    if kind.__name__ not in _NAMES or not kind.__module__.startswith("torch_geometric."):
        actual = f"{kind.__module__}.{kind.__qualname__}"
        raise TypeError(f"cannot copy a {actual}, expected a GATConv or GATv2Conv of torch_geometric.nn itself")
    if conv.flow != "source_to_target" or aggregation != "SumAggregation":
        raise ValueError(
            f"cannot copy a {kind.__name__} with flow='{conv.flow}' and a {aggregation}, expected 'source_to_target' "
            f"and aggr='add'; a layer made without flow gives the same of edge_index.flip(0)"
        )


def _parameters(conv: _PyGConv) -> tuple[dict[str, Tensor], _ScoreOptions]:
    """Return the parameters of a layer under the names that they have here, and the options of its scores."""
    state, names = conv.state_dict(), _NAMES[type(conv).__name__]
    options: _ScoreOptions = {}
    if "lin_l." in names:
        options = {"scores": "gatv2", "share_weights": conv.share_weights}
        if conv.share_weights:  # the same matrix under a second name
            state = {key: value for key, value in state.items() if not key.startswith("lin_r.")}
    return {_renamed(key, names): value for key, value in state.items()}, options


def _renamed(key: str, names: Mapping[str, str]) -> str:
    """Return the name of a parameter with another beginning, where ``names`` has one for it."""
    for beginning, replacement in names.items():
        if key.startswith(beginning):
            return replacement + key.removeprefix(beginning)
    return key


def _nodes(x: object) -> tuple[Tensor, Tensor]:
    """Return source and target nodes: one tensor twice unless the graph is bipartite."""
    ends = [*x] if isinstance(x, tuple | list) else [x, x]
    tensors = [nodes for nodes in ends if isinstance(nodes, Tensor)]
    if len(ends) != 2 or len(tensors) != 2:
        names = ", ".join(type(nodes).__name__ for nodes in ends)
        actual = f"({names})" if isinstance(x, tuple | list) else type(x).__name__
        remedy = "for (x, None) of PyG give targets of zeros, which add nothing to the scores of GATConv"
        raise TypeError(f"x is {actual}, expected a tensor or two, (sources, targets); {remedy}")
    for nodes in tensors:
        if nodes.dim() < 2:
            raise ValueError(f"x has shape {tuple(nodes.shape)}, expected [..., nodes, channels]")
    sources, targets = tensors
    return sources, targets
