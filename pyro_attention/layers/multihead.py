"""Multi-head attention with torch.nn.MultiheadAttention's arguments and latent weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Self

import torch
from torch import Tensor, nn

from pyro_attention._checks import IGNORED_SCORE, in_transform
from pyro_attention._compat import validates_distributions
from pyro_attention.alignments.priors import AlignmentPrior
from pyro_attention.attention import AttentionOutput, LatentAttention
from pyro_attention.families.base import Prior
from pyro_attention.families.gamma import ContextualGammaPrior
from pyro_attention.layers.scores import ScaledDotProduct
from pyro_attention.layout import Dense
from pyro_attention.normalizers import Normalizer, Softmax

__all__ = ["Mask", "MultiheadAttention", "scores_shape"]


class _NoFastPath:
    """Replacement of the packed weight: torch's encoders call the layer, no kernel, where it overrides functions."""

    @classmethod
    def __torch_function__(cls, func: object, types: object, args: object = (), kwargs: object = None) -> object:
        return NotImplemented


class _TorchLayer(nn.MultiheadAttention):
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


class MultiheadAttention(_TorchLayer):
    r"""Multi-head attention whose weights are one sample site with event (heads, queries, keys).

    .. math:: \Phi_h = \frac{(X W^Q_h)(Z W^K_h)^\top}{\sqrt{d_h}}, \qquad O = [W_1 V_1, \ldots, W_H V_H] W^O

    It replaces :class:`torch.nn.MultiheadAttention` with ``batch_first=True``, such as in an ``nn.TransformerEncoder``
    or a vision transformer: it is a subclass, and arguments and results of a call are equal; :meth:`attend` returns an
    :class:`AttentionOutput`. Under the guide ``Soft()``, and where Pyro does not run the model (see
    :class:`LatentAttention`), the numbers are the same, too.

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
        ValueError: ``num_heads`` does not divide ``embed_dim``, the prior is one of alignments, or the normalizer has
            another number of heads.

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
        if isinstance(prior, AlignmentPrior):
            raise ValueError(
                f"prior is {prior}, but {type(self).__name__} holds all queries and heads in one site, and an "
                f"alignment is one head of one query; use LatentAttention with layout=Dense(event_dim=2) and the "
                f"queries in a plate, or another prior: of weights, such as FixedGammaPrior(), or of relaxed "
                f"alignments, DirichletPrior()"
            )
        self.attention = LatentAttention(
            name or self.default_name, prior, normalizer=normalizer, dropout=dropout, normalize_scores=normalize_scores
        )
        self.attention.default_name = self.default_name if name is None else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw Xavier-uniform weights and set zero biases, as torch does."""
        for linear in self._linears():
            nn.init.xavier_uniform_(linear.weight)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    _reset_parameters = reset_parameters  # what models call that hold torch's layer

    @classmethod
    @torch.no_grad()
    def from_torch(cls, layer: nn.MultiheadAttention, *, name: str | None = None, prior: Prior | None = None) -> Self:
        """Copy a trained torch layer, on its device, in its dtype and mode; frozen weights stay frozen.

        :func:`pyro_attention.integrations.torch_nn.bayesian` copies all layers of a model.

        Args:
            layer: The torch layer.
            name: Name of the sample site; the path of the layer by default.
            prior: Prior of the weights.

        Raises:
            TypeError: It is no ``nn.MultiheadAttention``, or a subclass with its own ``forward``.
            ValueError: The layer is not ``batch_first``, uses ``add_bias_kv`` or ``add_zero_attn``, or has hooks.
        """
        _check_layer(layer, batch_first=cls.batch_first)
        new = cls(
            layer.embed_dim, layer.num_heads, layer.dropout, layer.in_proj_bias is not None,
            kdim=layer.kdim, vdim=layer.vdim, name=name, prior=prior,
        )  # fmt: skip
        new.to(layer.out_proj.weight)
        for linear, state in zip(new._linears(), _projections(layer), strict=True):
            linear.load_state_dict(state)
            for key, source in state.items():
                linear.get_parameter(key).requires_grad_(source.requires_grad)
        return new.train(layer.training)

    @torch.no_grad()
    def to_torch(self) -> nn.MultiheadAttention:
        """Return a torch layer with the trained weights, and without the prior.

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
        for linear, state in zip((q, k, v, out), _projections(layer), strict=True):
            for key, packed in state.items():
                packed.detach().copy_(linear.get_parameter(key))
        for name, parameter in layer.named_parameters():
            key = "bias" if "bias" in name else "weight"
            sources = [out] if name.startswith("out") else [q, k, v]
            parameter.requires_grad_(any(linear.get_parameter(key).requires_grad for linear in sources))
        return layer.train(self.training)

    def _linears(self) -> tuple[nn.Linear, nn.Linear, nn.Linear, nn.Linear]:
        """Return the projections of queries, keys, values and output, in torch's order."""
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
                self-attention the ``key_padding_mask``. It takes padded queries out of the KL and of normalization over
                queries.

        Returns:
            Context ``[..., M, embed_dim]``, and the weights ``[..., M, N]``, or ``[..., heads, M, N]`` where they are
            not averaged; None where they are not needed. As in torch, dropout has been applied to them in training
            mode.

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
        """Attend as :meth:`forward`, but return an :class:`AttentionOutput`.

        Returns:
            Context, and weights ``[..., heads, M, N]``, which are never averaged.
        """
        _check_inputs(
            {"query": query, "key": key, "value": value},
            [linear.in_features for linear in (self.q_proj, self.k_proj, self.v_proj)],
        )
        q, k, v = self._heads(self.q_proj(query)), self._heads(self.k_proj(key)), self._heads(self.v_proj(value))
        k = k.contiguous()  # once, as scores and a contextual prior both want them so
        shape = scores_shape(q, k)
        keys = _read_padding("key_padding_mask", key_padding_mask, shape, -1)
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
        """Attend with projected vectors ``[..., H, M or N, D]``, before the output projection.

        A subclass that holds no weights reads ``need_weights``.
        """
        shape = scores_shape(q, k)
        keys, queries = keys.each(lambda x: x[..., None, None, :]), queries.each(lambda x: x[..., None, :, None])
        mask = _read_attn_mask(attn_mask, shape) & keys & queries
        if is_causal:
            mask &= Mask(torch.ones(shape[-2:], dtype=torch.bool, device=q.device).tril())
        scores: Tensor = self.score(q, k)
        if mask.bias is not None:
            scores = scores + mask.bias.to(scores.dtype)
        layout = Dense(mask.allowed, causal=is_causal)
        output: AttentionOutput = self.attention(scores, v, keys=k, queries=q, layout=layout)
        return output

    def _heads(self, projected: Tensor) -> Tensor:
        heads: Tensor = projected.unflatten(-1, (self.num_heads, -1))
        return heads.transpose(-3, -2)

    def _queries(self, query_padding_mask: Tensor | None, shape: torch.Size, keys: Mask) -> Mask:
        """Return the mask of the queries that may attend at all."""
        if keys.allowed is not None and query_padding_mask is None and self.attention.normalizer.over_queries:
            raise ValueError(
                f"site '{self.attention.name}': {type(self.attention.normalizer).__name__} normalizes over queries, so "
                f"padded ones take weight from the others; pass query_padding_mask= too (of zeros if none is padded)"
            )
        queries = _read_padding("query_padding_mask", query_padding_mask, shape, -2)
        if queries.has_bias:
            raise ValueError(
                "query_padding_mask has numbers other than 0 and -inf, but a query's scores have no such term; pass a "
                "boolean mask, True = attends to nothing"
            )
        return Mask(queries.allowed)


def _check_layer(layer: nn.MultiheadAttention, *, batch_first: bool) -> None:
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
    if any(module._forward_hooks or module._forward_pre_hooks for module in layer.modules()):
        raise ValueError("cannot copy a layer with forward hooks, which it would not run; register them on the copy")


@torch.enable_grad()  # the views say which of them are trained
def _projections(layer: nn.MultiheadAttention) -> list[dict[str, Tensor]]:
    """Return the state of the projections of queries, keys, values and output, as views of a torch layer's state."""
    if layer.in_proj_weight is not None:
        weights = layer.in_proj_weight.chunk(3)
    else:
        weights = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
    states: list[dict[str, Tensor]] = [{"weight": weight} for weight in (*weights, layer.out_proj.weight)]
    if layer.in_proj_bias is not None:
        for state, bias in zip(states, (*layer.in_proj_bias.chunk(3), layer.out_proj.bias), strict=True):
            state["bias"] = bias
    return states


def _check_inputs(inputs: dict[str, Tensor], widths: list[int]) -> None:
    """Raise TypeError or ValueError unless query, key and value are ``[..., length, width]`` and fit each other."""
    for (name, tensor), width in zip(inputs.items(), widths, strict=True):
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            raise TypeError(f"{name} is of type {getattr(tensor, 'dtype', tensor)}, expected a floating-point tensor")
        if tensor.is_nested:
            raise ValueError(
                f"{name} is a nested tensor, expected a padded one and a key_padding_mask; torch's encoders nest their "
                f"input unless enable_nested_tensor=False, or their first layer has attention of this class"
            )
        if tensor.dim() < 2 or tensor.size(-1) != width:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected [..., length, {width}]")
    _, key, value = inputs.values()
    batches = [tuple(tensor.shape[:-2]) for tensor in inputs.values()]
    # more than one dimension is broadcast, as vectorized particles put theirs in front of some inputs alone
    fits = batches[0] == batches[1] == batches[2] or max(map(len, batches)) > 1
    if key.size(-2) != value.size(-2) or not fits:
        raise ValueError(
            f"query, key and value have shapes {', '.join(str(tuple(tensor.shape)) for tensor in inputs.values())}, "
            f"expected the same batch dimensions, and as many values as keys; vectorized particles need a batch "
            f"dimension, if only of one, in each of them"
        )


@dataclass(frozen=True)
class Mask:
    """A mask in two parts: where a query may attend, and what is added to the scores; None for all and nothing."""

    allowed: Tensor | None = None
    bias: Tensor | None = None

    @classmethod
    def read(cls, name: str, mask: Tensor) -> Mask:
        """Read torch's mask: boolean with True = ignore, or numbers to add, of which -1e4 and less = ignore.

        People write -1e9, or the least number of a type, for -inf. As a score such a number would enter the KL.
        """
        if isinstance(mask, Tensor) and mask.dtype == torch.bool:
            return cls(~mask)
        if not isinstance(mask, Tensor) or not mask.is_floating_point():
            actual = getattr(mask, "dtype", type(mask))
            raise TypeError(f"{name} is of type {actual}, expected a tensor, boolean with True = ignore, or floats")
        checked = validates_distributions() and not in_transform(mask)
        if checked and not (mask < torch.inf).all():
            raise ValueError(
                f"{name} is NaN or infinite, expected numbers to add to the scores, or -inf to ignore a key"
            )
        allowed = ~(mask <= IGNORED_SCORE)  # a NaN that was not looked for goes on into the scores
        return cls(allowed, mask.masked_fill(~allowed, 0))

    def each(self, change: Callable[[Tensor], Tensor]) -> Mask:
        """Return the mask with both parts changed, such as reshaped."""
        return Mask(*(None if part is None else change(part) for part in (self.allowed, self.bias)))

    def __and__(self, other: Mask) -> Mask:
        """Allow what both masks allow, and add the biases of both."""
        allowed = [part for part in (self.allowed, other.allowed) if part is not None]
        biases = [part for part in (self.bias, other.bias) if part is not None]
        return Mask(
            reduce(torch.logical_and, allowed) if allowed else None,
            reduce(torch.add, biases) if biases else None,
        )

    @property
    def has_bias(self) -> bool:
        """Whether the mask adds numbers other than zero.

        Elsewhere than on a CPU one has to wait for the answer, which is asked for while Pyro validates alone.
        """
        if self.bias is None or in_transform(self.bias):
            return self.bias is not None
        return (self.bias.is_cpu or validates_distributions()) and bool(self.bias.any())


def _read_attn_mask(mask: Tensor | None, shape: torch.Size) -> Mask:
    """Read torch's ``attn_mask``, broadcastable to scores ``[..., H, M, N]``; errors are those of :meth:`Mask.read`."""
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
        raise ValueError(f"attn_mask has shape {tuple(mask.shape)}, expected {expected}")
    return read.each(lambda half: half.reshape(*part, heads, queries, keys))


def _read_padding(name: str, mask: Tensor | None, shape: torch.Size, dim: int) -> Mask:
    """Read torch's padding mask ``[..., M or N]`` of a dimension of scores ``[..., H, M, N]``.

    Errors are those of :meth:`Mask.read`.
    """
    if mask is None:
        return Mask()
    read, (*batch, _, _, _) = Mask.read(name, mask), shape
    expected = [(*part, shape[dim]) for part in _suffixes(batch)]
    if tuple(mask.shape) not in expected:
        raise ValueError(f"{name} has shape {tuple(mask.shape)}, expected {' or '.join(map(str, expected))}")
    return read


def _suffixes(batch: torch.Size | list[int]) -> list[tuple[int, ...]]:
    """Split a batch shape, and return it with its part without leading dimensions, such as vectorized particles add.

    At least one dimension is left; the shape of a single input, where there is none.
    """
    return [tuple(batch[start:]) for start in range(len(batch))] or [()]


def scores_shape(q: Tensor, k: Tensor) -> torch.Size:
    """Return the shape of the scores of queries and keys, ``[..., H, M, N]``."""
    batch = q.shape[:-2] if q.shape[:-2] == k.shape[:-2] else torch.broadcast_shapes(q.shape[:-2], k.shape[:-2])
    return torch.Size((*batch, q.size(-2), k.size(-2)))
