"""Sites of layers that nobody named: each is called after the place of its layer in the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyro import poutine
from torch import nn

from pyro_attention.attention import LatentAttention
from pyro_attention.families.prior import Prior

__all__ = ["AttentionLayer", "name_model_sites", "name_sites"]


class AttentionLayer(nn.Module):
    """Base of the layers with one attention site.

    Attributes:
        attention: What samples the weights; its ``name`` is that of the site.
        default_name: Name of the site while nobody has named it.
        named: Whether the user gave the name; :func:`name_sites` then leaves it alone.
    """

    attention: LatentAttention
    default_name = "attention"
    named: bool

    def add_attention(self, name: str | None, prior: Prior, **options: Any) -> None:
        """Make the site, with the options of :class:`LatentAttention`; None leaves it without a name of its own."""
        self.named = name is not None
        self.attention = LatentAttention(self.default_name if name is None else name, prior, **options)


def name_sites(model: nn.Module) -> list[str]:
    """Name the site of every layer without a name of its own after the layer's path in the model.

    An :class:`AttentionGuide` does this by itself at every run where its model is a module or a method of one. Call it
    once where the model is a plain function, or runs without a guide, as under ``Predictive``. Without it, a function
    that calls one unnamed layer has the site ``attention`` or ``graph_attention``, and one that calls two raises an
    error.

    Args:
        model: A module that holds layers such as :class:`MultiheadAttention` and :class:`GraphAttention`.

    Returns:
        The names of these layers' sites, in the order of ``model.named_modules()``. A layer that is the model itself
        keeps its default name.

    Raises:
        TypeError: The model is no module.

    Example:
        >>> from pyro_attention import MultiheadAttention
        >>> name_sites(nn.Sequential(MultiheadAttention(4, 2), MultiheadAttention(4, 2, name="last")))
        ['0', 'last']
    """
    if not isinstance(model, nn.Module):
        seen = type(model).__name__
        raise TypeError(f"model is a {seen}, expected a torch.nn.Module; of a function, name those that it calls")
    names = []
    for path, layer in model.named_modules():
        if isinstance(layer, AttentionLayer):
            if not layer.named:
                layer.attention.name = path or layer.default_name
            names.append(layer.attention.name)
    return names


def name_model_sites(model: Callable[..., Any]) -> None:
    """:func:`name_sites` for a Pyro model; it does nothing where that is a function, whose modules nobody knows."""
    model = poutine.unwrap(model)
    owner = getattr(model, "__self__", model)
    if isinstance(owner, nn.Module):
        name_sites(owner)
