"""Multi-head attention with torch.nn.MultiheadAttention's arguments and latent weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

import torch
from torch import Tensor, nn

from pyro_attention.attention import AttentionOutput, LatentAttention
from pyro_attention.families.base import Prior
from pyro_attention.families.gamma import ContextualGammaPrior
from pyro_attention.layers.scores import ScaledDotProduct
from pyro_attention.layers.torch_layer import (
    Mask,
    TorchLayer,
    check_inputs,
    check_layer,
    projections,
    read_attn_mask,
    read_padding,
    scores_shape,
)
from pyro_attention.layout import Dense
from pyro_attention.normalizers import Normalizer, Softmax

__all__ = ["MultiheadAttention"]


class MultiheadAttention(TorchLayer):
    r"""Multi-head attention whose weights are one sample site with event (heads, queries, keys).

    .. math:: \Phi_h = \frac{(X W^Q_h)(Z W^K_h)^\top}{\sqrt{d_h}}, \qquad O = [W_1 V_1, \ldots, W_H V_H] W^O

    Stands where :class:`torch.nn.MultiheadAttention` with ``batch_first=True`` stood, such as in an
    ``nn.TransformerEncoder`` or a vision transformer: it is one by its class, is called in the same way and returns the
    same pair; :meth:`attend` returns an :class:`AttentionOutput`. Under the guide ``Soft()``, and where Pyro does not
    run the model (see :class:`LatentAttention`), the numbers are the same, too.

    ============================================  ==================================================================
    torch                                         here
    ============================================  ==================================================================
    ``embed_dim, num_heads, dropout, bias``       the same
    ``kdim, vdim``                                the same, by keyword
    ``batch_first``                               always True
    ``add_bias_kv, add_zero_attn``                not supported
    ``device, dtype``                             ``layer.to(device, dtype)``
    ``key_padding_mask, attn_mask``               the same, boolean or float; a row without any key gives zero, not NaN
    ``need_weights, average_attn_weights``        the same
    ``is_causal``                                 makes the mask itself; ``attn_mask`` is not needed beside it
    unbatched input                               the same; also more batch dimensions than one
    ``torch.export``                              the same, always dense; numbers are not checked
    nested tensors, the fused path in eval mode   not supported; torch's encoders call the layer instead
    ============================================  ==================================================================

    Where Pyro runs the model, every batch dimension must lie in a plate. A torch encoder passes no
    ``query_padding_mask``: padded queries stay in the KL there, and a normalizer over queries refuses padding.

    Args:
        embed_dim: Width of queries and output.
        num_heads: Number of heads; divides ``embed_dim``.
        dropout: Dropout probability of the weights, in training mode.
        bias: Whether the projections have a bias.
        kdim: Width of the keys; ``embed_dim`` by default.
        vdim: Width of the values; ``embed_dim`` by default.
        name: Name of the sample site; by default the path of the layer in the model, see :func:`name_sites`.
        prior: Prior network; a contextual Gamma prior shared by the heads by default.
        normalizer: From log weights to weights; softmax by default.
        normalize_scores: See :class:`LatentAttention`.

    Raises:
        ValueError: ``num_heads`` does not divide ``embed_dim``, or the normalizer has another number of heads.

    Example:
        >>> import pyro
        >>> from pyro_attention import AttentionGuide, Weibull
        >>> layer = MultiheadAttention(8, 2)
        >>> def model(x):
        ...     with pyro.plate("batch", x.size(0)):
        ...         return layer(x, x, x)[0]
        >>> AttentionGuide(model, Weibull())(torch.randn(5, 3, 8))["attention"].shape
        torch.Size([5, 2, 3, 3])

    Source: Vaswani et al. (2017); latent weights from Fan et al. (2020), Bayesian Attention Modules.
    """

    default_name = "attention"

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        kdim: int | None = None,
        vdim: int | None = None,
        name: str | None = None,
        prior: Prior | None = None,
        normalizer: Normalizer | None = None,
        normalize_scores: bool = True,
    ) -> None:
        super().__init__()
        if num_heads < 1 or embed_dim % num_heads:
            raise ValueError(f"embed_dim {embed_dim} is not a multiple of num_heads {num_heads}")
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.k_proj = nn.Linear(embed_dim if kdim is None else kdim, embed_dim, bias=bias)
        self.v_proj = nn.Linear(embed_dim if vdim is None else vdim, embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)  # type: ignore[assignment]
        self.score = ScaledDotProduct()
        prior = ContextualGammaPrior(embed_dim // num_heads) if prior is None else prior
        self.attention = LatentAttention(
            name or self.default_name, prior, normalizer=normalizer, dropout=dropout, normalize_scores=normalize_scores
        )
        self.attention.default_name = self.default_name if name is None else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier-uniform weights and zero biases, as torch does."""
        for linear in self._linears():
            nn.init.xavier_uniform_(linear.weight)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    _reset_parameters = reset_parameters  # what models call that hold torch's layer

    @classmethod
    @torch.no_grad()
    def from_torch(cls, layer: nn.MultiheadAttention, *, name: str | None = None, prior: Prior | None = None) -> Self:
        """Copy of a trained torch layer, on its device, in its dtype and mode; frozen weights stay frozen.

        :func:`pyro_attention.integrations.torch_nn.bayesian` copies all layers of a model.

        Raises:
            TypeError: It is another layer, or one with a forward of its own.
            ValueError: The layer is not ``batch_first``, uses ``add_bias_kv`` or ``add_zero_attn``, has parametrised
                weights, or has hooks.
        """
        check_layer(layer, batch_first=cls.batch_first)
        new = cls(
            layer.embed_dim, layer.num_heads, layer.dropout, layer.in_proj_bias is not None,
            kdim=layer.kdim, vdim=layer.vdim, name=name, prior=prior,
        )  # fmt: skip
        new.to(layer.out_proj.weight)
        for linear, state in zip(new._linears(), projections(layer), strict=True):
            linear.load_state_dict(state)
            for key, source in state.items():
                linear.get_parameter(key).requires_grad_(source.requires_grad)
        return new.train(layer.training)

    @torch.no_grad()
    def to_torch(self) -> nn.MultiheadAttention:
        """Copy as a torch layer with the trained weights, and without the prior.

        Raises:
            ValueError: The normalizer is not :class:`Softmax`, or the scores no scaled dot products.
        """
        normalizer, score = self.attention.normalizer, self.score
        if type(normalizer) is not Softmax or type(score) is not ScaledDotProduct:
            raise ValueError(
                f"site '{self.attention.name}': torch's layer has no {type(normalizer).__name__} of "
                f"{type(score).__name__}, expected Softmax of ScaledDotProduct"
            )
        q, k, v, out = self._linears()
        layer = nn.MultiheadAttention(
            self.embed_dim, self.num_heads, self.attention.dropout.p, out.bias is not None,
            kdim=k.in_features, vdim=v.in_features, batch_first=self.batch_first,
        ).to(out.weight)  # fmt: skip
        for linear, state in zip((q, k, v, out), projections(layer), strict=True):
            for key, packed in state.items():
                packed.detach().copy_(linear.get_parameter(key))
        for name, parameter in layer.named_parameters():
            key = "bias" if "bias" in name else "weight"
            sources = [out] if name.startswith("out") else [q, k, v]
            parameter.requires_grad_(any(linear.get_parameter(key).requires_grad for linear in sources))
        return layer.train(self.training)

    def _linears(self) -> tuple[nn.Linear, nn.Linear, nn.Linear, nn.Linear]:
        return self.q_proj, self.k_proj, self.v_proj, self.out_proj

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
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from every query to the keys.

        Args:
            query: ``[..., M, embed_dim]``.
            key: ``[..., N, kdim]``.
            value: ``[..., N, vdim]``.
            key_padding_mask: ``[..., N]``; boolean with True = ignore, or float, added to the scores; -10 000 and less,
                such as -1e9 and -inf, ignores a key, too.
            need_weights: Whether to return the weights.
            attn_mask: ``[M, N]``, ``[batch * heads, M, N]`` (``[heads, M, N]`` without a batch) or
                ``[..., heads, M, N]``; boolean with True = ignore, or float, as the ``key_padding_mask``.
            average_attn_weights: Average the returned weights over heads.
            is_causal: Let no query attend to later keys; adds to the other masks.
            query_padding_mask: ``[..., M]``; boolean with True = attends to nothing, or float, 0 or -inf; in
                self-attention the ``key_padding_mask``. It takes padded queries out of the KL and of normalisation over
                queries.

        Returns:
            Context ``[..., M, embed_dim]``, and the weights ``[..., M, N]``, or ``[..., heads, M, N]`` where they are
            not averaged; None where they are not needed. Like torch's they are those that made the context: after
            dropout in training mode.

        Raises:
            ValueError: Shapes do not fit; a mask has NaN; or a normalizer over queries meets ``is_causal``, or padded
                keys without a ``query_padding_mask``.
            TypeError: An input is no floating-point tensor, or a mask is neither boolean nor floating point.
        """
        masks = key_padding_mask, need_weights, attn_mask, is_causal
        output = self.attend(query, key, value, *masks, query_padding_mask=query_padding_mask)
        weights = output.weights
        return output.context, weights.mean(-3) if weights is not None and average_attn_weights else weights

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        *,
        query_padding_mask: Tensor | None = None,
    ) -> AttentionOutput:
        """The same as a call, which tells of the arguments, with an :class:`AttentionOutput`.

        Returns:
            Context, and weights ``[..., heads, M, N]``, which are never averaged.
        """
        check_inputs(
            {"query": query, "key": key, "value": value},
            [linear.in_features for linear in (self.q_proj, self.k_proj, self.v_proj)],
        )
        q, k, v = self._heads(self.q_proj(query)), self._heads(self.k_proj(key)), self._heads(self.v_proj(value))
        shape = scores_shape(q, k)
        keys = read_padding("key_padding_mask", key_padding_mask, shape, -1)
        queries = self._queries(query_padding_mask, shape, keys)
        output = self.attend_heads(q, k, v, keys, queries, attn_mask, is_causal=is_causal, need_weights=need_weights)
        context = self.out_proj(output.context.transpose(-3, -2).flatten(-2))
        return replace(output, context=context, weights=output.weights if need_weights else None)

    def attend_heads(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        keys: Mask,
        queries: Mask,
        attn_mask: Tensor | None,
        *,
        is_causal: bool,
        need_weights: bool,  # noqa: ARG002
    ) -> AttentionOutput:
        """What the heads attend to, before the output projection, of projected vectors ``[..., H, M or N, D]``."""
        shape = scores_shape(q, k)
        mask = read_attn_mask(attn_mask, shape) & keys[..., None, None, :] & queries[..., None, :, None]
        if is_causal:
            mask &= Mask(torch.ones(shape[-2:], dtype=torch.bool, device=q.device).tril())
        scores: Tensor = self.score(q, k)
        if mask.bias is not None:
            scores = scores + mask.bias.to(scores.dtype)
        return self.attention(scores, v, keys=k, layout=Dense(mask.allowed, causal=is_causal))  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"{self.embed_dim}, {self.num_heads}, kdim={self.k_proj.in_features}, vdim={self.v_proj.in_features}"

    def _heads(self, projected: Tensor) -> Tensor:
        heads: Tensor = projected.unflatten(-1, (self.num_heads, -1))
        return heads.transpose(-3, -2)

    def _queries(self, query_padding_mask: Tensor | None, shape: torch.Size, keys: Mask) -> Mask:
        """Which queries may attend at all."""
        if keys.allowed is not None and query_padding_mask is None and self.attention.normalizer.over_queries:
            raise ValueError(
                f"site '{self.attention.name}': {type(self.attention.normalizer).__name__} normalises over queries, so "
                f"padded ones take weight from the others; pass query_padding_mask= too (of zeros if none is padded)"
            )
        queries = read_padding("query_padding_mask", query_padding_mask, shape, -2)
        if queries.has_bias:
            raise ValueError(
                "query_padding_mask has numbers other than 0 and -inf, but a query's scores have no such term; pass a "
                "boolean mask, True = attends to nothing"
            )
        return Mask(queries.allowed)
