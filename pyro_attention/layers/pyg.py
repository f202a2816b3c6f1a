"""What GraphAttention takes from PyTorch Geometric; the rest is refused by name."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from pyro_attention.edge_list import EdgeList

__all__ = [
    "REDUCTIONS",
    "check_conv",
    "check_size",
    "pyg_parameters",
    "pyg_weights",
    "read_nodes",
    "self_loop_features",
]

# beginnings of the names of parameters that have another name here
_NAMES = {
    "GATConv": {"att_": "score.att_", "lin.": "lin_src."},
    "GATv2Conv": {"att": "score.att", "lin_l.": "lin_src.", "lin_r.": "lin_dst."},
}
REDUCTIONS = {"mean": "mean", "add": "sum", "sum": "sum", "max": "amax", "min": "amin", "mul": "prod"}


def check_conv(conv: Any) -> None:
    """Raise TypeError or ValueError unless a layer is a GATConv or GATv2Conv that GraphAttention can copy."""
    kind = type(conv)
    # by name, as PyG need not be installed; a subclass may compute something else
    if kind.__name__ not in _NAMES or not kind.__module__.startswith("torch_geometric."):
        seen = f"{kind.__module__}.{kind.__qualname__}"
        expected = "a GATConv or GATv2Conv of torch_geometric.nn itself, whose scores these are"
        raise TypeError(f"cannot copy a {seen}, expected {expected}")
    if conv.flow != "source_to_target":
        remedy = "copy a layer made without flow, with the same parameters, and give it edge_index.flip(0)"
        raise ValueError(
            f"cannot copy a {kind.__name__} with flow='{conv.flow}', expected 'source_to_target'; {remedy}"
        )
    aggregation = type(conv.aggr_module).__name__
    if aggregation != "SumAggregation":
        raise ValueError(f"cannot copy a {kind.__name__} whose aggr is a {aggregation}, expected 'add'")
    if any(is_lazy(parameter) for parameter in conv.parameters()):
        raise ValueError(f"cannot copy {conv}, whose sizes are not known yet (-1); call it once with data before")
    if isinstance(conv.fill_value, Tensor):
        seen = f"a tensor of shape {tuple(conv.fill_value.shape)}"
        raise ValueError(
            f"cannot copy a {kind.__name__} whose fill_value is {seen}, expected a number or a reduction's name"
        )


def pyg_parameters(conv: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Parameters of a layer under the names that they have here, and options that tell its scores."""
    state, names = conv.state_dict(), _NAMES[type(conv).__name__]
    options: dict[str, Any] = {}
    if "lin_l." in names:
        options = {"scores": "gatv2", "share_weights": conv.share_weights}
        if conv.share_weights:  # the same matrix under a second name
            state = {key: value for key, value in state.items() if not key.startswith("lin_r.")}
    renamed = {}
    for key, value in state.items():
        begin = next((theirs for theirs in names if key.startswith(theirs)), "")
        renamed[names.get(begin, "") + key.removeprefix(begin)] = value
    return renamed, options


def read_nodes(x: Any) -> tuple[Tensor, Tensor]:
    """Source and target nodes: the same tensor twice unless the graph is bipartite; raises unless they are nodes."""
    ends = x if isinstance(x, tuple | list) else (x, x)
    if [isinstance(nodes, Tensor) for nodes in ends] != [True, True]:
        seen = f"({', '.join(type(nodes).__name__ for nodes in x)})" if ends is x else type(x).__name__
        remedy = "for (x, None) of PyG give targets of zeros, which add nothing to the scores of GATConv"
        raise TypeError(f"x is {seen}, expected a tensor or two, (sources, targets); {remedy}")
    for nodes in ends:
        if not nodes.is_floating_point():
            raise TypeError(f"x has dtype {nodes.dtype}, expected floating point; convert it with .float()")
        if nodes.dim() < 2:
            raise ValueError(f"x has shape {tuple(nodes.shape)}, expected [..., nodes, channels]")
    sources, targets = ends
    return sources, targets


def check_size(size: tuple[int | None, int | None] | None, sources: Tensor, targets: Tensor) -> None:
    """Raise ValueError unless PyG's ``size``, where it is given, is that of the nodes."""
    nodes = sources.size(-2), targets.size(-2)
    if size is not None and any(given not in (None, seen) for given, seen in zip(size, nodes, strict=True)):
        raise ValueError(f"size is {tuple(size)}, but x has {nodes[0]} sources and {nodes[1]} targets; leave size out")


def pyg_weights(weights: Tensor, graph: EdgeList) -> tuple[Tensor, Tensor]:
    """Edges ``[2, E']`` and their weights ``[..., E', H]`` as PyG returns them, without replaced self loops."""
    edge_index = torch.stack([graph.sources.index, graph.targets.index])
    if graph.mask is None:
        return edge_index, weights
    kept = graph.mask.squeeze(-1)
    return edge_index[:, kept], weights[..., kept, :]


def self_loop_features(edge_attr: Tensor, graph: EdgeList, fill_value: float | str) -> Tensor:
    """Features of the added self loops: a number, or a reduction of a node's in-edges; ``[N, edge_dim]``."""
    shape = (graph.targets.count, edge_attr.size(-1))
    if not isinstance(fill_value, str):
        return edge_attr.new_full(shape, fill_value)
    target = graph.targets.index[: graph.num_input_edges]
    if graph.mask is not None:  # self loops among the input are replaced, so they do not count
        kept = graph.mask[: graph.num_input_edges, 0]
        edge_attr, target = edge_attr[kept], target[kept]
    where = target.unsqueeze(-1).expand_as(edge_attr)
    return edge_attr.new_zeros(shape).scatter_reduce(0, where, edge_attr, REDUCTIONS[fill_value], include_self=False)
