"""TokenLikelihood: the distribution of an observed token, where all logits would not fit into memory."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from functools import reduce
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.distributions import constraints

from pyro_attention._checks import as_float, broadcasts_to
from pyro_attention.alignments.summed import AlignmentsAbove, EnumeratedAlignment, SummedLikelihood
from pyro_attention.families.distribution import expand_shared
from pyro_attention.ops.token_log_prob import chosen_slots, default_chunk_rows, summed_token_log_prob, token_log_prob

__all__ = ["TokenLikelihood"]

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class TokenLikelihood(SummedLikelihood):
    r"""Categorical distribution of a token, given features and an output layer, computed without holding all logits.

    .. math:: p(t \mid x) = \mathrm{softmax}(W x + b)_t

    It equals ``Categorical(logits=features @ weight.T + bias)`` in value and gradients. The logits are computed in
    chunks of rows, and again in the backward pass (not for masked targets), so that memory does not grow with rows
    times vocabulary. Observe tokens with it, also below enumerated alignments, where the features have one more
    dimension; there :class:`AlignmentELBO` has the gradient computed with the value, and no logits again.

    Under autocast, or for half-precision inputs, the matrix products are in half precision and all else in float32.

    Args:
        features: x, ``[..., D]``; the batch shape is ``[...]``.
        weight: W, ``[V, D]``, as in ``torch.nn.Linear(D, V).weight``.
        bias: b, ``[V]``; an entry of -inf forbids a token.
        chunk_rows: Rows of features whose logits exist at a time; about 8 MB of them (40 on a GPU) when omitted, twice
            as much below alignments. The result does not depend on it.
        validate_args: Check tokens and results; on by default, as everywhere in torch.distributions.

    Raises:
        ValueError: Shapes do not fit, the vocabulary is empty, or ``chunk_rows`` is no integer of at least 1.

    Example:
        >>> layer = torch.nn.Linear(8, 1000)
        >>> features, tokens = torch.randn(2, 5, 8), torch.randint(1000, (2, 5))
        >>> likelihood = TokenLikelihood(features, layer.weight, layer.bias)
        >>> likelihood.log_prob(tokens).shape
        torch.Size([2, 5])
        >>> torch.allclose(likelihood.log_prob(tokens), likelihood.logits.gather(-1, tokens[..., None])[..., 0])
        True
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}

    def __init__(
        self,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        chunk_rows: int | None = None,
        validate_args: bool | None = None,
    ) -> None:
        _check_layer(features, weight, bias)
        if chunk_rows is not None and (not isinstance(chunk_rows, int) or chunk_rows < 1):
            raise ValueError(f"chunk_rows is {chunk_rows!r}, expected an integer of at least 1, or None")
        self.features, self.weight, self.bias, self.chunk_rows = features, weight, bias, chunk_rows
        self._rows: Tensor | None = None
        # the alignment above, the roulette, and whether that is the only sum, which leaves out masked rows
        self._summed: tuple[EnumeratedAlignment, float, bool] | None = None
        super().__init__(features.shape[:-1], validate_args=validate_args)

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> constraints.Constraint:
        """Ids ``0 .. V - 1``."""
        return constraints.integer_interval(0, len(self.weight) - 1)

    def expand(self, batch_shape: Sequence[int], _instance: object = None) -> Self:
        """Return a copy with a larger batch shape; features, weight and bias are shared, not expanded."""
        return expand_shared(self, batch_shape)

    def where(self, rows: Tensor) -> Self:
        """Return a copy whose log probabilities are computed at some rows alone, and zero elsewhere.

        Leave out rows that count nowhere, such as impossible alignments: the output layer is most of the work.

        Args:
            rows: True where a log probability is wanted; boolean, broadcastable to the batch shape.

        Raises:
            ValueError: The rows do not broadcast to the batch shape.

        Example:
            >>> likelihood = TokenLikelihood(torch.zeros(3, 8), torch.zeros(4, 8))
            >>> likelihood.where(torch.tensor([True, False, True])).log_prob(torch.tensor(1)).exp()
            tensor([0.2500, 1.0000, 0.2500])
        """
        if not broadcasts_to(rows.shape, self.batch_shape):
            problem = f"rows have shape {tuple(rows.shape)}, which does not broadcast to the batch shape"
            raise ValueError(f"TokenLikelihood: {problem} {tuple(self.batch_shape)}")
        new = copy.copy(self)
        new._rows = rows if self._rows is None else rows & self._rows
        return new

    def below_alignments(self, alignments: AlignmentsAbove) -> Self:
        """Return a copy that leaves out impossible keys and masked items, for a site below summed alignments.

        Below one alignment the log probabilities have their gradient computed with them, for the sum they are expected
        in, so that a training step computes the logits once; used otherwise they are right, too, and cost more time.
        With a roulette, terms whose share of the gradient is below it are left out at random, and count for more where
        they stay: the gradient is unbiased, and less work.
        """
        mask = alignments.mask
        over = [above for above in alignments.enumerated if broadcasts_to(above.possible.shape, self.batch_shape)]
        if not over:
            return self
        masks = [above.possible for above in over]
        if isinstance(mask, Tensor) and broadcasts_to(mask.shape, self.batch_shape):
            masks.append(mask)
        new, first = self.where(reduce(torch.logical_and, masks)), over[0]
        if len(over) > 1 or not broadcasts_to(first.log_prob.shape, self.batch_shape):
            return new
        is_only_sum = alignments.is_only_sum and (len(masks) > 1 or mask is None)
        new._summed = first, alignments.roulette, is_only_sum
        return new

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log probability of tokens, in the common shape of tokens and batch; once differentiable.

        Args:
            value: Ids, of any integer dtype, that broadcast against the batch shape; valid ones where masked, too.

        Raises:
            TypeError: The ids are no integers.
            ValueError: Their shape or range does not fit.
        """
        shape = self._check_token(value)
        return self._token_log_prob(value.long(), shape).expand(shape)

    def _token_log_prob(self, token: Tensor, shape: torch.Size) -> Tensor:
        """Return the log probability of tokens, which broadcasts to a shape."""
        if self._rows is None and self._summed is None:
            return token_log_prob(self.features, self.weight, token, self.bias, chunk_rows=self.chunk_rows)
        dim = -1 if self._summed is None else self._summed[0].dim
        mask = torch.ones((), dtype=torch.bool, device=token.device) if self._rows is None else self._rows
        # what is summed over stands last, as rows of one sum are computed together
        slots, ends = chosen_slots(torch.atleast_2d(mask.expand(shape).movedim(dim, -1)).flatten(0, -2))
        if math.prod(self.features.shape[:-1]) < len(slots):  # one row of logits serves several tokens
            log_prob = token_log_prob(self.features, self.weight, token, self.bias, chunk_rows=self.chunk_rows)
            return log_prob.where(mask, 0)
        rows = torch.arange(math.prod(shape), device=token.device).view(shape).movedim(dim, -1).flatten()[slots]
        features = self.features.expand(*shape, -1).reshape(-1, self.features.size(-1)).index_select(0, rows)
        token = token.expand(shape).flatten()[rows]
        if self._summed is None:
            log_prob = token_log_prob(features, self.weight, token, self.bias, chunk_rows=self.chunk_rows)
        else:
            alignment, roulette, is_only_sum = self._summed
            log_weight = alignment.log_prob.expand(shape).movedim(dim, -1).flatten(0, -2)
            log_prob = summed_token_log_prob(
                features, self.weight, token, self.bias, slots=slots, ends=ends, log_weight=log_weight,
                evidence=alignment.evidence, roulette=roulette, chunk_rows=self.chunk_rows,
                known=is_only_sum and len(alignment.readers) == 1 and alignment.log_prob.shape == shape,
            )  # fmt: skip
        return log_prob.new_zeros(math.prod(shape)).index_copy(0, rows, log_prob).view(shape)

    @torch.no_grad()
    def sample(self, sample_shape: Sequence[int] = torch.Size()) -> Tensor:
        """Return independent ids, int64 of shape ``sample_shape + batch_shape``; logits in chunks here too."""
        shape, count = torch.Size(sample_shape) + self.batch_shape, math.prod(sample_shape)
        rows = self.features.expand(*self.batch_shape, -1).reshape(-1, self.features.size(-1))
        size = self.chunk_rows or default_chunk_rows(len(self.weight), device=rows.device)
        drawn = [self._logits(part).exp().multinomial(count, replacement=True) for part in rows.split(size)]
        return torch.cat(drawn).T.reshape(shape)

    @property
    def logits(self) -> Tensor:
        """Normalized log probabilities of all tokens, ``batch_shape + [V]``, held all at once."""
        return self._logits(self.features).expand(*self.batch_shape, -1)

    def _logits(self, features: Tensor) -> Tensor:
        dtype = torch.promote_types(features.dtype, self.weight.dtype)
        logits = as_float(torch.nn.functional.linear(features.to(dtype), self.weight.to(dtype)))
        if self.bias is not None:
            logits = logits + self.bias.to(logits.dtype)
        return logits.log_softmax(-1)

    def _check_token(self, token: Tensor) -> torch.Size:
        """Return the common shape of tokens and batch."""
        if not isinstance(token, Tensor) or token.dtype not in _INTEGERS:
            actual = getattr(token, "dtype", type(token))
            raise TypeError(f"TokenLikelihood: tokens are {actual}, expected an integer tensor, as by .long()")
        try:
            shape: torch.Size = torch.broadcast_shapes(token.shape, self.batch_shape)
        except RuntimeError as error:
            problem = f"tokens of shape {tuple(token.shape)} do not broadcast against {tuple(self.batch_shape)}"
            raise ValueError(f"TokenLikelihood: {problem}, the batch shape of the features") from error
        if self._validate_args and token.numel():
            low, high = (bound.item() for bound in token.aminmax())
            if low < 0 or high >= len(self.weight):
                problem = f"tokens from {low} to {high}, expected ids in 0 .. {len(self.weight) - 1}"
                raise ValueError(f"TokenLikelihood: {problem}; padded positions hold a valid id too, such as 0")
        return shape


def _check_layer(features: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Raise unless features and output layer fit each other."""
    expected = "features [..., D], a weight [V, D] of at least one token, and a bias [V]"
    shapes = [None if tensor is None else tuple(tensor.shape) for tensor in (features, weight, bias)]
    fit = weight.dim() == 2 and len(weight) and features.shape[-1:] == weight.shape[1:]
    if not fit or (bias is not None and bias.shape != weight.shape[:1]):
        raise ValueError(f"TokenLikelihood: features, weight and bias have shapes {shapes}, expected {expected}")
