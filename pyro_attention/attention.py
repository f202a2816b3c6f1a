"""LatentAttention: the one place in the library that samples attention weights."""

from __future__ import annotations

from typing import Any

import pyro
import torch
from torch import Tensor, nn

from pyro_attention._checks import PlateCheck, as_float, check_pairs, check_per_key, check_scores
from pyro_attention.distributions import BlockedPrior, BlockedValue
from pyro_attention.distributions.attention import AttentionDistribution, Proposal
from pyro_attention.distributions.pairs import Pairs
from pyro_attention.layout import Dense, Layout
from pyro_attention.normalizers import Normalizer, Softmax
from pyro_attention.ops.dropout import Dropout
from pyro_attention.output import AttentionOutput
from pyro_attention.priors import (
    ContextualGammaPrior,
    ContextualLogNormalPrior,
    FixedGammaPrior,
    FixedLogNormalPrior,
    Prior,
)

__all__ = ["LatentAttention"]

_BLOCKED_PRIORS = (FixedGammaPrior, FixedLogNormalPrior, ContextualGammaPrior, ContextualLogNormalPrior)


class LatentAttention(nn.Module):
    """Attention whose weights are a Pyro sample site.

    Declares ``pyro.sample(name, prior)`` with value ``log S``, normalises it and aggregates the values. What the
    weights are, deterministic or random, is the guide's affair.

    Args:
        name: Name of the sample site.
        prior: Prior network.
        normalizer: From log weights to weights; :class:`Softmax` by default.
        dropout: Probability of dropping a weight after normalisation, in training mode.
        normalize_scores: Enter the site with scores normalised as the weights are: log-softmax, for a bounded KL, as
            in the released code of the paper. False gives the paper's raw ``exp(score)``. The weights' distribution is
            the same, except under a prior whose scores have a size that matters (``prior.normalizes`` is False):
            these always enter raw.

    Raises:
        TypeError: The normalizer is no :class:`Normalizer`; at a call: the prior network returns another distribution.
        ValueError: The dropout probability is outside [0, 1), or a normalizer over queries with an alignment,
            Dirichlet or Gaussian prior.

    Example:
        >>> from pyro_attention import AttentionGuide, FixedGammaPrior, Weibull
        >>> attention = LatentAttention("attention", FixedGammaPrior())
        >>> def model(scores, values):
        ...     return attention(scores, values).context
        >>> guide = AttentionGuide(model, Weibull(concentration=10.0))
        >>> draw = guide(torch.zeros(2, 3, 4), torch.randn(2, 4, 8))
        >>> draw["attention"].shape
        torch.Size([2, 3, 4])

    Source: Fan et al. (2020), Bayesian Attention Modules, section 3.
    """

    def __init__(
        self,
        name: str,
        prior: Prior,
        *,
        normalizer: Normalizer | None = None,
        dropout: float = 0.0,
        normalize_scores: bool = True,
    ) -> None:
        super().__init__()
        self.name = name
        self.prior = prior
        self.normalizer = Softmax() if normalizer is None else normalizer
        self._check_normalizer()
        self.dropout = Dropout(dropout)
        self.normalize_scores = normalize_scores

    def forward(
        self, scores: Tensor, values: Tensor, *, keys: Tensor | None = None, layout: Layout | None = None
    ) -> AttentionOutput:
        """Sample the weights and aggregate the values.

        Args:
            scores: Attention scores, ``[..., H, M, N]`` dense or ``[..., E, H]`` on a graph.
            values: ``[..., H, N, D]`` dense, ``[..., N, H, D]`` on a graph.
            keys: Keys for a contextual prior, shaped like the values.
            layout: Mask and structure; dense without a mask by default.

        Raises:
            TypeError: The scores are not floating point.
            ValueError: Shapes do not fit, scores are not finite, keys are missing, a batch dimension has no plate, or
                a normalizer over queries meets a causal mask or queries in a plate.
            RuntimeError: Called from inside a backward pass (gradient checkpointing).
        """
        layout = Dense() if layout is None else layout
        check_scores(scores, site=self.name)
        layout.check(scores, site=self.name)
        self.normalizer.check(layout, site=self.name)
        check_per_key("values", values, scores, layout, site=self.name)
        check_per_key("keys", keys, scores, layout, site=self.name)
        # an autocast region would redo the softmax inputs in half precision
        with torch.autocast(scores.device.type, enabled=False):
            prior = self._prior(as_float(scores), keys, layout)
            with PlateCheck():
                log_weights = pyro.sample(self.name, prior)
            weights = prior.weights(log_weights)
        context = layout.aggregate(self.dropout(weights).to(values.dtype), values)
        return AttentionOutput(context=context, weights=weights)

    def blocked(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        key_mask: Tensor | None = None,
        query_mask: Tensor | None = None,
        causal: bool = False,
    ) -> AttentionOutput:
        """The same from queries and keys, in memory that grows as their number and not as its square.

        Scores are ``queries @ keys.T``; neither they nor the weights are held. The site's value is a
        :class:`BlockedValue`. Under a causal mask a contextual or LogNormal prior's KL takes a second pass.

        Args:
            queries: ``[..., H, M, D]``, already scaled.
            keys: ``[..., H, N, D]``, also those of a contextual prior.
            values: ``[..., H, N, Dv]``.
            key_mask: Boolean ``[..., N]``, True = may be attended to.
            query_mask: Boolean ``[..., M]``, True = may attend.
            causal: Query i sees the keys 0 .. i alone.

        Raises:
            ValueError: Something here is not blocked (see :meth:`obstacle`), or as in :meth:`forward`.
            TypeError: Queries, keys or values are not floating point, or a mask is not boolean.
            RuntimeError: Called from inside a backward pass (gradient checkpointing).
        """
        reason = self.obstacle()
        if reason is not None:
            raise ValueError(f"site '{self.name}': blocked attention does not support {reason}; use dense attention")
        check_pairs(queries, keys, values, key_mask, query_mask, site=self.name)
        pairs = Pairs(queries, keys, key_mask, query_mask, causal, self.normalize_scores and self.prior.normalizes)
        per_query = causal and not isinstance(self.prior, FixedGammaPrior | FixedLogNormalPrior)
        with torch.autocast(queries.device.type, enabled=False):
            prior = BlockedPrior(self.prior, pairs, per_query=per_query, site=self.name)
            with PlateCheck():
                value = pyro.sample(self.name, prior)
            if isinstance(value, BlockedValue):
                return AttentionOutput(context=value.attend(values), weights=None)
            weights = prior.weights(value)  # given by a condition
        return AttentionOutput(context=weights.to(values.dtype) @ values, weights=weights)

    def obstacle(self, *, training: bool | None = None) -> str | None:
        """What keeps this layer from being blocked; None when nothing does.

        Args:
            training: The mode, on which dropout depends; the layer's own by default.
        """
        if type(self.normalizer) is not Softmax:
            return f"the normalizer {type(self.normalizer).__name__}, only Softmax"
        if type(self.prior) not in _BLOCKED_PRIORS:  # a subclass may read the scores, of which there are none
            return f"the prior {type(self.prior).__name__}, only {', '.join(p.__name__ for p in _BLOCKED_PRIORS)}"
        if (self.training if training is None else training) and self.dropout.p > 0:
            return f"dropout of the weights (here {self.dropout.p} in training mode)"
        return None

    def _check_normalizer(self) -> None:
        if not isinstance(self.normalizer, Normalizer):
            raise TypeError(
                f"site '{self.name}': normalizer is {self.normalizer!r}, expected a Normalizer such as Softmax(); "
                f"NORMALIZERS['softmax'] finds one by name"
            )
        if self.normalizer.over_queries and self.prior.over_queries_obstacle is not None:
            raise ValueError(
                f"site '{self.name}': {type(self.normalizer).__name__} normalises over queries, but under "
                f"{type(self.prior).__name__} {self.prior.over_queries_obstacle}; use Softmax(), or a Gamma or "
                f"LogNormal prior"
            )

    def _prior(self, scores: Tensor, keys: Tensor | None, layout: Layout) -> Any:
        normalize = self.normalize_scores and self.prior.normalizes
        proposal = Proposal(scores, layout, self.normalizer, normalize)
        prior = self.prior(proposal.scores, keys, layout)
        if not isinstance(prior, AttentionDistribution):
            raise TypeError(
                f"site '{self.name}': the prior network {type(self.prior).__name__} returned a {type(prior).__name__}, "
                f"expected a distribution over attention weights such as GammaWeights"
            )
        return prior.with_proposal(proposal)
