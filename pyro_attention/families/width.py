"""WidthNetwork: the width of attention weights as a function of queries, keys or scores."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from pyro_attention._checks import as_float, check_count, check_positive
from pyro_attention.attention_call import AttentionCall

__all__ = ["WidthNetwork"]


class WidthNetwork(nn.Module):
    r"""Network with a positive number for every query, key or weight, :math:`c + \mathrm{softplus}(w^\top h + b)`.

    Pass it to a family instead of a number: ``LogNormal(scale=WidthNetwork(8))``. Its input h is the vector itself, or
    a hidden layer over it, and at first its output is one number for all inputs. A module of your own may replace it:
    it is called with the :class:`AttentionCall`, which has ``scores``, ``queries``, ``keys`` and ``layout``, and
    returns positive numbers that broadcast to the scores.

    Args:
        dim: Width of a query or key; 1 for scores.
        heads: One network a head, or 1 for a network shared by all heads.
        of: "queries", "keys" or "scores".
        initial: Output before training.
        hidden_dim: Width of a hidden layer (tanh); without one the network is affine.
        minimum: Lower bound c, which prevents widths of zero and their infinite gradients.

    Raises:
        ValueError: ``of`` is unknown, a size is below one, or ``initial`` not above ``minimum``; at a call: queries or
            keys that the layer does not pass on, or of another width.

    Example:
        >>> from pyro_attention import Dense, FixedGammaPrior, LatentAttention, LogNormal
        >>> family = LogNormal(scale=WidthNetwork(8, initial=0.5))
        >>> attention, queries = LatentAttention("attention", FixedGammaPrior()), torch.randn(2, 3, 8)
        >>> call = attention.make_call(torch.zeros(2, 3, 4), layout=Dense(), queries=queries)
        >>> family.posterior(call, attention.prior(call)).scale.shape
        torch.Size([2, 3, 1])
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        of: Literal["queries", "keys", "scores"] = "queries",
        initial: float = 0.5,
        hidden_dim: int | None = None,
        minimum: float = 1e-3,
    ) -> None:
        super().__init__()
        if of not in ("queries", "keys", "scores"):
            raise ValueError(f"of is '{of}', expected 'queries', 'keys' or 'scores'")
        for name, size in (("dim", dim), ("heads", heads), ("hidden_dim", hidden_dim)):
            if size is not None:
                check_count(name, size)
        check_positive("minimum", minimum)
        if not initial > minimum:
            raise ValueError(f"initial is {initial}, expected more than minimum={minimum}")
        self.dim, self.heads, self.initial, self.minimum = dim, heads, initial, minimum
        self.of: Literal["queries", "keys", "scores"] = of
        self.hidden = None if hidden_dim is None else nn.Parameter(torch.randn(heads, dim, hidden_dim) / math.sqrt(dim))
        self.hidden_bias = None if hidden_dim is None else nn.Parameter(torch.zeros(heads, 1, hidden_dim))
        self.weight = nn.Parameter(torch.zeros(heads, dim if hidden_dim is None else hidden_dim, 1))
        # the inverse of softplus
        start = initial - minimum + math.log(-math.expm1(minimum - initial))
        self.bias = nn.Parameter(torch.full((heads, 1), start))

    def forward(self, call: AttentionCall) -> Tensor:
        """Return the numbers of a call, in a shape that broadcasts to its scores."""
        layout = call.layout
        inputs: Tensor | None = getattr(call, self.of)
        if inputs is None:
            problem = f"site '{call.site}': {type(self).__name__} is of the {self.of}, which the layer does not pass on"
            raise ValueError(f"{problem}; pass {self.of}= to LatentAttention")
        if self.of == "scores":
            return self._of_scores(inputs, call)
        vectors = layout.heads_first(inputs)
        if self.of == "keys":
            return layout.spread_keys(self._of_vectors(vectors, call.site))
        if layout.head_dim == -2:  # the queries lie in plates
            return self._of_vectors(vectors.unsqueeze(-2), call.site)
        return layout.spread_queries(self._of_vectors(vectors, call.site))

    def _of_scores(self, scores: Tensor, call: AttentionCall) -> Tensor:
        """Return a width for every score, in the shape of the scores."""
        head_dim = call.layout.head_dim
        if head_dim == -1:  # edges, [..., E, H]
            return self._of_vectors(scores.mT.unsqueeze(-1), call.site).mT
        rows = scores.flatten(head_dim + 1)
        return self._of_vectors(rows.unsqueeze(-1), call.site).reshape(scores.shape)

    def _of_vectors(self, vectors: Tensor, site: str) -> Tensor:
        """Return widths ``[..., H, L]`` of vectors ``[..., H, L, D]``."""
        if vectors.size(-1) != self.dim or self.heads not in (1, vectors.size(-3)):
            problem = f"site '{site}': {self.of} have {vectors.size(-3)} heads of width {vectors.size(-1)}"
            heads = self.heads if self.heads > 1 else "any number of"
            raise ValueError(f"{problem}, but the network of widths expects {heads} heads of width {self.dim}")
        hidden = vectors.to(self.weight.dtype)
        if self.hidden is not None and self.hidden_bias is not None:
            hidden = (hidden @ self.hidden + self.hidden_bias).tanh()
        potential = as_float((hidden @ self.weight).squeeze(-1) + self.bias)
        return self.minimum + torch.nn.functional.softplus(potential)

    def extra_repr(self) -> str:
        return f"{self.dim}, heads={self.heads}, of='{self.of}', initial={self.initial}"
