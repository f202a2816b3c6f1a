"""What MultiheadAttention takes from torch.nn.MultiheadAttention: inputs, masks, parameters, a place in encoders."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from pyro_attention._checks import kind_of, whole

__all__ = [
    "Mask",
    "TorchLayer",
    "check_inputs",
    "check_layer",
    "projections",
    "read_attn_mask",
    "read_padding",
    "scores_shape",
]

_IGNORED = -1e4  # and less is ignored: the softmax of such a score is zero
_STATE = {"in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"} | {f"{x}_proj_weight" for x in "qkv"}


class _NoFastPath:
    """In place of the packed weight: torch's encoders call the layer, not a kernel, where it overrides functions."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return NotImplemented


class TorchLayer(nn.MultiheadAttention):
    """A torch layer by its class alone, for models that ask for it before they call their attention.

    Of its attributes it has those that torch's encoders read, so that they call it in evaluation mode, too.
    """

    batch_first = True
    in_proj_bias = None  # type: ignore[assignment]
    in_proj_weight = _NoFastPath()  # type: ignore[assignment]
    _qkv_same_embed_dim = False

    def __init__(self) -> None:
        nn.Module.__init__(self)

    __setstate__ = nn.Module.__setstate__


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
        fits = batches[0] == batches[1] == batches[2] or max(map(len, batches)) > 1
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"query, key and value have batch dimensions {batches[0]}, {batches[1]} and {batches[2]}, expected the "
            f"same for all; vectorised particles need a batch dimension, if only of one, in each of them"
        )


@dataclass(frozen=True)
class Mask:
    """A mask in two parts: where a query may attend, and what is added to the scores; None for all and nothing."""

    allowed: Tensor | None = None
    bias: Tensor | None = None

    @classmethod
    def read(cls, name: str, mask: Tensor) -> Mask:
        """From torch's mask: boolean with True = ignore, or numbers to add, of which -1e4 and less = ignore.

        People write -1e9, or the least number of a type, for -inf. As a score such a number would enter the KL.
        """
        if isinstance(mask, Tensor) and mask.dtype == torch.bool:
            return cls(~mask)
        if not isinstance(mask, Tensor) or not mask.is_floating_point():
            raise TypeError(
                f"{name} is of type {kind_of(mask)}, expected a tensor: boolean with True = ignore, or floating point, "
                f"added to the scores; an integer mask is converted by {name}.bool()"
            )
        checked = torch.distributions.Distribution._validate_args and not torch.compiler.is_exporting()
        if checked and (wrong := ~(whole(mask) < torch.inf)).any():
            raise ValueError(
                f"{name} is NaN or infinite in {wrong.sum().item()} of {wrong.numel()} entries, expected numbers to "
                f"add to the scores, or -inf to ignore a key"
            )
        allowed = ~(mask <= _IGNORED)  # a NaN that was not looked for goes on into the scores
        return cls(allowed, mask.masked_fill(~allowed, 0))

    def __getitem__(self, index: object) -> Mask:
        """Both parts indexed."""
        return Mask(*(None if part is None else part[index] for part in (self.allowed, self.bias)))  # type: ignore[index]

    def __and__(self, other: Mask) -> Mask:
        """Where both allow it, with the sum of what both add."""
        allowed = [part for part in (self.allowed, other.allowed) if part is not None]
        biases = [part for part in (self.bias, other.bias) if part is not None]
        return Mask(
            reduce(torch.logical_and, allowed) if allowed else None,
            reduce(torch.add, biases) if biases else None,
        )

    @property
    def has_bias(self) -> bool:
        """Whether it adds anything but zero."""
        return self.bias is not None and (torch.compiler.is_exporting() or bool(whole(self.bias).any()))


def read_attn_mask(mask: Tensor | None, shape: torch.Size) -> Mask:
    """Torch's ``attn_mask``, broadcastable to scores ``[..., H, M, N]``; errors are those of :meth:`Mask.read`."""
    if mask is None:
        return Mask()
    read = Mask.read("attn_mask", mask)
    *batch, heads, queries, keys = shape
    if mask.shape == (queries, keys) or (mask.dim() > 3 and mask.shape in _suffixes(shape)):
        return read
    flat: dict[tuple[int, ...], tuple[int, ...]] = {
        (heads * torch.Size(part).numel(), queries, keys): part for part in _suffixes(batch)
    }
    part = flat.get(tuple(mask.shape))
    if part is None:
        expected = " or ".join(map(str, [(queries, keys), *flat, *([tuple(shape)] if batch else [])]))
        seen = f"attn_mask has shape {tuple(mask.shape)}, expected {expected}"
        raise ValueError(f"{seen}: [queries, keys], the same with batch * heads in front, or with both apart")
    apart = (*part, heads, queries, keys)
    return Mask(*(None if half is None else half.reshape(apart) for half in (read.allowed, read.bias)))


def read_padding(name: str, mask: Tensor | None, shape: torch.Size, dim: int) -> Mask:
    """Torch's padding mask ``[..., M or N]`` of a dimension of scores ``[..., H, M, N]``; errors: :meth:`Mask.read`."""
    if mask is None:
        return Mask()
    read, (*batch, _, _, _) = Mask.read(name, mask), shape
    expected = [(*part, shape[dim]) for part in _suffixes(batch)]
    if tuple(mask.shape) not in expected:
        raise ValueError(f"{name} has shape {tuple(mask.shape)}, expected {' or '.join(map(str, expected))}")
    return read


def _suffixes(batch: torch.Size | list[int]) -> list[tuple[int, ...]]:
    """A batch shape, and what is left of it without leading dimensions, which vectorised particles may have put there.

    At least one dimension is left; the shape of a single input, where there is none.
    """
    return [tuple(batch[start:]) for start in range(len(batch))] or [()]


def scores_shape(q: Tensor, k: Tensor) -> torch.Size:
    """Shape of the scores of queries and keys, ``[..., H, M, N]``."""
    batch = q.shape[:-2] if q.shape[:-2] == k.shape[:-2] else torch.broadcast_shapes(q.shape[:-2], k.shape[:-2])
    return torch.Size((*batch, q.size(-2), k.size(-2)))
