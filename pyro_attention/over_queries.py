"""Normalizers over the queries as well as over the keys, so that no key is ignored by all queries.

A query that may attend to nothing, such as padding, takes no part in either.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from pyro_attention._checks import as_float
from pyro_attention.layout import Dense, Layout
from pyro_attention.normalizers import NORMALIZERS, Normalizer, Softmax

__all__ = ["DoublyNormalized", "Hybrid", "Sinkhorn"]


class _OverQueries(Normalizer):
    over_queries = True

    def check(self, layout: Layout, *, site: str) -> None:
        what = f"site '{site}': {type(self).__name__} normalizes over queries"
        if isinstance(layout, Dense) and layout.event_dim == 2:
            raise ValueError(f"{what}, but with event_dim=2 these lie in a plate; use Dense(event_dim=3), or Softmax()")
        if isinstance(layout, Dense) and layout.causal:
            raise ValueError(
                f"{what}, the later ones too, and would leak the future to the earlier ones; use Softmax()"
            )


@NORMALIZERS.register("doubly_normalized")
class DoublyNormalized(_OverQueries):
    r"""Normalize over the queries, then over the keys: no key is explained away.

    .. math:: A_{ij} = S_{ij} / \sum_{i'} S_{i'j}, \qquad W_{ij} = A_{ij} / \sum_{j'} A_{ij'}

    The weights a key gets from all queries sum to at least 1 / number of keys, if any query may attend to it.

    A term that is equal for all queries cancels, such as the mean of a contextual prior. Where a query may not depend
    on later ones this would leak them: causal attention, by ``Dense(causal=True)`` or ``is_causal=True`` of a layer, is
    refused. A causal mask alone, or a graph of steps in time, is not recognized.

    Example:
        >>> from pyro_attention import Dense
        >>> DoublyNormalized()(torch.tensor([[[3.0, 0.0], [3.0, 0.0]]]), Dense()).tolist()  # both prefer key 0
        [[[0.5, 0.5], [0.5, 0.5]]]

    Source: Ding et al. (2020), Attention that does not Explain Away, equation (5) and Theorem 2.
    """

    def forward(self, log_weights: Tensor, layout: Layout) -> Tensor:
        return layout.softmax(layout.log_softmax(as_float(log_weights), over_queries=True))

    def normalize_scores(self, scores: Tensor, layout: Layout) -> Tensor:
        return layout.log_softmax(scores, over_queries=True)


@NORMALIZERS.register("sinkhorn")
class Sinkhorn(DoublyNormalized):
    r"""Normalize over queries and keys in turn; one iteration is :class:`DoublyNormalized`, whose limits it shares.

    Many iterations approach the weights that maximize :math:`\sum W \log S - \sum W \log W` with rows that sum to one
    and columns that sum to queries / keys.

    Args:
        iterations: Number of sweeps.

    Raises:
        ValueError: ``iterations`` is below one.

    Example:
        >>> from pyro_attention import Dense
        >>> Sinkhorn(50)(torch.randn(1, 3, 3), Dense()).sum(-2)
        tensor([[1.0000, 1.0000, 1.0000]])

    Source: Ding et al. (2020), Attention that does not Explain Away, equations (9) and (10).
    """

    def __init__(self, iterations: int = 5) -> None:
        super().__init__()
        if iterations < 1:
            raise ValueError(f"iterations is {iterations}, expected at least 1")
        self.iterations = iterations

    def forward(self, log_weights: Tensor, layout: Layout) -> Tensor:
        log_weights = as_float(log_weights)
        for _ in range(self.iterations - 1):
            log_weights = layout.log_softmax(layout.log_softmax(log_weights, over_queries=True))
        return super().forward(log_weights, layout)

    def extra_repr(self) -> str:
        return str(self.iterations)


@NORMALIZERS.register("hybrid")
class Hybrid(_OverQueries):
    r"""Trained mixture, one mixing weight a head: :math:`W = u\, W^\mathrm{doubly} + (1 - u)\, W^\mathrm{softmax}`.

    The paper does not say how u is kept between 0 and 1; here it is a sigmoid.

    Args:
        heads: Number of mixing weights: the layer's heads, or 1 for one that they share.
        initial: Initial mixing weight, between 0 and 1 (the paper has .5 and .1).

    Raises:
        ValueError: ``heads`` is below one, ``initial`` not between 0 and 1; at a call, another number of heads.

    Example:
        >>> Hybrid(heads=2, initial=0.1).mixing_weights
        tensor([0.1000, 0.1000])

    Source: Ding et al. (2020), Attention that does not Explain Away, equation (12).
    """

    def __init__(self, heads: int = 1, *, initial: float = 0.5) -> None:
        super().__init__()
        if heads < 1:
            raise ValueError(f"heads is {heads}, expected at least 1")
        if not 0 < initial < 1:
            raise ValueError(f"initial is {initial}, expected a number between 0 and 1, both excluded")
        self.softmax, self.doubly_normalized = Softmax(), DoublyNormalized()
        self.logit = nn.Parameter(torch.full((heads,), math.log(initial / (1 - initial))))

    @property
    def mixing_weights(self) -> Tensor:
        """Share u of doubly normalized attention in each head, ``[heads]``, without gradient."""
        return as_float(self.logit.detach()).sigmoid()

    def forward(self, log_weights: Tensor, layout: Layout) -> Tensor:
        num_logits, heads = self.logit.numel(), log_weights.size(layout.head_dim)
        if num_logits not in (1, heads):
            raise ValueError(
                f"Hybrid has {num_logits} mixing weights, attention {heads} heads; pass Hybrid(heads={heads})"
            )
        plain: Tensor = self.softmax(log_weights, layout)
        doubly: Tensor = self.doubly_normalized(log_weights, layout)
        return torch.lerp(plain, doubly, layout.spread_heads(self.logit.to(plain).sigmoid()))

    def normalize_scores(self, scores: Tensor, layout: Layout) -> Tensor:
        """Shift scores by one number a head, the only shift that changes neither part: rows sum to one on average."""
        dims = [dim for dim in range(-layout.event_dim, 0) if dim != layout.head_dim]
        rows = layout.softmax(scores.detach()).sum(dims, keepdim=True)  # one for each query with a key
        hidden = None if layout.mask is None else ~layout.mask
        visible = scores if hidden is None else scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        # one log softmax over the whole event of a head, several times faster than a difference to its logsumexp
        shifted = visible.flatten(dims[0], dims[-1]).log_softmax(dims[-1]).view_as(scores) + rows.clamp(min=1).log()
        return shifted if hidden is None else shifted.masked_fill(hidden, 0)

    def extra_repr(self) -> str:
        return f"mixing_weights={[round(weight, 4) for weight in self.mixing_weights.tolist()]}"
