"""Linear layer, log-softmax and choice of the observed token in one, with never more than a chunk of rows of logits.

Rows times vocabulary is by far the largest tensor of a text model, and enumerated alignments multiply its rows. Here it
exists a chunk of rows at a time: the forward pass keeps one number a row, the backward pass computes the logits again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyro_attention.ops._output_layer import OutputLayer, add_product, once_differentiable, product_dtype

__all__ = ["default_chunk_rows", "sample_tokens", "token_log_prob"]

# on a CPU smaller chunks repeat too much work on the weights, and larger ones leave the cache; a GPU wants large ones
CPU_CHUNK_BYTES, CHUNK_BYTES = 8_000_000, 40_000_000


def default_chunk_rows(
    vocabulary: int, dtype: torch.dtype = torch.float32, *, device: torch.device | str = "cpu"
) -> int:
    """Rows whose logits take 8 MB on a CPU, 40 MB elsewhere; at least one.

    Example:
        >>> default_chunk_rows(10_000), default_chunk_rows(10_000, device="cuda")
        (200, 1000)
    """
    size = CPU_CHUNK_BYTES if torch.device(device).type == "cpu" else CHUNK_BYTES
    return max(1, size // (max(vocabulary, 1) * dtype.itemsize))


class _Rows(OutputLayer):
    """Logits a chunk of rows at a time, in one buffer."""

    def __init__(
        self, features: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, chunk_rows: int | None
    ) -> None:
        super().__init__(features, weight, bias, dtype)
        default = default_chunk_rows(len(weight), self.exact, device=features.device)
        self.chunk = default if chunk_rows is None else chunk_rows
        self._buffer = self.new(min(self.chunk, self.count), len(weight))

    def chunks(self) -> tuple[Tensor, ...]:
        """Indices of the rows of each chunk."""
        chunks: tuple[Tensor, ...] = torch.arange(self.count, device=self.x.device).split(self.chunk)
        return chunks

    def logits(self, rows: Tensor) -> Tensor:
        """Logits ``[rows, V]``, overwriting those before."""
        logits, x = self._buffer[: len(rows)], self.x[rows]
        if x.dtype != self.exact:
            logits.copy_(x @ self.weight.t())
            return logits if self.bias is None else logits.add_(self.bias)
        if self.bias is None:
            return torch.mm(x, self.weight.t(), out=logits)
        return torch.addmm(self.bias, x, self.weight.t(), out=logits)


class _Layout:
    """The result as a matrix: a row for each row of features, a column for each token that this row meets.

    There is one column unless the features broadcast, as for many samples from one distribution. Tokens that
    broadcast, as along an enumerated dimension, are not expanded beyond a chunk.
    """

    def __init__(self, batch: torch.Size, shape: torch.Size) -> None:
        padded = (1,) * (len(shape) - len(batch)) + batch
        columns = tuple(dim for dim in range(len(shape)) if padded[dim] == 1 != shape[dim])
        self.shape, self._columns, self._last = shape, columns, tuple(range(-len(columns), 0))
        self._by_row = (1, *(size for dim, size in enumerate(shape) if dim not in columns))
        self.size = math.prod(batch), math.prod(shape[dim] for dim in columns)

    def _view(self, tensor: Tensor) -> Tensor:
        return tensor.expand(self.shape).movedim(self._columns, self._last).unsqueeze(0)

    def matrix(self, tensor: Tensor) -> Tensor:
        """Tensor that broadcasts to the result, as the matrix."""
        return self._view(tensor).reshape(self.size)

    def take(self, tensor: Tensor, rows: Tensor) -> Tensor:
        """Some rows of ``matrix(tensor)``."""
        return self._view(tensor)[torch.unravel_index(rows, self._by_row)].reshape(len(rows), self.size[1])

    def restore(self, matrix: Tensor) -> Tensor:
        """The result, of its matrix."""
        columns = tuple(self.shape[dim] for dim in self._columns)
        return matrix.reshape(self._by_row[1:] + columns).movedim(self._last, self._columns)


class _TokenLogProb(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        token: Tensor,
        dtype: torch.dtype,
        chunk_rows: int | None,
    ) -> Tensor:
        rows = _Rows(features, weight, bias, dtype, chunk_rows)
        layout = _Layout(features.shape[:-1], torch.broadcast_shapes(features.shape[:-1], token.shape))
        log_probs, log_totals = rows.new(*layout.size), rows.new(rows.count, 1)
        for chunk in rows.chunks():
            logits = rows.logits(chunk)
            observed, highest = logits.gather(1, layout.take(token, chunk)), logits.amax(1, keepdim=True)
            # in place, here and below: on a CPU a new tensor of this size costs more than a pass over an old one
            log_total = logits.sub_(highest).exp_().sum(1, keepdim=True).log_()
            log_probs[chunk] = observed.sub_(highest).sub_(log_total)
            log_totals[chunk] = log_total.add_(highest)
        ctx.save_for_backward(features, weight, bias, token, log_totals)
        ctx.options = dtype, chunk_rows
        return layout.restore(log_probs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        once_differentiable()
        features, weight, bias, token, log_totals = ctx.saved_tensors
        inputs, needed = (features, weight, bias), ctx.needs_input_grad
        with torch.autocast(features.device.type, enabled=False):
            rows, layout = _Rows(*inputs, *ctx.options), _Layout(features.shape[:-1], grad.shape)
            grad = layout.matrix(grad).to(rows.exact)
            for_features = rows.new(*rows.x.shape).zero_() if needed[0] else None
            for_weight = rows.new(*weight.shape).zero_() if needed[1] else None
            for_bias = rows.new(len(weight)).zero_() if needed[2] else None
            # masked positions and impossible alignments have no gradient: no work either
            for chunk in grad.any(1).nonzero().squeeze(1).split(rows.chunk):
                total, logits = grad[chunk].sum(1, keepdim=True), rows.logits(chunk)
                # the gradient of the logits: observed minus expected number of each token
                logits.sub_(log_totals[chunk]).exp_().mul_(total.neg_())
                logits.scatter_add_(1, layout.take(token, chunk), grad[chunk])
                if for_bias is not None:
                    for_bias.add_(logits.sum(0))
                logits = logits.to(rows.x.dtype)
                if for_features is not None:
                    for_features[chunk] = (logits @ rows.weight).to(rows.exact)
                if for_weight is not None:
                    add_product(for_weight, logits.t(), rows.x[chunk])
        gradients = (
            None if gradient is None else gradient.view(tensor.shape).to(tensor.dtype)
            for gradient, tensor in zip((for_features, for_weight, for_bias), inputs, strict=True)
        )
        return (*gradients, None, None, None)


# torch leaves `apply` untyped in some releases
_token_log_prob: Callable[..., Tensor] = _TokenLogProb.apply


def token_log_prob(
    features: Tensor, weight: Tensor, token: Tensor, bias: Tensor | None = None, *, chunk_rows: int | None = None
) -> Tensor:
    r"""Log probability of observed tokens under a linear layer with softmax; once differentiable.

    .. math:: \log p(t) = w_t^\top x + b_t - \log \sum_v \exp(w_v^\top x + b_v)

    Under autocast and for inputs in half precision the matrix products are in half precision, all else in float32.

    Args:
        features: x, ``[..., D]``.
        weight: w, ``[V, D]``.
        token: Ids in ``0 .. V - 1``, int64; broadcast against the features without their last dimension.
        bias: b, ``[V]``.
        chunk_rows: Rows of features whose logits exist at a time; about 8 MB of them (40 on a GPU) when omitted.

    Returns:
        Natural logarithms, in the broadcast shape; float64 for float64 inputs, else float32.

    Example:
        >>> token_log_prob(torch.zeros(2, 3), torch.zeros(4, 3), torch.tensor([0, 3])).exp().tolist()
        [0.25, 0.25]
    """
    dtype = product_dtype(features, weight)
    with torch.autocast(features.device.type, enabled=False):
        return _token_log_prob(features, weight, bias, token, dtype, chunk_rows)


@torch.no_grad()
def sample_tokens(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    shape: torch.Size,
    chunk_rows: int | None = None,
) -> Tensor:
    """Independent tokens of the distribution of :func:`token_log_prob`.

    Args:
        features: ``[..., D]``.
        weight: ``[V, D]``.
        bias: ``[V]``.
        shape: Shape of the result; the features without their last dimension expand to it.
        chunk_rows: As in :func:`token_log_prob`.

    Returns:
        Ids, int64.

    Example:
        >>> sample_tokens(torch.zeros(2, 3), torch.zeros(1, 3), shape=torch.Size([5, 2])).shape
        torch.Size([5, 2])
    """
    rows = _Rows(features, weight, bias, product_dtype(features, weight), chunk_rows)
    layout = _Layout(features.shape[:-1], shape)
    tokens = torch.empty(layout.size, dtype=torch.int64, device=features.device)
    if tokens.numel() == 0:
        return layout.restore(tokens)
    with torch.autocast(features.device.type, enabled=False):
        for chunk in rows.chunks():
            logits = rows.logits(chunk)
            probabilities = logits.sub_(logits.amax(1, keepdim=True)).exp_()
            tokens[chunk] = probabilities.multinomial(layout.size[1], replacement=True)
    return layout.restore(tokens)
