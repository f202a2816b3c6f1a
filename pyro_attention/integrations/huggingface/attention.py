"""The attention function that transformers calls in place of its own, and the masks that it makes for it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from importlib import import_module

import pyro
import torch
from pyro.poutine.indep_messenger import IndepMessenger
from torch import Tensor, nn

from pyro_attention._checks import IGNORED_SCORE, as_float
from pyro_attention._compat import active_handlers
from pyro_attention._typing import Kwargs
from pyro_attention.attention import AttentionOutput, pyro_runs_the_model
from pyro_attention.families.base import Prior
from pyro_attention.integrations._sites import RepeatedAttention, fresh_name
from pyro_attention.layout import Dense

__all__ = [
    "BATCH", "CHILD", "DECODER_MASK", "GENERATES", "NAME", "OBSERVER", "SiteAttention", "attend", "batch_plate",
    "compact_mask",
]  # fmt: skip

NAME = "pyro_attention"  # neutral: transformers reads meanings into names with "sdpa" or "flash"
CHILD = "latent_attention"  # the submodule of an attention module that holds its LatentAttention

# The plate over the batch of the current run, the decoder's positions that are no padding ``[B, T]``, where it is told
# of any, whether ``generate`` calls, and the observer of every call (the probe).
BATCH: ContextVar[pyro.plate | None] = ContextVar("BATCH", default=None)
DECODER_MASK: ContextVar[Tensor | None] = ContextVar("DECODER_MASK", default=None)
GENERATES: ContextVar[bool] = ContextVar("GENERATES", default=False)
OBSERVER: ContextVar[Callable[[nn.Module, Tensor, Tensor], None] | None] = ContextVar("OBSERVER", default=None)

# What models pass on that changes no score, or changes them through the mask; all else is refused.
_HARMLESS = {
    "cache_position", "cu_seq_lens_k", "cu_seq_lens_q", "deterministic", "is_causal", "labels", "max_length_k",
    "max_length_q", "num_items_in_batch", "output_attentions", "output_hidden_states", "position_ids", "return_dict",
    "sliding_window", "token_type_ids", "use_cache",
}  # fmt: skip


class SiteAttention(RepeatedAttention):
    """Latent weights of one attention module.

    Args:
        name: Name of the site.
        prior: Prior of the weights.
        self_attention: Whether queries are at the positions of the keys.
    """

    def __init__(self, name: str, prior: Prior, *, self_attention: bool) -> None:
        super().__init__(name, prior)
        self.self_attention = self_attention


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
    **kwargs: object,
) -> tuple[Tensor, Tensor | None]:
    """Attend by the module's :class:`LatentAttention`, or by softmax where it has none.

    Args:
        module: Attention module that calls.
        query: ``[B, H, T, D]``.
        key: ``[B, G, K, D]``, where G divides H (grouped queries).
        value: ``[B, G, K, D]``.
        attention_mask: Numbers that are added to the scores, broadcastable to ``[B, H, T, K]``, -10 000 or less at
            masked keys, such as the least number of their type; or boolean, True = attends.
        scaling: Factor of the scores; ``D ** -0.5`` by default.
        dropout: Probability of dropping a weight, in training mode.
        position_bias: Added to the scores.
        softcap: Bound c of the scores, ``c * tanh(score / c)``.
        kwargs: Further arguments that a model passes; those that would change scores are refused.

    Returns:
        Context ``[B, T, H, D]`` and weights ``[B, H, T, K]``.

    Raises:
        ValueError: The module passes arguments that change scores in a way that is not supported.
    """
    _check(module, query, attention_mask, kwargs)
    observer = OBSERVER.get()
    if observer is not None:
        observer(module, query, key)
    groups = query.size(1) // key.size(1)
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = (query @ key.mT) * (query.size(-1) ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    if position_bias is not None:
        scores = scores + position_bias
    scores, layout = _masked(scores, attention_mask)
    layout = replace(layout, causal=_is_causal(module, kwargs))
    latent: SiteAttention | None = getattr(module, CHILD, None)
    if latent is None:
        weights = nn.functional.dropout(layout.softmax(as_float(scores)), dropout, module.training).to(value.dtype)
        return (weights @ value).transpose(1, 2).contiguous(), weights
    if module.training:
        latent.dropout.p = float(dropout)  # predict draws dropout in evaluation mode too, where models pass 0
    attention = partial(_sample, latent) if pyro_runs_the_model() else latent
    output: AttentionOutput = attention(scores, value, keys=key, queries=query, layout=layout)
    return output.context.transpose(1, 2).contiguous(), output.weights


def _is_causal(module: nn.Module, kwargs: Kwargs) -> bool:
    """Return whether a call, or else its module, forbids queries to attend to later positions."""
    said = kwargs.get("is_causal")
    return bool(getattr(module, "is_causal", False) if said is None else said)


def _masked(scores: Tensor, mask: Tensor | None) -> tuple[Tensor, Dense]:
    """Add the numbers of a mask to the scores; return them with the layout of the allowed keys."""
    if mask is None or mask.dtype == torch.bool:
        return scores, Dense(mask)
    allowed = mask > IGNORED_SCORE  # a mask of the user's own may have -1e9: as a score it would enter the KL
    bias = mask.masked_fill(~allowed, 0)
    # nearly always the mask says nothing else; a GPU would have to wait for the answer, which costs more than the pass
    return scores + bias if not bias.is_cpu or bias.any() else scores, Dense(allowed)


def batch_plate(name: str, size: int) -> AbstractContextManager[object]:
    """Return the plate over a batch: that of the user, of the current run, or of the site, as for image windows."""
    plates = [handler for handler in active_handlers() if isinstance(handler, IndepMessenger)]
    if any(plate.dim == -1 for plate in plates):
        return nullcontext()
    plate = BATCH.get()
    if plate is not None and plate.size == size:
        return plate
    return pyro.plate(fresh_name(name), size, dim=-1)


def _sample(
    latent: SiteAttention, scores: Tensor, value: Tensor, *, layout: Dense, **vectors: Tensor
) -> AttentionOutput:
    """Return the output of one call in a run, whose site has a name of its own."""
    with batch_plate(f"{latent.name}.batch", len(scores)):
        output: AttentionOutput = latent(scores, value, layout=_without_padding(layout, scores, latent), **vectors)
        if output.context.dim() != value.dim():
            raise ValueError(
                f"site '{latent.name}': one pass draws weights of shape {tuple(output.context.shape[:-1])}, but the "
                f"models of transformers have no dimension for draws; the objectives and posterior functions of this "
                f"library draw one by one here, elsewhere take single runs in a loop, without a plate around the model"
            )
        return output


def _without_padding(layout: Dense, scores: Tensor, latent: SiteAttention) -> Dense:
    """Return the layout whose padded queries do not count.

    In self-attention a position that no query may attend to is padding. What its own query draws reaches no other
    position, so it has no part in the KL. In cross-attention the queries are the decoder's positions.
    """
    if not latent.self_attention:
        decoder = DECODER_MASK.get()
        if decoder is None or decoder.shape != (len(scores), scores.size(-2)):
            return layout
        return replace(layout, counted=decoder[:, None, :, None].to(scores.device))
    if layout.mask is None or scores.size(-2) != scores.size(-1):
        return layout
    attended = layout.mask.any(-2).unsqueeze(-1)
    return layout if attended.size(-2) != scores.size(-1) else replace(layout, counted=attended)


def _check(module: nn.Module, query: Tensor, mask: Tensor | None, kwargs: Kwargs) -> None:
    """Raise ValueError where a call asks for scores that are not made here."""
    unknown = [name for name, given in kwargs.items() if given is not None and name not in _HARMLESS]
    if unknown:
        raise ValueError(
            f"{type(module).__name__} passes {', '.join(unknown)} to its attention, expected nothing that may change "
            f"scores but position_bias and softcap: this family is not supported, its weights would be others"
        )
    if mask is None and query.size(2) > 1 and _is_causal(module, kwargs):
        raise ValueError(
            f"{type(module).__name__} is causal, but was given no attention mask: its model does not ask the mask "
            f"interface of transformers for one, so positions would see later ones; this family is not supported"
        )


def compact_mask(*, dtype: torch.dtype = torch.float32, **kwargs: object) -> Tensor | None:
    """Return the mask that eager attention adds to its scores, with one row where all queries have the same keys.

    A contextual prior is then one distribution a key, and not one a query and key, which costs many times as much.

    Returns:
        ``[B, 1, T, K]``, or ``[B, 1, 1, K]`` as for padding alone: 0 where a query attends, the least number elsewhere.
        None where nothing is masked in attention that is not causal.
    """
    masking = import_module("transformers.masking_utils")
    # a decoder always gets one: without, it would be causal only by what its module says
    allowed = masking.sdpa_mask(**kwargs | {"allow_is_causal_skip": False})
    if allowed is None:
        return None
    row = allowed[..., :1, :]
    if torch.equal(allowed, row.expand_as(allowed)):
        allowed = row
    return torch.where(allowed, torch.zeros((), dtype=dtype, device=allowed.device), torch.finfo(dtype).min)
