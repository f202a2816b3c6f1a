"""Prior networks: from the keys of an attention call to a prior distribution over its log weights."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from pyro_attention._checks import check_positive
from pyro_attention.families.distribution import LogWeights
from pyro_attention.families.key_network import KeyNetwork
from pyro_attention.families.proposal import AttentionDistribution
from pyro_attention.families.weights import GammaWeights, LogNormalWeights
from pyro_attention.layout import Layout
from pyro_attention.registry import Registry

__all__ = [
    "PRIORS",
    "ContextualGammaPrior",
    "ContextualLogNormalPrior",
    "FixedGammaPrior",
    "FixedLogNormalPrior",
    "Prior",
]

PRIORS: Registry[type[Prior]] = Registry("prior")


class Prior(nn.Module):
    """Maps (scores, keys, layout) to the prior of one attention call; subclasses implement :meth:`forward`.

    Attributes:
        kind: The kind of its distributions, which a posterior family must share.
        normalizes: Scores may enter as log-softmax; False where their size means something.
        over_queries_obstacle: Why no weights may be normalised over queries too; None where they may.
    """

    kind: ClassVar[str] = LogWeights.kind
    normalizes: ClassVar[bool] = True
    over_queries_obstacle: ClassVar[str | None] = None

    def forward(self, scores: Tensor, keys: Tensor | None, layout: Layout) -> AttentionDistribution:
        """Prior over weights, or their logarithms, of the shape of ``scores``.

        Args:
            scores: As they enter the site. The priors here read their shape only, except those of alignments.
            keys: In the layout's own shape, ``[..., H, N, D]`` dense, ``[..., N, H, D]`` on graphs.
            layout: Where the weights live.
        """
        raise NotImplementedError

    def _log_buffer(self, name: str, value: float, *, of: str = "") -> None:
        check_positive(name, value)
        self.register_buffer(f"log_{of}{name}", torch.tensor(math.log(value)))


@PRIORS.register("gamma_fixed")
class FixedGammaPrior(Prior):
    """The same Gamma(concentration, rate) for every weight.

    Args:
        concentration: Shape ``a > 0``.
        rate: Rate ``b > 0``; the prior mean is ``a / b``.

    Raises:
        ValueError: An argument is not positive and finite.

    Example:
        >>> FixedGammaPrior(concentration=2.0, rate=1.0).log_rate.item()
        0.0

    Source: Fan et al. (2020), Bayesian Attention Modules, section 3.2.
    """

    log_concentration: Tensor
    log_rate: Tensor

    def __init__(self, concentration: float = 1.0, rate: float = 1.0) -> None:
        super().__init__()
        self._log_buffer("concentration", concentration)
        self._log_buffer("rate", rate)

    def forward(self, scores: Tensor, keys: Tensor | None, layout: Layout) -> GammaWeights:  # noqa: ARG002
        return GammaWeights(self.log_concentration, self.log_rate, layout=layout, shape=scores.shape)


@PRIORS.register("lognormal_fixed")
class FixedLogNormalPrior(Prior):
    """The same LogNormal(loc, scale) for every weight.

    Args:
        loc: Mean of ``log S``.
        scale: Standard deviation of ``log S``, positive.

    Raises:
        ValueError: ``loc`` is not finite or ``scale`` not positive.

    Example:
        >>> FixedLogNormalPrior(loc=-1.0, scale=2.0).loc.item()
        -1.0

    Source: Fan et al. (2020), Bayesian Attention Modules, section 3.2.
    """

    loc: Tensor
    log_scale: Tensor

    def __init__(self, loc: float = 0.0, scale: float = 1.0) -> None:
        super().__init__()
        if not math.isfinite(loc):
            raise ValueError(f"loc is {loc}, expected a finite number")
        self.register_buffer("loc", torch.tensor(float(loc)))
        self._log_buffer("scale", scale)

    def forward(self, scores: Tensor, keys: Tensor | None, layout: Layout) -> LogNormalWeights:  # noqa: ARG002
        return LogNormalWeights(self.loc, self.log_scale.exp(), layout=layout, shape=scores.shape)


@PRIORS.register("gamma_contextual")
class ContextualGammaPrior(Prior):
    r"""Gamma prior whose shape is read off the keys: :math:`a_j = b\,\Psi_j`, rate b, so the prior mean is Psi.

    Args:
        key_dim: Width of a key.
        heads: One network a head (as in the graph code), or 1 for a network shared by all heads.
        rate: Rate ``b > 0``; the larger, the stronger the prior.
        hidden_dim: Width of the hidden layer.
        literal: The paper's text instead of its code: :math:`a_j = \Psi_j`, prior mean Psi / b.

    Raises:
        ValueError: A size below one, a rate that is not positive; at a call, keys of another width.

    Example:
        >>> from pyro_attention import Dense
        >>> prior = ContextualGammaPrior(8, heads=2)
        >>> p = prior(torch.zeros(2, 3, 5), torch.randn(2, 5, 8), Dense())
        >>> p.log_expected_weight.exp().sum(-1).allclose(torch.ones(2, 1))
        True

    Source: Fan et al. (2020), Bayesian Attention Modules, section 3.3 (contextual prior).
    """

    log_rate: Tensor

    def __init__(
        self, key_dim: int, heads: int = 1, *, rate: float = 1.0, hidden_dim: int = 10, literal: bool = False
    ) -> None:
        super().__init__()
        self.network = KeyNetwork(key_dim, heads, hidden_dim=hidden_dim)
        self._log_buffer("rate", rate)
        self.literal = literal

    def forward(self, scores: Tensor, keys: Tensor | None, layout: Layout) -> GammaWeights:
        log_psi: Tensor = self.network(keys, layout)
        log_concentration = log_psi if self.literal else log_psi + self.log_rate
        return GammaWeights(log_concentration, self.log_rate, layout=layout, shape=scores.shape)


@PRIORS.register("lognormal_contextual")
class ContextualLogNormalPrior(Prior):
    r"""LogNormal prior whose location is read off the keys: :math:`m_j = \log\Psi_j`, fixed scale.

    Args:
        key_dim: Width of a key.
        heads: One network a head, or 1 for a network shared by all heads.
        scale: Standard deviation of ``log S``, positive; the smaller, the stronger the prior.
        hidden_dim: Width of the hidden layer.
        literal: The paper's text instead of its code: :math:`m_j = \Psi_j`.

    Raises:
        ValueError: A size below one, a scale that is not positive; at a call, keys of another width.

    Example:
        >>> from pyro_attention import Dense
        >>> ContextualLogNormalPrior(8)(torch.zeros(2, 3, 5), torch.randn(2, 5, 8), Dense()).loc.shape
        torch.Size([2, 1, 5])

    Source: Fan et al. (2020), Bayesian Attention Modules, section 3.3 (contextual prior).
    """

    log_scale: Tensor

    def __init__(
        self, key_dim: int, heads: int = 1, *, scale: float = 1.0, hidden_dim: int = 10, literal: bool = False
    ) -> None:
        super().__init__()
        self.network = KeyNetwork(key_dim, heads, hidden_dim=hidden_dim)
        self._log_buffer("scale", scale)
        self.literal = literal

    def forward(self, scores: Tensor, keys: Tensor | None, layout: Layout) -> LogNormalWeights:
        log_psi: Tensor = self.network(keys, layout)
        loc = log_psi.exp() if self.literal else log_psi
        return LogNormalWeights(loc, self.log_scale.exp(), layout=layout, shape=scores.shape)
