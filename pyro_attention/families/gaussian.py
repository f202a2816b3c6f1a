"""Plain Gaussian attention weights, off the simplex: the ablation that Bayesian attention is compared with.

Weights may be negative and do not sum to one. They have a kind of their own, so prior and family go together.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn
from torch.distributions import register_kl

from pyro_attention.attention_call import AttentionCall
from pyro_attention.families.base import FAMILIES, PRIORS, OneParameterFamily
from pyro_attention.families.distribution import AttentionDistribution, kl_log_weights
from pyro_attention.families.key_network import ConstantPrior, KeyNetwork
from pyro_attention.families.lognormal import NormalValue
from pyro_attention.normalizers import Normalizer

__all__ = ["ContextualGaussianPrior", "FixedGaussianPrior", "Gaussian", "GaussianWeights"]


class GaussianWeights(NormalValue):
    r"""Independent Gaussian weights: the value is the weight itself, :math:`W \sim \mathrm{Normal}(m, s)`.

    No normalizer touches it; :meth:`weights` sets masked entries to zero. Arguments are those of :class:`NormalValue`.

    Example:
        >>> import torch
        >>> q = GaussianWeights(torch.tensor([0.9, 0.1]).expand(1, 1, 2), torch.tensor(0.5))
        >>> q.weights(torch.tensor([[[-0.5, 2.0]]])).tolist()
        [[[-0.5, 2.0]]]

    Source: Fan et al. (2020), Bayesian Attention Modules, section 4.3, after Bahuleyan et al. (2018), Variational
    Attention for Sequence-to-Sequence Models, who draw the attended vector instead of the weights.
    """

    kind: ClassVar[str] = "gaussian weights"
    holds_logarithms: ClassVar[bool] = False

    def weights(self, value: Tensor, normalizer: Normalizer | None = None) -> Tensor:  # noqa: ARG002
        return value if self.layout.mask is None else value.masked_fill(~self.layout.mask, 0)

    @property
    def mean_value(self) -> Tensor:
        return self.loc.expand(self.full_shape)

    def soft_value(self, call: AttentionCall) -> Tensor:
        """Return the weights of ordinary attention, around which the posterior lies."""
        weights: Tensor = call.normalizer(call.scores, call.layout)
        return weights.expand(self.full_shape)


register_kl(GaussianWeights, GaussianWeights)(kl_log_weights)  # which needs nothing else than moments of the value


@PRIORS.register("gaussian_fixed")
class FixedGaussianPrior(ConstantPrior):
    """One Normal(loc, scale) for all weights.

    Example:
        >>> FixedGaussianPrior(scale=2.0)
        FixedGaussianPrior(gaussian_loc=0.0, gaussian_scale=2.0)

    Source: Bahuleyan et al. (2018), Variational Attention for Sequence-to-Sequence Models: N(0, 1).
    """

    kind = GaussianWeights.kind
    gaussian_loc: Tensor
    log_gaussian_scale: Tensor

    def __init__(self, loc: float = 0.0, scale: float = 1.0) -> None:
        super().__init__()
        self.add_constant("loc", loc, of="gaussian_")
        self.add_positive("scale", scale, of="gaussian_")

    def forward(self, call: AttentionCall) -> GaussianWeights:
        return GaussianWeights(
            self.gaussian_loc, self.log_gaussian_scale.exp(), layout=call.layout, shape=call.scores.shape
        )


@PRIORS.register("gaussian_contextual")
class ContextualGaussianPrior(ConstantPrior):
    r"""Gaussian prior whose mean is read off the keys: :math:`m_j = \Psi_j`, a softmax over them, and fixed scale.

    Args:
        key_dim: Width of a key.
        heads: One network a head, or 1 for a network shared by all heads.
        scale: Standard deviation, positive.
        hidden_dim: Width of the hidden layer.

    Example:
        >>> ContextualGaussianPrior(8).network
        KeyNetwork(8, heads=1, hidden_dim=10)

    Source: Fan et al. (2020), Bayesian Attention Modules, section 3.3, for the network.
    """

    kind = GaussianWeights.kind
    log_gaussian_scale: Tensor

    def __init__(self, key_dim: int, heads: int = 1, *, scale: float = 1.0, hidden_dim: int = 10) -> None:
        super().__init__()
        self.network = KeyNetwork(key_dim, heads, hidden_dim=hidden_dim)
        self.add_positive("scale", scale, of="gaussian_")

    def forward(self, call: AttentionCall) -> GaussianWeights:
        log_psi: Tensor = self.network(call.keys, call.layout)
        return GaussianWeights(
            log_psi.exp(), self.log_gaussian_scale.exp(), layout=call.layout, shape=call.scores.shape
        )


@FAMILIES.register("gaussian")
class Gaussian(OneParameterFamily):
    r"""Gaussian posterior around the deterministic weights: :math:`W \sim \mathrm{Normal}(w(\Phi), s)`.

    Args:
        scale: ``s > 0``, the standard deviation of a weight, a number or one per head; to 0 is ordinary attention.
        learnable: Train the number (through its logarithm).

    Example:
        >>> Gaussian(scale=0.2)
        Gaussian(scale=0.2)

    Source: Bahuleyan et al. (2018), Variational Attention for Sequence-to-Sequence Models, with its mean.
    """

    kind = GaussianWeights.kind

    def __init__(self, scale: float | Tensor | nn.Module = 0.1, *, learnable: bool = False) -> None:
        super().__init__("scale", scale, of="gaussian", learnable=learnable)

    def posterior(self, call: AttentionCall, prior: AttentionDistribution) -> GaussianWeights:
        mean = call.normalizer(call.scores, call.layout)
        return GaussianWeights(mean, self.value(call), layout=call.layout, shape=prior.full_shape)
