"""Alignments: which key a query attends to, as a categorical distribution over keys."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import register_kl

from pyro_attention.layout import Dense, Layout
from pyro_attention.normalizers import Normalizer, Softmax

__all__ = ["CategoricalAlignment", "ExpectedWeights"]


class CategoricalAlignment(dist.Categorical):
    r"""The key that a query attends to, :math:`z \sim \mathrm{Categorical}(\mathrm{softmax}(\Phi))`.

    Its value is the index of a key; :meth:`weights` makes it a row of attention weights with a single one. A floating
    point value stands for the weights themselves: so ordinary soft attention, ``E[z]``, is a value of the same site.

    Args:
        scores: Unnormalised log probabilities of the keys, ``[..., 1, N]``: one head, queries in plates.
        layout: Dense with ``event_dim=2``; its mask takes keys out. Without any key the weights are zero.
        validate_args: Check values.

    Attributes:
        scores: What the attention layer proposes.
        normalizer: Kept for the layer; alignments are normalised by softmax.

    Raises:
        ValueError: More than one head, or a layout with queries in the event or on a graph.

    Example:
        >>> prior = CategoricalAlignment(torch.zeros(2, 1, 3))
        >>> prior.weights(torch.tensor([0, 2])).tolist()
        [[[1.0, 0.0, 0.0]], [[0.0, 0.0, 1.0]]]

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, section 2.
    """

    kind: ClassVar[str] = "alignment"

    def __init__(self, scores: Tensor, *, layout: Layout | None = None, validate_args: bool | None = None) -> None:
        layout = Dense(event_dim=2) if layout is None else layout
        if not isinstance(layout, Dense) or layout.event_dim != 2:
            raise ValueError(
                f"layout is {layout}, expected Dense(event_dim=2): each query's alignment is its own value"
            )
        if scores.dim() < 2 or scores.size(-2) != 1:
            raise ValueError(f"scores have shape {tuple(scores.shape)}, expected one head, [..., 1, keys]")
        self.layout, self.scores = layout, scores
        self.normalizer: Normalizer = Softmax()
        logits = scores.squeeze(-2)
        if layout.mask is not None:
            mask = layout.mask.expand(scores.shape).squeeze(-2)
            # finite, so that a probability of zero times its logarithm is zero; no key at all: all alike
            logits = logits.masked_fill(~mask & mask.any(-1, keepdim=True), torch.finfo(scores.dtype).min / 8)
        super().__init__(logits=logits, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> CategoricalAlignment:
        """Copy with a larger batch shape."""
        new = type(self).__new__(type(self)) if _instance is None else _instance
        new = super().expand(batch_shape, _instance=new)  # type: ignore[no-untyped-call]
        new.layout, new.scores, new.normalizer = self.layout, self.scores, self.normalizer
        return new  # type: ignore[no-any-return]

    def log_prob(self, value: Tensor) -> Tensor:
        """Log probability of a key; of weights, its expectation under them."""
        if value.is_floating_point():
            return (value.squeeze(-2) * self.logits).sum(-1)
        return super().log_prob(value)  # type: ignore[no-any-return, no-untyped-call]

    @property
    def full_shape(self) -> torch.Size:
        """Shape of the weights, ``[..., 1, N]``."""
        return torch.Size((*self.batch_shape, 1, self._num_events))

    @property
    def proposal(self) -> Tensor:
        """The attention layer's scores, from which a posterior family starts."""
        return self.scores

    @property
    def expected_weights(self) -> Tensor:
        """Probabilities of the keys as attention weights, ``[..., 1, N]``."""
        return self._masked(self.probs.unsqueeze(-2))

    @property
    def deterministic_value(self) -> Tensor:
        """The weights of ordinary attention, for a layer that Pyro does not run: those expected."""
        return self.expected_weights

    def weights(self, value: Tensor) -> Tensor:
        """Attention weights ``[..., 1, N]`` of indices ``[...]``; weights are returned as they are."""
        if value.is_floating_point():
            return value
        chosen = value.unsqueeze(-1) == torch.arange(self._num_events, device=value.device)
        return self._masked(chosen.to(self.logits.dtype).unsqueeze(-2))

    def _masked(self, weights: Tensor) -> Tensor:
        return weights if self.layout.mask is None else weights.masked_fill(~self.layout.mask, 0)


class ExpectedWeights(dist.TorchDistribution):
    """The point mass at the expected alignment, with the batch shape of a :class:`CategoricalAlignment`.

    Its value are weights ``[..., 1, N]``, which that distribution takes in the place of an index; it has no density.

    Args:
        alignment: The distribution whose expectation it is.

    Example:
        >>> ExpectedWeights(CategoricalAlignment(torch.zeros(1, 2))).sample().tolist()
        [[0.5, 0.5]]
    """

    has_rsample = True
    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(self, alignment: CategoricalAlignment) -> None:
        self.value = alignment.expected_weights
        super().__init__(alignment.batch_shape, validate_args=False)

    def expand(self, batch_shape: Any, _instance: Any = None) -> ExpectedWeights:
        """Copy with a larger batch shape."""
        new = copy.copy(self)
        new._batch_shape = torch.Size(batch_shape)
        new.value = self.value.expand(*batch_shape, *self.value.shape[-2:])
        return new

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """The value."""
        return self.value.expand(*sample_shape, *self.value.shape)

    def log_prob(self, value: Tensor) -> Tensor:  # noqa: ARG002
        """Zero: the point has no prior term."""
        return self.value.new_zeros(self.batch_shape)


@register_kl(CategoricalAlignment, CategoricalAlignment)  # type: ignore[untyped-decorator]
def _kl_alignment(q: CategoricalAlignment, p: CategoricalAlignment) -> Tensor:
    # torch's own is infinite where a probability of p underflows, though its logarithm is known
    divergence: Tensor = (q.probs * (q.logits - p.logits)).sum(-1)
    return divergence
