"""Linear layer, log-softmax and choice of the observed token in one, with never more than a chunk of rows of logits.

Rows times vocabulary is by far the largest tensor of a text model, and enumerated alignments multiply its rows. Here it
exists a chunk of rows at a time: the forward pass keeps one number a row, the backward pass computes the logits again.

Below an alignment that is summed out, the gradient is known beforehand: each alignment's posterior probability, times
one factor for all. So :func:`summed_token_log_prob` computes it while the logits of a word are still at hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from pyro_attention._typing import Context

__all__ = ["chosen_slots", "default_chunk_rows", "summed_token_log_prob", "token_log_prob"]

# on a CPU smaller chunks repeat too much work on the weights, and larger ones leave the cache; a GPU wants large ones
_CPU_CHUNK_BYTES, _CHUNK_BYTES = 8_000_000, 40_000_000
_MOST_WORTH_LEAVING_OUT = 0.75  # share of rows that stay, above which the copy of these costs more than is saved


def _product_dtype(features: Tensor, weight: Tensor) -> torch.dtype:
    """Return the dtype of the matrix products: that of autocast if it is on (not for float64), else of the inputs."""
    device, dtype = features.device.type, torch.promote_types(features.dtype, weight.dtype)
    autocast = torch.is_autocast_enabled(device) and dtype != torch.float64
    return torch.get_autocast_dtype(device) if autocast else dtype


class _OutputLayer:
    """A linear layer and the features it is given, as a matrix; products in one precision, sums in ``exact``."""

    def __init__(
        self, features: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, chunk_rows: int | None = None
    ) -> None:
        self.exact = torch.float64 if dtype == torch.float64 else torch.float32
        self.count = math.prod(features.shape[:-1])
        self.x = features.reshape(self.count, features.size(-1)).to(dtype)
        self.weight = weight.to(dtype)
        self.bias = None if bias is None else bias.to(self.exact)
        self.chunk = chunk_rows or default_chunk_rows(len(weight), self.exact, device=features.device)

    def new(self, *shape: int) -> Tensor:
        """Return an uninitialized tensor, in float32 or float64."""
        return torch.empty(shape, dtype=self.exact, device=self.x.device)

    @cached_property
    def _buffer(self) -> Tensor:
        return self.new(min(self.chunk, self.count), len(self.weight))

    def chunks(self) -> tuple[Tensor, ...]:
        """Return the indices of the rows of each chunk."""
        chunks: tuple[Tensor, ...] = torch.arange(self.count, device=self.x.device).split(self.chunk)
        return chunks

    def logits(self, rows: Tensor) -> Tensor:
        """Return logits ``[rows, V]`` of a chunk, overwriting those before."""
        logits, x = self._buffer[: len(rows)], self.x[rows]
        if x.dtype != self.exact:
            logits.copy_(x @ self.weight.t())
            return logits if self.bias is None else logits.add_(self.bias)
        if self.bias is None:
            return torch.mm(x, self.weight.t(), out=logits)
        return torch.addmm(self.bias, x, self.weight.t(), out=logits)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Compute ``total += left @ right``; sums over chunks are not rounded to half precision."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total.add_(left @ right)


def _once_differentiable() -> None:
    """Raise RuntimeError in a backward pass that is to be differentiated itself.

    torch's decorator of this name would take gradients of sums for constants, silently.
    """
    if torch.is_grad_enabled():
        raise RuntimeError(
            "token_log_prob is differentiable once, but create_graph=True asks for a second derivative; use "
            "Categorical(logits=...) on all logits, such as TokenLikelihood.logits"
        )


def default_chunk_rows(
    vocabulary: int, dtype: torch.dtype = torch.float32, *, device: torch.device | str = "cpu"
) -> int:
    """Return the number of rows whose logits take 8 MB on a CPU, 40 MB elsewhere; at least one.

    Example:
        >>> default_chunk_rows(10_000), default_chunk_rows(10_000, device="cuda")
        (200, 1000)
    """
    size = _CPU_CHUNK_BYTES if torch.device(device).type == "cpu" else _CHUNK_BYTES
    return max(1, size // (max(vocabulary, 1) * dtype.itemsize))


class _Layout:
    """Result as a matrix: a row for each row of features, a column for each token that this row meets.

    There is one column unless the features broadcast, as for many tokens from one distribution.
    """

    def __init__(self, batch: torch.Size, shape: torch.Size) -> None:
        padded = (1,) * (len(shape) - len(batch)) + batch
        columns = tuple(dim for dim in range(len(shape)) if padded[dim] == 1 != shape[dim])
        self.shape, self._columns, self._last = shape, columns, tuple(range(-len(columns), 0))
        self.size = math.prod(batch), math.prod(shape[dim] for dim in columns)

    def matrix(self, tensor: Tensor) -> Tensor:
        """Return a tensor that broadcasts to the result, as the matrix."""
        return tensor.expand(self.shape).movedim(self._columns, self._last).reshape(self.size)

    def restore(self, matrix: Tensor) -> Tensor:
        """Return the result that a matrix holds."""
        order = [dim for dim in range(len(self.shape)) if dim not in self._columns] + [*self._columns]
        return matrix.reshape([self.shape[dim] for dim in order]).movedim(self._last, self._columns)


class _TokenLogProb(torch.autograd.Function):
    """Autograd function of :func:`token_log_prob`, whose backward pass computes the logits again."""

    @staticmethod
    def forward(
        ctx: Context,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        token: Tensor,
        dtype: torch.dtype,
        chunk_rows: int | None,
    ) -> Tensor:
        rows = _OutputLayer(features, weight, bias, dtype, chunk_rows)
        layout = _Layout(features.shape[:-1], torch.broadcast_shapes(features.shape[:-1], token.shape))
        tokens, log_probs, log_totals = layout.matrix(token), rows.new(*layout.size), rows.new(rows.count, 1)
        for chunk in rows.chunks():
            logits = rows.logits(chunk)
            observed, highest = logits.gather(1, tokens[chunk]), logits.amax(1, keepdim=True)
            # in place, here and below: on a CPU a new tensor of this size costs more than a pass over an old one
            log_total = logits.sub_(highest).exp_().sum(1, keepdim=True).log_()
            log_probs[chunk] = observed.sub_(highest).sub_(log_total)
            log_totals[chunk] = log_total.add_(highest)
        ctx.save_for_backward(features, weight, bias, token, log_totals)
        ctx.options = dtype, chunk_rows
        return layout.restore(log_probs)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        _once_differentiable()
        features, weight, bias, token, log_totals = ctx.saved_tensors
        inputs, needed = (features, weight, bias), ctx.needs_input_grad
        with torch.autocast(features.device.type, enabled=False):
            rows, layout = _OutputLayer(*inputs, *ctx.options), _Layout(features.shape[:-1], grad.shape)
            grad, tokens = layout.matrix(grad).to(rows.exact), layout.matrix(token)
            for_features = rows.new(*rows.x.shape).zero_() if needed[0] else None
            for_weight = rows.new(*weight.shape).zero_() if needed[1] else None
            for_bias = rows.new(len(weight)).zero_() if needed[2] else None
            chunks = rows.chunks()
            if grad.is_cpu:  # no work on masked positions, which have no gradient; on a GPU to ask means to wait
                chunks = grad.any(1).nonzero().squeeze(1).split(rows.chunk)
            for chunk in chunks:
                total, logits = grad[chunk].sum(1, keepdim=True), rows.logits(chunk)
                # the gradient of the logits: observed minus expected number of each token
                logits.sub_(log_totals[chunk]).exp_().mul_(total.neg_())
                logits.scatter_add_(1, tokens[chunk], grad[chunk])
                if for_bias is not None:
                    for_bias.add_(logits.sum(0))
                logits = logits.to(rows.x.dtype)
                if for_features is not None:
                    for_features[chunk] = (logits @ rows.weight).to(rows.exact)
                if for_weight is not None:
                    _add_product(for_weight, logits.t(), rows.x[chunk])
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
    r"""Return the log probability of observed tokens under a linear layer with softmax; once differentiable.

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
    dtype = _product_dtype(features, weight)
    with torch.autocast(features.device.type, enabled=False):
        return _token_log_prob(features, weight, bias, token, dtype, chunk_rows)


def chosen_slots(mask: Tensor) -> tuple[Tensor, list[int]]:
    """Return flat indices of the true entries of ``[G, N]``, and their number up to the end of each row.

    Their numbers have to be known on the host: this is the one time that a training step waits for them.

    Example:
        >>> chosen_slots(torch.tensor([[True, False], [True, True]]))
        (tensor([0, 2, 3]), [1, 3])
    """
    ends: list[int] = mask.sum(1).cumsum(0).tolist()
    total, flat = ends[-1] if ends else 0, mask.flatten()
    places = (flat.cumsum(0) - 1).masked_fill(~flat, total)  # the others share one behind the last
    return places.new_zeros(total + 1).scatter_(0, places, torch.arange(len(flat), device=flat.device))[:total], ends


class _Groups:
    """Rows that are summed over together, of groups in their order, and chunks of whole groups.

    Args:
        slots: Where each row stands in ``log_weight``, flattened.
        ends: Number of rows up to the end of each group.
        log_weight: Log weight of each alignment of each group, ``[G, N]``.
        evidence: Whether the log of a weighted mean is computed, else a weighted mean of logs.
        roulette: See :func:`summed_token_log_prob`.
        chunk_rows: Number of rows of a chunk, up to those of one group.
        known: See :func:`summed_token_log_prob`.
    """

    def __init__(
        self, slots: Tensor, ends: Sequence[int], log_weight: Tensor, *,
        evidence: bool, roulette: float, chunk_rows: int, known: bool = False,
    ) -> None:  # fmt: skip
        self._slots, self._log_weight, self._evidence, self._roulette = slots, log_weight, evidence, roulette
        self.known = known
        self._size, starts = log_weight.size(1), [0, *ends]
        # a chunk ends with the group in which it becomes full
        firsts = [g for g in range(len(ends)) if not g or starts[g] // chunk_rows > starts[g - 1] // chunk_rows]
        bounds = pairwise([*firsts, len(ends)]) if firsts else ()
        self.chunks = [(slice(first, last), slice(starts[first], starts[last])) for first, last in bounds]
        self.most_rows = max((rows.stop - rows.start for _, rows in self.chunks), default=0)

    def shares(self, groups: slice, rows: slice, log_prob: Tensor) -> Tensor:
        """Return the gradient of the sums with respect to the log probabilities of a chunk's rows, ``[rows]``."""
        log_weight, slots = self._log_weight[groups], self._slots[rows] - groups.start * self._size
        if not self._evidence:
            return log_weight.flatten()[slots].exp()
        joint = torch.full_like(log_weight, -torch.inf).flatten()
        joint[slots] = log_prob + log_weight.flatten()[slots]
        return joint.view_as(log_weight).softmax(-1).flatten()[slots].nan_to_num(0.0)

    def rounded(self, shares: Tensor) -> Tensor:
        """Return shares whose small ones are zero or ``roulette``, at random, with the same expectation."""
        if not self._roulette:
            return shares
        stays = torch.rand_like(shares) * self._roulette < shares
        return shares.where(shares >= self._roulette, stays.to(shares.dtype) * self._roulette)


class _SummedTokenLogProb(torch.autograd.Function):
    """Autograd function of :func:`summed_token_log_prob`, whose forward pass computes the gradients, too."""

    @staticmethod
    def forward(
        ctx: Context,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        token: Tensor,
        groups: _Groups,
        dtype: torch.dtype,
    ) -> Tensor:
        layer, needed = _OutputLayer(features, weight, bias, dtype), ctx.needs_input_grad
        log_probs, all_shares = layer.new(layer.count), layer.new(layer.count)
        for_features = layer.new(*features.shape).zero_() if needed[0] else None
        for_weight = layer.new(*weight.shape).zero_() if needed[1] else None
        for_bias = layer.new(len(weight), 1).zero_() if needed[2] else None
        buffer = torch.empty(groups.most_rows, len(weight), dtype=dtype, device=features.device)
        for chunk_groups, chunk in groups.chunks:
            x = layer.x[chunk]
            residuals = torch.mm(x, layer.weight.t(), out=buffer[: len(x)])  # logits, at first
            log_probs[chunk] = _to_residuals(residuals, layer, token[chunk].unsqueeze(1))
            all_shares[chunk] = groups.shares(chunk_groups, chunk, log_probs[chunk]).to(layer.exact)
            shares = groups.rounded(all_shares[chunk])
            rows: slice | Tensor = chunk
            significant = _significant(shares)
            if significant is not None:
                residuals, x, shares = residuals[significant], x[significant], shares[significant]
                rows = significant + chunk.start
            factors = shares.unsqueeze(1)
            if for_features is not None:
                for_features[rows] = (residuals @ layer.weight).to(layer.exact).mul_(factors)
            if for_weight is not None:
                _add_product(for_weight, residuals.t(), (x * factors).to(dtype))
            if for_bias is not None:
                _add_product(for_bias, residuals.t(), factors.to(dtype))
        for_bias = None if for_bias is None else for_bias.squeeze(1)
        ctx.save_for_backward(features, weight, bias, token, all_shares, for_features, for_weight, for_bias)
        ctx.known = groups.known and not features.is_cpu
        return log_probs

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        _once_differentiable()
        features, weight, bias, token, shares, *stored = ctx.saved_tensors
        factor = (grad * shares).sum() / shares.square().sum().clamp(min=torch.finfo(shares.dtype).tiny)
        tolerance = max(100 * torch.finfo(shares.dtype).eps, 1e-10) * factor.abs()
        # not so where sentences have weights, or something else is observed below the alignment
        if not ctx.known and not bool(((grad - factor * shares).abs() <= tolerance).all()):
            return (*_gradients(features, weight, bias, token, grad, ctx.needs_input_grad[:3]), None, None, None)
        gradients = (
            None if gradient is None else (factor * gradient).to(tensor.dtype)
            for gradient, tensor in zip(stored, (features, weight, bias), strict=True)
        )
        return (*gradients, None, None, None)


def _significant(shares: Tensor) -> Tensor | None:
    """Return the indices of rows whose share of the gradient is not lost in a sum; None to take all rows."""
    if not shares.is_cpu:  # one would have to wait for their number
        return None
    indices = (shares > torch.finfo(shares.dtype).eps).nonzero().squeeze(1)
    return indices if len(indices) < _MOST_WORTH_LEAVING_OUT * len(shares) else None


def _to_residuals(logits: Tensor, layer: _OutputLayer, token: Tensor) -> Tensor:
    """Return the log probability of each row's token, and turn its logits into residuals.

    A residual is the observed minus the expected number of a token.

    The numbers of a few rows stay in the cache of a CPU from the first of these passes to the last.
    """
    log_prob = layer.new(len(logits))
    few = default_chunk_rows(logits.size(1), device=logits.device) // (8 if logits.device.type == "cpu" else 1)
    for part, chosen, part_log_prob in zip(*(x.split(max(1, few)) for x in (logits, token, log_prob)), strict=True):
        exact = part.to(layer.exact)
        if layer.bias is not None:
            exact.add_(layer.bias)
        observed, highest = exact.gather(1, chosen), exact.amax(1, keepdim=True)
        total = exact.sub_(highest).exp_().sum(1, keepdim=True)
        part_log_prob.copy_((observed - highest - total.log()).squeeze(1))
        # in place, as the exponentials are not needed any more
        exact.div_(-total).scatter_add_(1, chosen, torch.ones_like(total))
        if exact is not part:
            part.copy_(exact)
    return log_prob


def _gradients(
    features: Tensor, weight: Tensor, bias: Tensor | None, token: Tensor, grad: Tensor, needed: Sequence[bool]
) -> list[Tensor | None]:
    """Return gradients of the inputs that need one, for any gradient of the result."""
    with torch.enable_grad():
        x, w = features.detach().requires_grad_(needed[0]), weight.detach().requires_grad_(needed[1])
        b = None if bias is None else bias.detach().requires_grad_(needed[2])
        log_prob = token_log_prob(x, w, token, b)
    leaves = [leaf for leaf in (x, w, b) if leaf is not None and leaf.requires_grad]
    gradients = iter(torch.autograd.grad(log_prob, leaves, grad))
    return [next(gradients) if needs_grad else None for needs_grad in needed]


_summed_token_log_prob: Callable[..., Tensor] = _SummedTokenLogProb.apply


def summed_token_log_prob(
    features: Tensor,
    weight: Tensor,
    token: Tensor,
    bias: Tensor | None = None,
    *,
    slots: Tensor,
    ends: Sequence[int],
    log_weight: Tensor,
    evidence: bool,
    roulette: float = 0.0,
    chunk_rows: int | None = None,
    known: bool = False,
) -> Tensor:
    r"""Compute :func:`token_log_prob`, faster with its gradient if a sum over alignments is what it is for.

    .. math:: c \sum_g \log \sum_{n} w_{gn}\, p_{gn}(t_g) \quad\text{or}\quad c \sum_g \sum_n w_{gn} \log p_{gn}(t_g)

    is the quantity whose gradient is computed, with a factor c that the backward pass finds. It then checks that the
    gradient of the result is that one, and computes another with logits of its own if it is not.

    Args:
        features: ``[R, D]``.
        weight: ``[V, D]``.
        token: Ids ``[R]``.
        bias: ``[V]``.
        slots: Where each row stands in ``log_weight``, flattened; increasing, ``[R]`` (:func:`chosen_slots`).
        ends: How many rows there are up to the end of each group.
        log_weight: log w, prior or posterior of each alignment of each group: ``[G, N]``, without gradient.
        evidence: The first of the sums, else the second.
        roulette: Rows whose share of a group's gradient is below this have a gradient with the probability share /
            roulette alone, and then that of so large a share: unbiased, and less work. The value is exact.
        chunk_rows: Rows of a chunk, which has whole groups; see :func:`token_log_prob`.
        known: There is no other gradient than that one: on a GPU this is not checked, which would be to wait for it.

    Returns:
        Natural logarithms ``[R]``, of the rows' own tokens.

    Example:
        >>> x, w = torch.zeros(2, 3), torch.zeros(4, 3)
        >>> weights = {"slots": torch.tensor([0, 1]), "ends": [2], "log_weight": torch.zeros(1, 2)}
        >>> summed_token_log_prob(x, w, torch.tensor([1, 1]), **weights, evidence=True).exp().tolist()
        [0.25, 0.25]
    """
    if not torch.is_grad_enabled() or not any(x is not None and x.requires_grad for x in (features, weight, bias)):
        return token_log_prob(features, weight, token, bias, chunk_rows=chunk_rows)
    dtype = _product_dtype(features, weight)
    if chunk_rows is None:  # 16 MB on a CPU: the gradient of the weights, as large, is added to once a chunk
        chunk_rows = default_chunk_rows(len(weight), dtype, device=features.device) * 2
    with torch.autocast(features.device.type, enabled=False):
        groups = _Groups(
            slots, ends, log_weight.detach(), evidence=evidence, roulette=roulette, chunk_rows=chunk_rows, known=known
        )
        return _summed_token_log_prob(features, weight, bias, token, groups, dtype)
