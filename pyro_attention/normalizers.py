"""From log weights to weights: what is normalised over what."""

from __future__ import annotations

from torch import Tensor, nn

from pyro_attention.layout import Layout
from pyro_attention.registry import Registry

__all__ = ["NORMALIZERS", "Softmax"]

NORMALIZERS: Registry[type[nn.Module]] = Registry("normalizer")


@NORMALIZERS.register("softmax")
class Softmax(nn.Module):
    r"""Normalise over the keys each query may attend to: :math:`W_{ij} = S_{ij} / \sum_{j'} S_{ij'}`.

    Called with (log weights, layout); returns weights of the same shape whose rows sum to one, with exactly zero
    at masked entries and in fully masked rows.

    Example:
        >>> import torch
        >>> from pyro_attention import Dense
        >>> Softmax()(torch.zeros(1, 1, 2), Dense()).tolist()
        [[[0.5, 0.5]]]
    """

    def forward(self, log_weights: Tensor, layout: Layout) -> Tensor:
        """Weights of the shape of ``log_weights``."""
        return layout.softmax(log_weights)
