"""Gumbel-softmax: alignments relaxed to weights that depend smoothly on the scores."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_attention._checks import check_positive
from pyro_attention.families.alignment import AlignmentWeights, CategoricalAlignment
from pyro_attention.families.base import FAMILIES, Family
from pyro_attention.ops.noise import log_exponential

__all__ = ["GumbelSoftmax", "RelaxedAlignment"]


class RelaxedAlignment(AlignmentWeights):
    r"""An alignment whose draws are weights, :math:`\mathrm{softmax}((\log\pi + G) / \tau)`, G standard Gumbel.

    They tend to one-hot draws of the categorical distribution :math:`\pi` as the temperature falls; log probability (in
    expectation under the weights), entropy and KL are those of that distribution.

    Args:
        alignment: The categorical distribution.
        temperature: ``tau > 0``.

    Raises:
        ValueError: The temperature is not positive.

    Example:
        >>> q = RelaxedAlignment(CategoricalAlignment(torch.zeros(2, 1, 3)), temperature=0.5)
        >>> q.rsample().sum(-1).tolist()
        [[1.0], [1.0]]

    Source: Jang et al. (2017), Categorical Reparameterization with Gumbel-Softmax; Maddison et al. (2017), The
    Concrete Distribution.
    """

    has_rsample = True

    def __init__(self, alignment: CategoricalAlignment, *, temperature: float) -> None:
        check_positive("temperature", temperature)
        super().__init__(alignment)
        self.temperature = temperature

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Weights ``[..., 1, N]``."""
        logits = self.alignment.logits.unsqueeze(-2)
        shape = torch.Size(sample_shape) + logits.shape
        gumbel = -log_exponential(shape, dtype=logits.dtype, device=logits.device)
        return self.layout.softmax((logits + gumbel) / self.temperature)


@FAMILIES.register("gumbel_softmax")
class GumbelSoftmax(Family):
    r"""Relaxed draws of a categorical posterior, for :class:`AttentionELBO`; the KL is the categorical one, exact.

    .. math:: \mathrm{E}[\log f(y \mid \mathrm{softmax}((\log q + G) / \tau))] - \mathrm{KL}(q \| p)

    Its gradient is estimated without bias, but this is no bound on the evidence; it tends to that of
    :class:`Categorical` as the temperature falls, while the variance of its gradient grows.

    By itself q is the prior; with :class:`Amortised` its scores come from an inference network.

    Args:
        temperature: ``tau > 0``.

    Raises:
        ValueError: The temperature is not positive.

    Example:
        >>> GumbelSoftmax()
        GumbelSoftmax(temperature=0.1)

    Source: Jang et al. (2017), Categorical Reparameterization with Gumbel-Softmax; Maddison et al. (2017), The
    Concrete Distribution; Deng et al. (2018), Latent Alignment and Variational Attention, for alignments.
    """

    kind = CategoricalAlignment.kind

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__()
        check_positive("temperature", temperature)
        self.temperature = temperature

    def prior(self, prior: CategoricalAlignment) -> AlignmentWeights:
        return prior.over_weights

    def posterior(self, prior: CategoricalAlignment, *_: Any, **__: Any) -> RelaxedAlignment:
        alignment = prior.at_scores(prior.scores)
        return RelaxedAlignment(alignment, temperature=self.temperature).expand(prior.batch_shape)

    def extra_repr(self) -> str:
        return f"temperature={self.temperature}"
