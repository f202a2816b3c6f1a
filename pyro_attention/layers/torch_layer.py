"""What MultiheadAttention takes from torch.nn.MultiheadAttention, and what torch's encoders ask of their attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pyro_attention._checks import kind_of

__all__ = ["NoFastPath", "check_inputs", "check_layer", "projections"]


class NoFastPath:
    """Stands where torch's encoders look for the packed weight of their attention.

    They call a fused kernel in its place unless an argument overrides torch's functions, as this one does; then they
    call the layer.
    """

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return NotImplemented


def check_layer(layer: nn.MultiheadAttention) -> None:
    """Raise ValueError unless a torch layer can be copied."""
    if not layer.batch_first or layer.bias_k is not None or layer.add_zero_attn:
        raise ValueError(
            f"cannot copy a layer with batch_first={layer.batch_first}, add_bias_kv={layer.bias_k is not None}, "
            f"add_zero_attn={layer.add_zero_attn}; expected batch_first=True and the other two False"
        )


def projections(layer: nn.MultiheadAttention) -> list[dict[str, Tensor]]:
    """State of the three linear maps, of queries, keys and values, that a torch layer keeps packed."""
    packed, apart = layer.in_proj_weight, (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
    weights = apart if packed is None else packed.chunk(3)
    if layer.in_proj_bias is None:
        return [{"weight": weight} for weight in weights]
    biases = layer.in_proj_bias.chunk(3)
    return [{"weight": weight, "bias": bias} for weight, bias in zip(weights, biases, strict=True)]


def check_inputs(inputs: dict[str, Tensor], widths: list[int]) -> None:
    """Raise TypeError or ValueError unless query, key and value are ``[..., length, width]`` and fit each other."""
    for (name, tensor), width in zip(inputs.items(), widths, strict=True):
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            raise TypeError(
                f"{name} is of type {kind_of(tensor)}, expected a floating-point tensor [..., length, width]"
            )
        if tensor.is_nested:
            raise ValueError(
                f"{name} is a nested tensor, expected a padded one and a key_padding_mask; torch's encoders nest their "
                f"input unless enable_nested_tensor=False, or their first layer has attention of this class"
            )
        if tensor.dim() < 2 or tensor.size(-1) != width:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected [..., length, {width}]")
    _, key, value = inputs.values()
    if key.size(-2) != value.size(-2):
        raise ValueError(f"key has {key.size(-2)} positions and value {value.size(-2)}, expected the same number")
    batches = [tuple(tensor.shape[:-2]) for tensor in inputs.values()]
    try:
        torch.broadcast_shapes(*batches)
        # more than one dimension is broadcast, as vectorised particles put theirs in front of some inputs alone
        fits = len(set(batches)) == 1 or max(map(len, batches)) > 1
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"query, key and value have batch dimensions {batches[0]}, {batches[1]} and {batches[2]}, expected the "
            f"same for all; vectorised particles need a batch dimension, if only of one, in each of them"
        )
