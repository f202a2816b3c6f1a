"""What MultiheadAttention takes from torch.nn.MultiheadAttention, and what torch's encoders ask of their attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["NoFastPath", "check_inputs", "check_layer", "projections"]

_STATE = {"in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"} | {f"{x}_proj_weight" for x in "qkv"}


class NoFastPath:
    """Stands where torch's encoders look for the packed weight of their attention.

    They call a fused kernel in its place unless an argument overrides torch's functions, as this one does; then they
    call the layer.
    """

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Support no function of torch."""
        return NotImplemented


def check_layer(layer: nn.MultiheadAttention, *, batch_first: bool = True) -> None:
    """Raise TypeError or ValueError unless a torch layer can be copied."""
    if not isinstance(layer, nn.MultiheadAttention) or type(layer).forward is not nn.MultiheadAttention.forward:
        raise TypeError(
            f"cannot copy a {type(layer).__name__}, expected a torch.nn.MultiheadAttention with torch's own forward, "
            f"which is the attention that the copy computes"
        )
    if layer.batch_first is not batch_first or layer.bias_k is not None or layer.add_zero_attn:
        raise ValueError(
            f"cannot copy a layer with batch_first={layer.batch_first}, add_bias_kv={layer.bias_k is not None}, "
            f"add_zero_attn={layer.add_zero_attn}; expected batch_first={batch_first} and the other two False"
        )
    if unknown := sorted(layer.state_dict().keys() - _STATE):
        raise ValueError(
            f"cannot copy a layer with {', '.join(unknown)} in its state, expected plain weights and biases; take off "
            f"parametrisations (torch.nn.utils.parametrize.remove_parametrizations), pruning and adapters first"
        )
    if any(module._forward_hooks or module._forward_pre_hooks for module in layer.modules()):
        raise ValueError(
            "cannot copy a layer with forward hooks, which the copy would not run; register them on the copy instead"
        )


@torch.enable_grad()  # the views say which of them are trained
def projections(layer: nn.MultiheadAttention) -> list[dict[str, Tensor]]:
    """State of the four linear maps, of queries, keys, values and output: views of what a torch layer keeps packed."""
    if layer.in_proj_weight is not None:
        weights = layer.in_proj_weight.chunk(3)
    else:
        weights = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
    states: list[dict[str, Tensor]] = [{"weight": weight} for weight in (*weights, layer.out_proj.weight)]
    if layer.in_proj_bias is not None:
        for state, bias in zip(states, (*layer.in_proj_bias.chunk(3), layer.out_proj.bias), strict=True):
            state["bias"] = bias
    return states


def check_inputs(inputs: dict[str, Tensor], widths: list[int]) -> None:
    """Raise TypeError or ValueError unless query, key and value are ``[..., length, width]`` and fit each other."""
    for (name, tensor), width in zip(inputs.items(), widths, strict=True):
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise TypeError(f"{name} is of type {kind}, expected a floating-point tensor [..., length, width]")
        if tensor.is_nested:
            raise ValueError(
                f"{name} is a nested tensor, expected a padded one and a key_padding_mask; torch's encoders nest their "
                f"input unless enable_nested_tensor=False, or their first layer has attention of this class"
            )
        if tensor.dim() < 2 or tensor.size(-1) != width:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected [..., length, {width}]")
    query, key, value = inputs.values()
    if key.size(-2) != value.size(-2):
        raise ValueError(f"key has {key.size(-2)} positions and value {value.size(-2)}, expected the same number")
    _check_batches(query, key, value)


def _check_batches(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Raise ValueError unless the batch dimensions fit: the same for all, as torch asks, where none has more than one.

    More of them are broadcast, because vectorised particles put theirs in front of some inputs and not of others.
    """
    batches = [tuple(tensor.shape[:-2]) for tensor in (query, key, value)]
    if max(map(len, batches)) > 1:
        try:
            torch.broadcast_shapes(*batches)
        except RuntimeError:
            fits = False
        else:
            fits = True
    else:
        fits = len(set(batches)) == 1
    if not fits:
        raise ValueError(
            f"query, key and value have batch dimensions {batches[0]}, {batches[1]} and {batches[2]}, expected the "
            f"same for all; vectorised particles need a batch dimension, if only of one, in each of them"
        )
