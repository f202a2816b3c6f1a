"""Graph networks with PyG's GATConv and GATv2Conv made Bayesian."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from pyro_attention.attention import name_sites
from pyro_attention.integrations._sites import (
    PriorFactory,
    copied,
    exchange,
    layers_of,
    make_prior,
    read_sites,
)
from pyro_attention.layers.graph import GraphAttention

__all__ = ["bayesian", "is_attention"]


def bayesian(
    module: nn.Module, *, prior: PriorFactory = "gamma_contextual", sites: str | Sequence[str] = "*"
) -> nn.Module:
    """Put :class:`GraphAttention` in the place of every ``GATConv`` and ``GATv2Conv`` of a module, with its weights.

    It changes the module in place, such as a ``torch_geometric.nn.GAT``, a ``Sequential``, a ``HeteroConv``, or
    any module that holds such layers. Under the guide ``Soft()``, and where Pyro does not run the model, the numbers do
    not change. Convert before making the optimizer: the parameters are new tensors, and each layer has those of its
    prior besides. The name of a site is the path of its layer; a layer that runs more than once in a pass has one site
    a call: ``path``, ``path.1`` and so on.

    Args:
        module: A module that holds such layers, or a layer.
        prior: Maker of the prior network of each layer, which all heads share: a registered name, a class of priors,
            a ``functools.partial`` of one, or a function of the width of a head.
        sites: One pattern or several, as in ``fnmatch``, of the module paths of the layers to convert; the others stay
            as they are.

    Returns:
        The module itself; the new layer where the module is one of PyG's.

    Raises:
        TypeError: ``prior`` makes no prior.
        ValueError: There is no such layer, a pattern matches none, or a layer cannot be copied: its messages flow from
            target to source, or are not added up. The module is then as it was.

    Example:
        >>> from torch_geometric.nn import GAT  # doctest: +SKIP
        >>> network = bayesian(GAT(16, 8, num_layers=2, out_channels=3, heads=2))  # doctest: +SKIP
        >>> name_sites(network)  # doctest: +SKIP
        ['convs.0', 'convs.1']
    """
    layers = {path: layer for path, layer in layers_of(module, nn.Module).items() if is_attention(layer)}
    chosen: dict[nn.Module, str] = {}
    for path in read_sites(sites, list(layers), of="GATConv or GATv2Conv of torch_geometric"):
        chosen.setdefault(layers[path], path)  # a tied layer is made once
    made = exchange(module, {layer: _copy(layer, path, prior) for layer, path in chosen.items()})
    name_sites(made)
    return made


def is_attention(module: object) -> bool:
    """Return whether a module is a ``GATConv`` or ``GATv2Conv`` of torch_geometric, which need not be installed."""
    kind = type(module)
    return kind.__name__ in ("GATConv", "GATv2Conv") and kind.__module__.startswith("torch_geometric.")


def _copy(layer: Any, path: str, prior: PriorFactory) -> GraphAttention:
    layer_prior = make_prior(prior, layer.out_channels, site=path)
    return copied(GraphAttention.from_pyg, layer, layer_prior, path)
