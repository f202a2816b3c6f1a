"""Multi-head attention with torch.nn.MultiheadAttention's arguments and latent weights."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from pyro_attention._checks import as_float
from pyro_attention.attention import LatentAttention
from pyro_attention.blocked.attention import attend_blocked, blocked_obstacle
from pyro_attention.blocked.choice import Implementation, check_implementation, is_blocked, scores_shape, unsupported
from pyro_attention.families.gamma import ContextualGammaPrior
from pyro_attention.families.prior import Prior
from pyro_attention.layers.masks import Mask, check_batches, read_attn_mask, read_padding
from pyro_attention.layers.scores import ScaledDotProduct
from pyro_attention.layout import Dense
from pyro_attention.normalizers import Hybrid, Normalizer
from pyro_attention.output import AttentionOutput

__all__ = ["Implementation", "MultiheadAttention"]


class MultiheadAttention(nn.Module):
    r"""Multi-head attention whose weights are one sample site with event (heads, queries, keys).

    .. math:: \Phi_h = \frac{(X W^Q_h)(Z W^K_h)^\top}{\sqrt{d_h}}, \qquad O = [W_1 V_1, \dots, W_H V_H] W^O

    Arguments and shapes are those of :class:`torch.nn.MultiheadAttention` with ``batch_first=True``; under the guide
    ``Soft()``, and where Pyro does not run the model (see :class:`LatentAttention`), so is the result. Shapes that
    torch refuses are refused, but for more batch dimensions than one; where Pyro runs the model each of them must lie
    in a plate.

    Args:
        embed_dim: Width of queries and output.
        num_heads: Number of heads; divides ``embed_dim``.
        dropout: Dropout probability of the weights, in training mode.
        bias: Whether the projections have a bias.
        kdim: Width of the keys; ``embed_dim`` by default.
        vdim: Width of the values; ``embed_dim`` by default.
        name: Name of the sample site.
        prior: Prior network; a contextual Gamma prior shared by the heads by default.
        normalizer: From log weights to weights; softmax by default.
        normalize_scores: See :class:`LatentAttention`.
        implementation: "dense" holds scores and weights; "blocked" makes them block by block and again in backward,
            in memory that grows as the lengths and not as their product, and returns no weights: calls need
            ``need_weights=False``. "auto" is dense below 2**25 weights a call (34 million), and blocked from there on
            where it can be: with ``need_weights=False`` (not the default), no ``attn_mask``, :class:`Softmax`, a Gamma
            or LogNormal prior of this library, no dropout in training mode and, on a GPU, what the fused kernels take.
            Elsewhere it stays dense, and warns once unless the weights were asked for; beyond 2**31 weights (8.6 GB in
            float32) it raises instead, or, where nothing but the kernels is missing, is blocked with a warning.

    Raises:
        ValueError: ``num_heads`` does not divide ``embed_dim``, the normalizer has another number of heads, the
            implementation is unknown, or it is "blocked" and normalizer or prior are not supported.

    Example:
        >>> import pyro
        >>> from pyro_attention import AttentionGuide, Weibull
        >>> layer = MultiheadAttention(8, 2)
        >>> def model(x):
        ...     with pyro.plate("batch", x.size(0)):
        ...         return layer(x, x, x).context
        >>> AttentionGuide(model, Weibull())(torch.randn(5, 3, 8))["attention"].shape
        torch.Size([5, 2, 3, 3])

    Source: Vaswani et al. (2017); latent weights from Fan et al. (2020), Bayesian Attention Modules.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        kdim: int | None = None,
        vdim: int | None = None,
        name: str = "attention",
        prior: Prior | None = None,
        normalizer: Normalizer | None = None,
        normalize_scores: bool = True,
        implementation: Implementation = "auto",
    ) -> None:
        super().__init__()
        check_implementation(implementation)
        self.implementation: Implementation = implementation
        if num_heads < 1 or embed_dim % num_heads:
            raise ValueError(f"embed_dim {embed_dim} is not a multiple of num_heads {num_heads}")
        if isinstance(normalizer, Hybrid) and normalizer.logit.numel() not in (1, num_heads):
            raise ValueError(
                f"site '{name}': Hybrid has {normalizer.logit.numel()} mixing weights, the attention {num_heads} "
                f"heads; pass Hybrid(heads={num_heads})"
            )
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.k_proj = nn.Linear(embed_dim if kdim is None else kdim, embed_dim, bias=bias)
        self.v_proj = nn.Linear(embed_dim if vdim is None else vdim, embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.score = ScaledDotProduct()
        self.attention = LatentAttention(
            name,
            ContextualGammaPrior(embed_dim // num_heads) if prior is None else prior,
            normalizer=normalizer,
            dropout=dropout,
            normalize_scores=normalize_scores,
        )
        obstacle = blocked_obstacle(self.attention, training=False)  # dropout may be meant for dense training
        if implementation == "blocked" and obstacle is not None:
            raise unsupported(name, obstacle)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier-uniform weights and zero biases, as torch does."""
        for linear in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            nn.init.xavier_uniform_(linear.weight)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    @classmethod
    @torch.no_grad()
    def from_torch(
        cls, layer: nn.MultiheadAttention, *, name: str = "attention", prior: Prior | None = None
    ) -> MultiheadAttention:
        """Copy of a trained torch layer, on its device, in its dtype and mode (training or evaluation).

        Raises:
            ValueError: The layer is not ``batch_first``, or uses ``add_bias_kv`` or ``add_zero_attn``.
        """
        if not layer.batch_first or layer.bias_k is not None or layer.add_zero_attn:
            raise ValueError(
                f"cannot copy a layer with batch_first={layer.batch_first}, add_bias_kv={layer.bias_k is not None}, "
                f"add_zero_attn={layer.add_zero_attn}; expected batch_first=True and the other two False"
            )
        bias = layer.in_proj_bias is not None
        new = cls(
            layer.embed_dim, layer.num_heads, layer.dropout, bias,
            kdim=layer.kdim, vdim=layer.vdim, name=name, prior=prior,
        )  # fmt: skip
        new.to(layer.out_proj.weight)
        if layer.in_proj_weight is not None:
            weights = layer.in_proj_weight.chunk(3)
        else:
            weights = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
        for linear, weight in zip((new.q_proj, new.k_proj, new.v_proj), weights, strict=True):
            linear.weight.copy_(weight)
        if bias:
            for linear, value in zip((new.q_proj, new.k_proj, new.v_proj), layer.in_proj_bias.chunk(3), strict=True):
                linear.bias.copy_(value)
        new.out_proj.load_state_dict(layer.out_proj.state_dict())
        return new.train(layer.training)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        query_padding_mask: Tensor | None = None,
    ) -> AttentionOutput:
        """Attend from every query to the keys.

        Args:
            query: ``[..., M, embed_dim]``.
            key: ``[..., N, kdim]``.
            value: ``[..., N, vdim]``.
            key_padding_mask: ``[..., N]``; boolean with True = ignore, or float, added to the scores (-inf = ignore).
            need_weights: Whether to return the weights.
            attn_mask: ``[M, N]``, ``[batch * heads, M, N]`` (``[heads, M, N]`` without a batch) or
                ``[..., heads, M, N]``; boolean with True = ignore, or float, added to the scores (-inf = ignore).
            average_attn_weights: Average the returned weights over heads.
            is_causal: Let no query attend to later keys; adds to the other masks.
            query_padding_mask: ``[..., M]``; boolean with True = attends to nothing, or float, 0 or -inf; in
                self-attention the ``key_padding_mask``. It takes padded queries out of the KL and of normalisation over
                queries.

        Returns:
            Context ``[..., M, embed_dim]``; weights ``[..., heads, M, N]``, or ``[..., M, N]`` when averaged. Like
            torch's they are those that made the context: after dropout in training mode.

        Raises:
            ValueError: Shapes do not fit; a mask has NaN; the implementation is "blocked" and something asked for is
                not, or "auto" and so for more than 2**31 weights; or a normalizer over queries meets a causal mask, or
                padded keys without a ``query_padding_mask``.
            TypeError: An input is no floating-point tensor, or a mask is neither boolean nor floating point.
        """
        self._check(query, key, value)
        q, k, v = (
            self._heads(self.q_proj(query)),
            self._heads(self.k_proj(key)),
            self._heads(self.v_proj(value)),
        )
        shape = scores_shape(q, k)
        keys = read_padding("key_padding_mask", key_padding_mask, shape, -1)
        queries = self._queries(query_padding_mask, shape, keys)
        obstacle, site = self._obstacle(attn_mask, keys, need_weights), self.attention.name
        if is_blocked(self.implementation, q, k, v, site=site, obstacle=obstacle, wanted=need_weights):
            return self._attend_blocked(q, k, v, keys.allowed, queries.allowed, is_causal)
        scores = self.score(q, k)
        mask = read_attn_mask(attn_mask, shape) & keys[..., None, None, :] & queries[..., None, :, None]
        if mask.bias is not None:
            scores = scores + mask.bias.to(scores.dtype)
        if is_causal:
            mask &= Mask(torch.ones(shape[-2:], dtype=torch.bool, device=scores.device).tril())
        layout = Dense(mask.allowed, causal=True if is_causal else None)
        output: AttentionOutput = self.attention(scores, v, keys=k, layout=layout)
        context = self.out_proj(output.context.transpose(-3, -2).flatten(-2))
        weights = output.weights if need_weights else None
        if weights is not None and average_attn_weights:
            weights = weights.mean(-3)
        return replace(output, context=context, weights=weights)

    def _obstacle(self, attn_mask: Tensor | None, keys: Mask, need_weights: bool) -> str | None:
        """What keeps a call from being blocked; None when nothing does."""
        if need_weights:
            return "need_weights=True, as it never holds all weights; pass need_weights=False, and draw some by \
sample_posterior"
        if attn_mask is not None:
            return "attn_mask, only key_padding_mask, query_padding_mask and is_causal"
        if self.implementation != "dense" and keys.has_bias:
            return "a key_padding_mask with numbers other than 0 and -inf"
        if type(self.score) is not ScaledDotProduct:
            return f"scores by {type(self.score).__name__}, only ScaledDotProduct"
        return blocked_obstacle(self.attention)

    def _attend_blocked(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None,
        query_mask: Tensor | None,
        is_causal: bool,
    ) -> AttentionOutput:
        queries = as_float(q) / math.sqrt(q.size(-1))
        output = attend_blocked(
            self.attention, queries, k, v, key_mask=key_mask, query_mask=query_mask, causal=is_causal
        )
        return replace(output, context=self.out_proj(output.context.transpose(-3, -2).flatten(-2)))

    def _heads(self, projected: Tensor) -> Tensor:
        heads: Tensor = projected.unflatten(-1, (self.num_heads, -1))
        return heads.transpose(-3, -2)

    def _queries(self, query_padding_mask: Tensor | None, shape: torch.Size, keys: Mask) -> Mask:
        """Which queries may attend at all."""
        if keys.allowed is not None and query_padding_mask is None and self.attention.normalizer.over_queries:
            raise ValueError(
                f"site '{self.attention.name}': {type(self.attention.normalizer).__name__} normalises over queries, "
                f"and padded ones would take weight from the others; pass query_padding_mask= as well (in "
                f"self-attention the key_padding_mask, one that ignores nothing where no query is padded)"
            )
        queries = read_padding("query_padding_mask", query_padding_mask, shape, -2)
        if queries.has_bias:
            raise ValueError(
                "query_padding_mask has numbers other than 0 and -inf, but nothing is added to the scores of a query; "
                "pass a boolean mask, True = attends to nothing"
            )
        return Mask(queries.allowed)

    def _check(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        for name, tensor, linear in (
            ("query", query, self.q_proj),
            ("key", key, self.k_proj),
            ("value", value, self.v_proj),
        ):
            if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
                kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
                raise TypeError(f"{name} is of type {kind}, expected a floating-point tensor [..., length, width]")
            if tensor.dim() < 2 or tensor.size(-1) != linear.in_features:
                raise ValueError(
                    f"{name} has shape {tuple(tensor.shape)}, expected [..., length, {linear.in_features}]"
                )
        if key.size(-2) != value.size(-2):
            raise ValueError(f"key has {key.size(-2)} positions and value {value.size(-2)}, expected the same number")
        check_batches(query, key, value)
