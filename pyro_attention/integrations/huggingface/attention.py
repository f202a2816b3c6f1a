"""The attention function that transformers calls in place of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any

import pyro
import torch
from pyro.poutine import runtime
from pyro.poutine.indep_messenger import IndepMessenger
from pyro.poutine.trace_messenger import TraceMessenger
from torch import Tensor, nn

from pyro_attention.attention import LatentAttention, pyro_runs_the_model
from pyro_attention.layout import Dense

__all__ = ["BATCH", "CHILD", "NAME", "OBSERVER", "attend", "fresh_name"]

NAME = "pyro_attention"  # neutral: transformers reads meanings into names with "sdpa" or "flash"
CHILD = "latent_attention"  # the submodule of an attention module that holds its LatentAttention

# The plate over the batch of the run at hand, and what is told of every call (the probe).
BATCH: ContextVar[Any] = ContextVar("BATCH", default=None)
OBSERVER: ContextVar[Callable[[nn.Module, Tensor, Tensor, float], None] | None] = ContextVar("OBSERVER", default=None)

# What models pass on that changes no score, or changes them through the mask; all else is refused.
_HARMLESS = {
    "cache_position", "cu_seq_lens_k", "cu_seq_lens_q", "deterministic", "is_causal", "max_length_k", "max_length_q",
    "num_items_in_batch", "output_attentions", "output_hidden_states", "position_ids", "return_dict",
    "sliding_window", "use_cache",
}  # fmt: skip


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Attention by the module's :class:`LatentAttention`, or by softmax where it has none.

    Args:
        module: The attention module that calls.
        query: ``[B, H, T, D]``.
        key: ``[B, G, K, D]``, where G divides H (grouped queries).
        value: ``[B, G, K, D]``.
        attention_mask: Added to the scores, broadcastable to ``[B, H, T, K]``; the least number there is means masked.
        scaling: Of the scores; ``D ** -0.5`` by default.
        dropout: Probability of dropping a weight, in training mode.
        position_bias: Added to the scores.
        softcap: Bound c of the scores, ``c * tanh(score / c)``.
        kwargs: What else a model passes.

    Returns:
        Context ``[B, T, H, D]`` and weights ``[B, H, T, K]``.

    Raises:
        ValueError: A keyword that changes the scores and is not known here, or a causal module without a mask.
    """
    _check(module, query, attention_mask, kwargs)
    observer = OBSERVER.get()
    if observer is not None:
        observer(module, query, key, dropout)
    groups = query.size(1) // key.size(1)
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = (query @ key.mT) * (query.size(-1) ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    if position_bias is not None:
        scores = scores + position_bias
    layout = Dense()
    if attention_mask is not None:
        # not by equality: sums of such numbers overflow to -inf in half precision
        allowed = attention_mask > torch.finfo(attention_mask.dtype).min / 2
        bias = attention_mask.masked_fill(~allowed, 0)
        if bias.any():  # nearly always the mask says nothing else, and one pass over the scores is saved
            scores = scores + bias
        layout = Dense(allowed)
    latent: LatentAttention | None = getattr(module, CHILD, None)
    if latent is None:
        weights = nn.functional.dropout(layout.softmax(scores), dropout, module.training).to(value.dtype)
        return (weights @ value).transpose(1, 2).contiguous(), weights
    if module.training:
        latent.dropout.p = float(dropout)
    context, weights = _sample(latent, scores, value, key, layout)
    return context.transpose(1, 2).contiguous(), weights


def fresh_name(name: str) -> str:
    """A site name that no trace of this run has yet: ``name``, ``name.1``, ``name.2``, ..."""
    traces = [handler.trace for handler in runtime._PYRO_STACK if isinstance(handler, TraceMessenger)]
    candidate, count = name, 0
    while any(candidate in trace for trace in traces):
        count += 1
        candidate = f"{name}.{count}"
    return candidate


def _sample(
    latent: LatentAttention, scores: Tensor, value: Tensor, key: Tensor, layout: Dense
) -> tuple[Tensor, Tensor]:
    """Context ``[B, H, T, D]`` and weights of one call, whose site has a name of its own."""
    if not pyro_runs_the_model():
        output = latent(scores, value, keys=key, layout=layout)
        return output.context, output.weights
    name = latent.name
    latent.name = fresh_name(name)
    try:
        with _plate(latent.name, len(scores)):
            output = latent(scores, value, keys=key, layout=layout)
    finally:
        latent.name = name
    if output.context.dim() != value.dim():
        raise ValueError(
            f"site '{name}': its weights have shape {tuple(output.weights.shape)}, expected {tuple(scores.shape)}; the "
            f"models of transformers do not broadcast over samples: use chunk_size=1 and vectorize_particles=False"
        )
    return output.context, output.weights


def _plate(name: str, size: int) -> AbstractContextManager[Any]:
    """The plate over a site's batch: the user's own, the run's, or one of the site, as for windows of an image."""
    plates = [handler for handler in runtime._PYRO_STACK if isinstance(handler, IndepMessenger)]
    if any(plate.dim == -1 for plate in plates):
        return nullcontext()
    plate = BATCH.get()
    if plate is not None and plate.size == size:
        return plate  # type: ignore[no-any-return]
    return pyro.plate(f"{name}.batch", size, dim=-1)


def _check(module: nn.Module, query: Tensor, attention_mask: Tensor | None, kwargs: dict[str, Any]) -> None:
    unknown = [name for name, given in kwargs.items() if given is not None and name not in _HARMLESS]
    if unknown:
        raise ValueError(
            f"{type(module).__name__} passes {', '.join(unknown)} to its attention, which may change the scores and is "
            f"not supported; convert a model without it, or keep this one as it is"
        )
    causal = kwargs.get("is_causal")
    if attention_mask is None and query.size(2) > 1 and (module.is_causal if causal is None else causal):
        raise ValueError(
            f"{type(module).__name__} is causal, but was given no attention mask: its model makes the mask in a way "
            f"that does not ask the mask interface of transformers, so later positions would be seen"
        )
