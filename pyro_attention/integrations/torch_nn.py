"""Models with torch.nn.MultiheadAttention made Bayesian, and made deterministic again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from pyro_attention.attention import AttentionOutput, name_sites
from pyro_attention.integrations._sites import (
    PriorFactory,
    copied,
    exchange,
    layers_of,
    make_prior,
    read_sites,
)
from pyro_attention.layers.multihead import MultiheadAttention

__all__ = ["LengthFirstAttention", "bayesian", "deterministic"]

_NESTED = "_used_nested_tensor"  # where an encoder keeps what it did before


def bayesian(
    module: nn.Module, *, prior: PriorFactory = "gamma_contextual", sites: str | Sequence[str] = "*"
) -> nn.Module:
    """Put latent attention in the place of every ``torch.nn.MultiheadAttention`` of a module, with its weights.

    It changes the module in place, such as an ``nn.TransformerEncoder``, an ``nn.Transformer``, torchvision's vision
    transformers, PyG's ``GPSConv``, or any module that holds one. Under the guide ``Soft()``, and where Pyro does not
    run the model, the numbers do not change, in training and evaluation mode; torch's fused kernels for evaluation,
    which would bypass the layers, are off. Convert before making the optimizer: the parameters are new tensors, and
    each layer has those of its prior besides. State dicts have the names of :class:`MultiheadAttention`, so load a
    checkpoint of the original model before converting it, and one of the converted model after.

    The name of a site is the path of its layer in the module that the guide runs (:func:`name_sites`). A layer that
    runs more than once in a pass, as where layers are tied, has one site a call: ``path``, ``path.1`` and so on. Every
    batch dimension must lie in a plate, which the model declares.

    Args:
        module: A module that holds ``nn.MultiheadAttention``; ``batch_first`` or not.
        prior: Maker of the prior network of each attention: a registered name, a class of priors, a
            ``functools.partial`` of one, or a function of the width of a head's keys.
        sites: One pattern or several, as in ``fnmatch``, of the module paths of the attentions to convert; the others
            stay as they are.

    Returns:
        The module itself; the new layer where the module is an ``nn.MultiheadAttention``.

    Raises:
        TypeError: ``prior`` makes no prior, or a layer is a subclass with a forward of its own.
        ValueError: There is no such layer, a pattern matches none, or a layer cannot be copied: it has
            ``add_bias_kv`` or ``add_zero_attn``, quantized weights, or hooks. The module is then as it was.

    Example:
        >>> import torch
        >>> from pyro_attention.attention import name_sites
        >>> layer = nn.TransformerEncoderLayer(8, nhead=2, batch_first=True)
        >>> encoder = bayesian(nn.TransformerEncoder(layer, num_layers=2))
        >>> name_sites(encoder)
        ['layers.0.self_attn', 'layers.1.self_attn']
    """
    layers = layers_of(module, nn.MultiheadAttention)
    layers = {path: layer for path, layer in layers.items() if not isinstance(layer, MultiheadAttention)}
    chosen: dict[nn.MultiheadAttention, str] = {}
    for path in read_sites(sites, list(layers), of="torch.nn.MultiheadAttention"):
        chosen.setdefault(layers[path], path)  # a tied layer is made once

    def copy(layer: nn.MultiheadAttention) -> MultiheadAttention:
        kind = MultiheadAttention if layer.batch_first else LengthFirstAttention
        layer_prior = make_prior(prior, layer.embed_dim // layer.num_heads, site=chosen[layer])
        return copied(kind.from_torch, layer, layer_prior, chosen[layer])

    made = _exchange(module, {layer: copy(layer) for layer in chosen})
    name_sites(made)
    return made


def deterministic(module: nn.Module) -> nn.Module:
    """Undo :func:`bayesian`: put back torch's own layers with the trained weights; the priors are lost.

    Args:
        module: A module that holds :class:`MultiheadAttention`, which is changed in place.

    Returns:
        The module itself; the new layer where the module is a :class:`MultiheadAttention`.

    Raises:
        ValueError: There is no such layer, or one with a normalizer or scores that torch's layer does not have. The
            module is then as it was.

    Example:
        >>> deterministic(bayesian(nn.MultiheadAttention(8, 2)))
        MultiheadAttention(
          (out_proj): NonDynamicallyQuantizableLinear(in_features=8, out_features=8, bias=True)
        )
    """
    layers = layers_of(module, MultiheadAttention)
    if not layers:
        raise ValueError("the model has no pyro_attention.MultiheadAttention; expected one that bayesian() has made")
    return _exchange(module, {layer: layer.to_torch() for layer in dict.fromkeys(layers.values())})


class LengthFirstAttention(MultiheadAttention):
    """Multi-head attention of ``[length, batch, width]``, as torch's layer without ``batch_first``.

    Masks and weights have the batch first, as in torch; so has the site, whose plate is the last batch dimension.

    Example:
        >>> import torch
        >>> LengthFirstAttention(8, 2)(*3 * [torch.randn(5, 3, 8)])[1].shape
        torch.Size([3, 5, 5])
    """

    batch_first = False

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> AttentionOutput:
        """See :meth:`MultiheadAttention.attend`; query, key, value and context have the length in front."""
        output = super().attend(_swapped(query), _swapped(key), _swapped(value), *args, **kwargs)
        return replace(output, context=_swapped(output.context))


def _swapped(tensor: Tensor) -> Tensor:
    """Swap length and batch; an input without a batch is returned as it is."""
    return tensor.transpose(-3, -2) if isinstance(tensor, Tensor) and tensor.dim() > 2 else tensor


def _exchange(module: nn.Module, new: Mapping[nn.Module, nn.Module]) -> nn.Module:
    """Exchange the layers, and say of every encoder of torch whether it may make nested tensors."""
    if module in new:
        return new[module]
    exchange(module, new)
    for part in module.modules():
        if isinstance(part, nn.TransformerEncoder):
            _set_nesting(part)
    return module


def _set_nesting(encoder: nn.TransformerEncoder) -> None:
    """Allow nested tensors, which torch's encoder makes of padded input for its kernels, where no layer is latent."""
    if any(isinstance(part, MultiheadAttention) for part in encoder.modules()):
        vars(encoder).setdefault(_NESTED, encoder.use_nested_tensor)
        encoder.use_nested_tensor = False
    else:
        encoder.use_nested_tensor = vars(encoder).pop(_NESTED, encoder.use_nested_tensor)
