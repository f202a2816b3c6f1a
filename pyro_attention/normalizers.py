"""Maps from log weights to weights: Softmax over the keys; ``over_queries`` has normalizers over queries, too."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from pyro_attention._checks import as_float
from pyro_attention.layout import Layout
from pyro_attention.registry import Registry

__all__ = ["NORMALIZERS", "Normalizer", "Softmax"]

NORMALIZERS: Registry[type[Normalizer]] = Registry("normalizer")


class Normalizer(nn.Module):
    """Map from log weights and their layout to weights of that shape, in float32 or float64.

    Rows sum to one, with exactly zero at masked entries and in fully masked rows; a factor common to a head cancels.
    ``over_queries`` says whether a weight depends on the scores of other queries.
    """

    over_queries: ClassVar[bool] = False

    def forward(self, log_weights: Tensor, layout: Layout) -> Tensor:
        """Return weights of the shape of ``log_weights``."""
        raise NotImplementedError

    def normalize_scores(self, scores: Tensor, layout: Layout) -> Tensor:
        """Return scores of the same weights with bounded exponentials, for a bounded KL; masked entries become 0."""
        raise NotImplementedError

    def check(self, layout: Layout, *, site: str) -> None:
        """Raise ValueError, naming the site, where a query may not depend on other queries."""


@NORMALIZERS.register("softmax")
class Softmax(Normalizer):
    r"""Normalize over the keys each query may attend to: :math:`W_{ij} = S_{ij} / \sum_{j'} S_{ij'}`.

    Example:
        >>> import torch
        >>> from pyro_attention import Dense
        >>> Softmax()(torch.zeros(1, 1, 2), Dense()).tolist()
        [[[0.5, 0.5]]]
    """

    def forward(self, log_weights: Tensor, layout: Layout) -> Tensor:
        return layout.softmax(as_float(log_weights))

    def normalize_scores(self, scores: Tensor, layout: Layout) -> Tensor:
        return layout.log_softmax(scores)
