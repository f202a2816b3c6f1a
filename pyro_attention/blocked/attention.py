"""Attention of a latent site in blocks, from queries and keys instead of scores."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from pyro_attention._checks import as_float, check_boolean_mask, check_scores, in_transform
from pyro_attention.attention import AttentionOutput, LatentAttention, check_not_recomputed
from pyro_attention.blocked.distributions import BlockedCall, BlockedPrior, BlockedValue, Pairs
from pyro_attention.families.base import Prior
from pyro_attention.families.gamma import ContextualGammaPrior, FixedGammaPrior
from pyro_attention.families.lognormal import ContextualLogNormalPrior, FixedLogNormalPrior
from pyro_attention.normalizers import Softmax

__all__ = ["attend_blocked", "blocked_obstacle"]

# What the parameters of a prior depend on, as scores are never held; add a prior of your own. Subclasses are not meant:
# they may read more.
READS: dict[type[Prior], Literal["nothing", "keys"]] = {
    FixedGammaPrior: "nothing",
    FixedLogNormalPrior: "nothing",
    ContextualGammaPrior: "keys",
    ContextualLogNormalPrior: "keys",
}


def attend_blocked(
    attention: LatentAttention,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    key_mask: Tensor | None = None,
    query_mask: Tensor | None = None,
    causal: bool = False,
) -> AttentionOutput:
    """Attend with scores ``queries @ keys.T``, in memory that grows linearly with the length.

    Neither scores nor weights are held. The site's value is a :class:`BlockedValue`. Under a causal mask the KL of a
    contextual or LogNormal prior takes a second pass.

    Args:
        attention: The layer, which samples the site.
        queries: ``[..., H, M, D]``, already scaled.
        keys: ``[..., H, N, D]``, also those of a contextual prior.
        values: ``[..., H, N, Dv]``.
        key_mask: Boolean ``[..., N]``, True = may be attended to.
        query_mask: Boolean ``[..., M]``, True = may attend.
        causal: Query i sees the keys 0 .. i alone.

    Raises:
        ValueError: Something here is not blocked, or as in ``LatentAttention.forward``.
        TypeError: Queries, keys or values are not floating point, or a mask is not boolean.
        RuntimeError: Called from inside a backward pass (gradient checkpointing).

    Example:
        >>> from pyro_attention import FixedGammaPrior
        >>> attention = LatentAttention("attention", FixedGammaPrior())
        >>> q, k, v = torch.zeros(1, 2, 4), torch.zeros(1, 3, 4), torch.ones(1, 3, 5)
        >>> attend_blocked(attention, q, k, v).context.shape
        torch.Size([1, 2, 5])
    """
    site, prior = attention.name, attention.prior
    obstacle = blocked_obstacle(attention)
    if obstacle is None and in_transform(queries, keys, values):
        obstacle = "torch.export or the transforms of torch.func, such as vmap and grad"
    if obstacle is not None:
        raise ValueError(f"site '{site}': blocked attention does not support {obstacle}; use dense attention")
    check_not_recomputed(site)
    for name, vectors in (("queries", queries), ("keys", keys), ("values", values)):
        check_scores(vectors, site=site, name=name)
    for mask in (key_mask, query_mask):
        check_boolean_mask(mask)
    pairs = Pairs(queries, keys, key_mask, query_mask, causal, attention.normalize_scores and prior.normalizes)
    with torch.autocast(queries.device.type, enabled=False):
        blocked = BlockedPrior(prior, pairs, per_query=causal and READS[type(prior)] != "nothing", site=site)
        zero = as_float(queries).new_zeros(blocked.event_shape[0], 1, 1)
        call = BlockedCall(scores=zero, layout=pairs.layout(), site=site, pairs=pairs)
        value = attention.sample(call, blocked)
        if isinstance(value, BlockedValue):
            return AttentionOutput(context=value.attend(values), weights=None)
        weights = blocked.weights(value)  # given by a condition
    return AttentionOutput(context=weights.to(values.dtype) @ values, weights=weights)


def blocked_obstacle(attention: LatentAttention, *, training: bool | None = None) -> str | None:
    """Return the reason why a layer cannot be blocked; None when it can.

    Args:
        attention: The layer.
        training: Mode of its dropout; by default its present one.
    """
    prior, p = attention.prior, attention.dropout.p
    if type(attention.normalizer) is not Softmax:
        return f"the normalizer {type(attention.normalizer).__name__}, only Softmax"
    if type(prior) not in READS:
        return f"the prior {type(prior).__name__}, only Gamma and LogNormal priors that do not read the scores"
    if (attention.dropout.training if training is None else training) and p > 0:
        return f"dropout of the weights (here {p} in training mode)"
    return None
