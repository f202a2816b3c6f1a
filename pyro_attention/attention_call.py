"""AttentionCall: the record of one call of an attention layer, from which its prior and its posterior are made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyro_attention._typing import Args, Kwargs
from pyro_attention.layout import Layout
from pyro_attention.normalizers import Normalizer, Softmax

if TYPE_CHECKING:
    from pyro.distributions import TorchDistribution

    from pyro_attention.families.base import Family
    from pyro_attention.families.distribution import AttentionDistribution

__all__ = ["AttentionCall", "enter"]


@dataclass(frozen=True, eq=False, kw_only=True)
class AttentionCall:
    r"""Record of one call of an attention layer, from which its prior and its posterior are made.

    :class:`LatentAttention` makes it once. A prior network maps it to the prior, ``prior(call)``; a posterior family
    maps it, and that prior, to the posterior, ``family.posterior(call, prior)``. At the sample site it stands in
    ``site["infer"]["call"]``.

    Args:
        scores: Scores :math:`\Phi` as they enter the site (:func:`enter`), in float32 or float64: ``[..., H, M, N]``
            dense, ``[..., H, N]`` where queries lie in plates, ``[..., E, H]`` on a graph.
        layout: Mask and structure.
        normalizer: Map from log weights to weights.
        normalizes: Whether scores enter normalized as the weights are.
        queries: Queries in the shape of the layout; None where the layer does not pass them on.
        keys: Keys in the shape of the layout; None where the layer does not pass them on.
        site: Name of the sample site.
        reads_scores: Whether the layer's prior depends on the scores.
        args: Positional arguments of the model; a guide sets them, for inference networks.
        kwargs: Keyword arguments of the model; a guide sets them, too.

    Example:
        >>> import torch
        >>> from pyro_attention import Dense, FixedGammaPrior, Weibull
        >>> call = AttentionCall(scores=torch.zeros(1, 2, 3), layout=Dense())
        >>> Weibull(5.0).posterior(call, FixedGammaPrior()(call)).full_shape
        torch.Size([1, 2, 3])
    """

    scores: Tensor
    layout: Layout
    normalizer: Normalizer = Softmax()  # noqa: RUF009  (it has no state)
    normalizes: bool = False
    queries: Tensor | None = None
    keys: Tensor | None = None
    site: str = ""
    reads_scores: bool = True
    args: Args = ()
    kwargs: Kwargs | None = None

    @property
    def shape(self) -> torch.Size:
        """Shape of the scores."""
        return self.scores.shape

    def with_scores(self, scores: Tensor) -> AttentionCall:
        """Return a copy of the record with other scores, which enter as the scores of the layer do."""
        return replace(self, scores=enter(scores, self.layout, self.normalizer if self.normalizes else None))

    def posterior(self, family: Family, prior: AttentionDistribution) -> TorchDistribution:
        """Return the posterior of a family; a call without scores, such as a blocked one, overrides this."""
        return family.posterior(self, prior)


def enter(scores: Tensor, layout: Layout, normalizer: Normalizer | None) -> Tensor:
    """Return scores as they enter a site: normalized, unless the normalizer is None, and zero at masked entries."""
    if normalizer is not None:
        return normalizer.normalize_scores(scores, layout)
    return scores if layout.mask is None else scores.masked_fill(~layout.mask, 0)
