"""Relaxed alignments: draws are weights near a single key, and differentiable."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pyro_attention.alignments.base import AlignmentDistribution, AlignmentWeights
from pyro_attention.ops.noise import log_exponential

__all__ = ["RelaxedAlignment"]


class RelaxedAlignment(AlignmentWeights):
    r"""An alignment whose draws are weights, :math:`\mathrm{softmax}((\log\pi + G) / \tau)`, G standard Gumbel.

    They tend to one-hot draws of the categorical distribution :math:`\pi` as the temperature falls; log probability (in
    expectation under the weights), entropy and KL are those of that distribution.

    Args:
        alignment: The categorical distribution, over keys or edges.
        temperature: ``tau > 0``.

    Example:
        >>> from pyro_attention.alignments.categorical import CategoricalAlignment
        >>> q = RelaxedAlignment(CategoricalAlignment(torch.zeros(2, 1, 3)), temperature=0.5)
        >>> q.rsample().sum(-1).tolist()
        [[1.0], [1.0]]

    Source: Jang et al. (2017), Categorical Reparameterization with Gumbel-Softmax; Maddison et al. (2017), The
    Concrete Distribution.
    """

    has_rsample = True

    def __init__(self, alignment: AlignmentDistribution, *, temperature: float) -> None:
        super().__init__(alignment)
        self.temperature = temperature

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Return weights ``[..., 1, N]``, or ``[..., E, 1]`` on a graph."""
        logits = self.alignment.log_weights
        shape = torch.Size(sample_shape) + logits.shape
        gumbel = -log_exponential(shape, dtype=logits.dtype, device=logits.device)
        return self.layout.softmax((logits + gumbel) / self.temperature)
