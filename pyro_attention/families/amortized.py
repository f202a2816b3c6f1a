"""Amortized: a posterior family whose scores come from an inference network."""

from __future__ import annotations

from pyro.distributions import TorchDistribution
from torch import nn

from pyro_attention._checks import check_kind
from pyro_attention._compat import active_handlers
from pyro_attention.attention_call import AttentionCall
from pyro_attention.families.base import Family
from pyro_attention.families.distribution import AttentionDistribution

__all__ = ["Amortized"]


class Amortized(Family):
    r"""Family whose scores come from an inference network instead of the attention layer.

    The network is called with the arguments of the model and returns scores of the shape of the layer's scores; it may
    read everything that the model is passed, including the observations. The mask of the layer applies, and its choice
    whether scores enter normalized: a network that returns the layer's scores gives the posterior that the family has
    without a network.

    Args:
        network: Inference network, a module.
        family: The family of the posterior.
        from_prior: Add the network's scores to those of the layer (without their gradient). A network whose scores are
            zero at first then starts at q = p, so that an untrained q does not disturb a model trained already.
        warm_start: Do not use the network yet: the posterior has the scores of the prior, so the ELBO is Jensen's bound
            :math:`\mathrm{E}_p[\log f(y \mid z)]`. An attribute that the training loop sets to False.

    Raises:
        ValueError: At a call: scores of another shape than the layer's.

    Example:
        >>> from pyro_attention import Categorical
        >>> Amortized(nn.Linear(3, 3), Categorical()).kind
        'alignment'

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, section 3.2; algorithm 2 (warm start).
    """

    def __init__(
        self, network: nn.Module, family: Family, *, from_prior: bool = False, warm_start: bool = False
    ) -> None:
        super().__init__()
        check_kind("family", family, Family, "Categorical()")
        self.network, self.family = network, family
        self.from_prior, self.warm_start = from_prior, warm_start
        self.kind, self.has_prior_term, self.is_marginal = family.kind, family.has_prior_term, family.is_marginal
        self.infer = family.infer  # type: ignore[misc]

    def prior(self, prior: AttentionDistribution) -> AttentionDistribution:
        return self.family.prior(prior)

    def posterior(self, call: AttentionCall, prior: AttentionDistribution) -> TorchDistribution:
        if self.warm_start:
            return self.family.posterior(call, prior)
        scores, layer_scores = self.network(*call.args, **(call.kwargs or {})), call.scores
        # what was drawn ahead gives the layer's scores the dimensions of plates around the guide, such as particles
        outer = (
            layer_scores.dim() - scores.dim() if any(getattr(h, "_outer_plates", ()) for h in active_handlers()) else 0
        )
        if scores.shape != layer_scores.shape[max(outer, 0) :]:
            problem = f"the inference network returned scores of shape {tuple(scores.shape)}"
            remedy = "if it scores all queries at once, they must be one site of the model"
            raise ValueError(f"{problem}, expected the layer's {tuple(layer_scores.shape)}; {remedy}")
        scores = scores.expand(layer_scores.shape)
        if self.from_prior:
            scores = scores + layer_scores.detach()
        return self.family.posterior(call.with_scores(scores), prior)
