"""A prior with a learned width around the scores of the layer, and the posterior that keeps the prior."""

from __future__ import annotations

from pyro.distributions import TorchDistribution

from pyro_attention.attention_call import AttentionCall
from pyro_attention.families.base import Family, OneParameterFamily, Prior
from pyro_attention.families.distribution import LogWeights

__all__ = ["FromPrior", "ScorePrior"]


class ScorePrior(Prior):
    r"""Prior of noise in the attention, :math:`p(S \mid x)` with :math:`\mathrm{E}[S] = \exp(\Phi)`.

    It is the distribution of a family of positive weights at the scores of the layer. Its width is then a part of the
    model, which :class:`EvidenceELBO` learns from the data, and no choice of the guide: the guide is
    :class:`FromPrior`, or :class:`Amortized`, which may look at the observations.

    Args:
        family: LogNormal, Weibull or Gamma, with its width: learnable, or a network (:class:`WidthNetwork`).

    Raises:
        ValueError: The family is no family of positive weights with a width.

    Example:
        >>> import torch
        >>> from pyro_attention import AttentionGuide, LatentAttention, LogNormal
        >>> attention = LatentAttention("attention", ScorePrior(LogNormal(scale=0.5, learnable=True)))
        >>> guide = AttentionGuide(lambda scores, values: attention(scores, values).context, FromPrior())
        >>> guide(torch.zeros(1, 2, 3), torch.ones(1, 3, 4))["attention"].shape
        torch.Size([1, 2, 3])

    Source: Fan et al. (2020), Bayesian Attention Modules, section 3.2, for the families.
    """

    def __init__(self, family: OneParameterFamily) -> None:
        super().__init__()
        if not isinstance(family, OneParameterFamily) or family.kind != LogWeights.kind:
            raise ValueError(f"family is {family}, expected one of positive weights with a width, such as LogNormal()")
        self.family = family

    def forward(self, call: AttentionCall) -> LogWeights:
        around_scores = LogWeights(location=call.scores, layout=call.layout)
        prior = self.family.posterior(call, around_scores)
        assert isinstance(prior, LogWeights)  # by the kind of the family
        return prior


class FromPrior(Family):
    r"""Posterior that equals the prior: weights are drawn from the model itself, and there is no KL.

    Under :class:`EvidenceELBO` it estimates the log evidence, and the width of a :class:`ScorePrior` is learned.
    Under :class:`AttentionELBO` it gives Jensen's bound :math:`\mathrm{E}_p[\log f(y \mid W)]`, which is largest where
    the width is zero: a learned one collapses, of which objectives and :func:`check_model` warn.

    Raises:
        ValueError: At a call: a prior that does not read the scores, such as the default of
            :class:`MultiheadAttention`, under which the attention would not depend on the queries.

    Example:
        >>> FromPrior().has_prior_term
        False
    """

    kind = None
    has_prior_term = False

    def posterior(self, call: AttentionCall, prior: TorchDistribution) -> TorchDistribution:
        if not call.reads_scores:
            raise ValueError(
                f"site '{call.site}': FromPrior draws the weights from a prior ({type(prior).__name__}) that does not "
                f"read the scores, so the queries would not train; give the layer a prior around its scores, "
                f"prior=ScorePrior(LogNormal(scale=0.5, learnable=True)), or the guide a family that reads them, such "
                f"as Weibull()"
            )
        return prior
