"""Latent alignments: their prior, their posterior families, and posteriors from an inference network."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from pyro.distributions import Distribution
from torch import Tensor, nn

from pyro_attention._checks import check_finite
from pyro_attention.families.alignment_weights import AlignmentWeights, CategoricalAlignment, ExpectedWeights
from pyro_attention.families.base import FAMILIES, Family
from pyro_attention.families.prior import PRIORS, Prior
from pyro_attention.layout import Layout

__all__ = ["AlignmentPrior", "Amortised", "Categorical", "ExpectedAlignment", "Marginal"]


@PRIORS.register("alignment")
class AlignmentPrior(Prior):
    r"""The attention scores are the prior: :math:`z \sim \mathrm{Categorical}(\mathrm{softmax}(\Phi))`.

    Example:
        >>> import torch
        >>> from pyro_attention import Dense
        >>> AlignmentPrior()(torch.zeros(2, 1, 3), None, Dense(event_dim=2)).probs.shape
        torch.Size([2, 3])

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, section 2.
    """

    kind: ClassVar[str] = CategoricalAlignment.kind
    over_queries_obstacle = "each query chooses its key by itself"

    def forward(self, scores: Tensor, keys: Tensor | None, layout: Layout) -> CategoricalAlignment:  # noqa: ARG002
        return CategoricalAlignment(scores, layout=layout)


class _AlignmentFamily(Family):
    kind: ClassVar[str] = CategoricalAlignment.kind


@FAMILIES.register("expected_alignment")
class ExpectedAlignment(_AlignmentFamily):
    r"""Soft attention under an alignment prior: the point mass at :math:`\mathrm{E}[z]`, without a prior term.

    Example:
        >>> import torch
        >>> ExpectedAlignment().posterior(CategoricalAlignment(torch.zeros(1, 2))).sample().tolist()
        [[0.5, 0.5]]
    """

    has_prior_term = False

    def prior(self, prior: CategoricalAlignment) -> AlignmentWeights:
        return AlignmentWeights(prior)

    def posterior(self, prior: CategoricalAlignment) -> Distribution:
        return ExpectedWeights(prior)


@FAMILIES.register("marginal")
class Marginal(_AlignmentFamily):
    r"""No posterior: the alignment is summed out exactly, :math:`\log \sum_z p(z)\, f(y \mid z)`.

    For :class:`AlignmentELBO`, whose value then is the log evidence; elsewhere it draws from the prior.

    Example:
        >>> Marginal().infer["enumerate"]
        'parallel'

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, section 3.
    """

    infer: ClassVar[dict[str, Any]] = {"enumerate": "parallel", "marginal": True}

    def posterior(self, prior: CategoricalAlignment) -> Distribution:
        return prior


@FAMILIES.register("categorical")
class Categorical(_AlignmentFamily):
    r"""Categorical posterior, summed out exactly: :math:`\mathrm{E}_q[\log f(y \mid z)] - \mathrm{KL}(q \| p)`.

    By itself q is the prior ("hard attention", whose KL is zero); with :class:`Amortised` its scores come from an
    inference network.

    Args:
        enumerate: Sum over all keys; False draws one, for estimators of its gradient.

    Example:
        >>> Categorical()
        Categorical(enumerate=True)

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, section 3.1.
    """

    def __init__(self, *, enumerate: bool = True) -> None:
        super().__init__()
        self.enumerate = enumerate

    @property
    def infer(self) -> dict[str, Any]:  # type: ignore[override]
        """How the site is to be inferred."""
        return {"enumerate": "parallel"} if self.enumerate else {}

    def posterior(self, prior: CategoricalAlignment) -> Distribution:
        return CategoricalAlignment(prior.proposal.scores, layout=prior.layout)

    def extra_repr(self) -> str:
        return f"enumerate={self.enumerate}"


class Amortised(Family):
    r"""A family whose scores come from an inference network instead of the attention layer.

    The network is called with the arguments of the model and returns scores of the shape of the layer's own; it may
    look at everything the model is given, the observations too. Masks are the layer's, and so is whether scores enter
    normalised: a network that returns the layer's scores gives the posterior that the family has by itself.

    Args:
        network: Inference network, a module.
        family: The family of the posterior.
        from_prior: Add the network's scores to the layer's own (without their gradient). A network whose scores are
            zero at first then starts at q = p, so that an untrained q does not pull at a model trained already.
        warm_start: Leave the network aside: the posterior is the family's at the prior's own scores, so the ELBO is
            Jensen's bound :math:`\mathrm{E}_p[\log f(y \mid z)]`. An attribute that the training loop sets to False.

    Raises:
        TypeError: The family is no :class:`Family`.
        ValueError: At a call: scores of another shape than the layer's, or that are NaN or infinite where not masked.

    Example:
        >>> Amortised(nn.Linear(3, 3), Categorical()).kind
        'alignment'

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, section 3.2; algorithm 2 (warm start).
    """

    def __init__(
        self, network: nn.Module, family: Family, *, from_prior: bool = False, warm_start: bool = False
    ) -> None:
        super().__init__()
        if not isinstance(family, Family):
            raise TypeError(f"family is {family!r}, expected a Family such as Categorical()")
        self.network, self.family = network, family
        self.from_prior, self.warm_start = from_prior, warm_start

    @property
    def kind(self) -> str:  # type: ignore[override]
        """That of the family."""
        return self.family.kind

    @property
    def has_prior_term(self) -> bool:  # type: ignore[override]
        """That of the family."""
        return self.family.has_prior_term

    @property
    def infer(self) -> dict[str, Any]:  # type: ignore[override]
        """That of the family."""
        return self.family.infer

    def prior(self, prior: Any) -> Any:
        return self.family.prior(prior)

    def amortise(self, prior: Any, *args: Any, **kwargs: Any) -> Distribution:
        """Posterior of a site from its prior and the arguments of the model."""
        if self.warm_start:
            return self.family.posterior(prior)
        scores = self.network(*args, **kwargs)
        own = prior.proposal.scores
        if scores.shape != own.shape:
            raise ValueError(
                f"the inference network returned scores of shape {tuple(scores.shape)}, expected the layer's "
                f"{tuple(own.shape)}; if it scores all queries at once, they must be one site of the model"
            )
        if self.from_prior:
            scores = scores + own.detach()
        proposal = replace(prior.proposal, scores=scores)
        if torch.distributions.Distribution._validate_args:
            check_finite("the inference network's output", proposal.scores)
        return self.family.posterior(prior.with_proposal(proposal))
