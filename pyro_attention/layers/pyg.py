"""What GraphAttention takes from PyTorch Geometric; the rest is refused by name."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.parameter import is_lazy

__all__ = ["check_conv", "read_nodes"]


def check_conv(conv: Any) -> None:
    """Raise TypeError or ValueError unless a layer is a ``GATConv`` that GraphAttention can copy."""
    kind = type(conv)
    # by name, as PyG need not be installed; a subclass may compute something else
    if kind.__name__ != "GATConv" or not kind.__module__.startswith("torch_geometric."):
        raise TypeError(
            f"cannot copy a {kind.__module__}.{kind.__qualname__}, expected a torch_geometric.nn.GATConv itself; other "
            f"layers compute other scores"
        )
    if conv.flow != "source_to_target":
        raise ValueError(
            f"cannot copy a GATConv with flow='{conv.flow}', expected 'source_to_target'; copy a layer made without "
            f"flow, with the same parameters, and give it edge_index.flip(0)"
        )
    aggregation = type(conv.aggr_module).__name__
    if aggregation != "SumAggregation":
        raise ValueError(f"cannot copy a GATConv whose aggr is a {aggregation}, expected 'add'")
    if any(is_lazy(parameter) for parameter in conv.parameters()):
        raise ValueError(
            f"cannot copy {conv}, whose sizes are not known yet (-1); call it once with data before it is copied"
        )
    if isinstance(conv.fill_value, Tensor):
        raise ValueError(
            f"cannot copy a GATConv whose fill_value is a tensor of shape {tuple(conv.fill_value.shape)}, expected a "
            f"number or the name of a reduction"
        )


def read_nodes(x: Any) -> tuple[Tensor, Tensor]:
    """Source and target nodes: the same tensor twice unless the graph is bipartite.

    Raises:
        TypeError: These are no tensors in floating point.
        ValueError: They have fewer than two dimensions.
    """
    ends = x if isinstance(x, tuple | list) else (x, x)
    if [isinstance(nodes, Tensor) for nodes in ends] != [True, True]:
        seen = f"({', '.join(type(nodes).__name__ for nodes in x)})" if ends is x else type(x).__name__
        raise TypeError(
            f"x is {seen}, expected a tensor or (sources, targets), two tensors; scores need the features of the "
            f"targets, too, so (x, None) of PyG has no counterpart"
        )
    for nodes in ends:
        if not nodes.is_floating_point():
            raise TypeError(f"x has dtype {nodes.dtype}, expected floating point; convert it with .float()")
        if nodes.dim() < 2:
            raise ValueError(f"x has shape {tuple(nodes.shape)}, expected [..., nodes, channels]")
    sources, targets = ends
    return sources, targets
