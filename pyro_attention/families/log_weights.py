"""The base of independent positive weights, as distributions over ``log S``, and the KL of every pair of them."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar, Self

from torch import Tensor
from torch.distributions import register_kl

from pyro_attention.families.distribution import ContinuousWeights, check_same_event
from pyro_attention.families.proposal import Proposal
from pyro_attention.layout import Layout
from pyro_attention.ops.noise import NoiseKind

__all__ = ["LogWeights", "kl_log_weights"]


class LogWeights(ContinuousWeights):
    """Independent positive attention weights S, as a distribution over ``log S``.

    The value is ``log S`` because ``softmax(log S)`` is the normalised weight, is stable where ``S / S.sum()`` gives
    NaN, and leaves every KL unchanged (log is a bijection).

    A subclass supplies :meth:`draw`, the moments ``mean`` (E[log S]), ``variance`` (Var[log S]),
    :meth:`compute_log_expected_weight` (log E[S]) and ``entropy_per_weight``, and, to serve as a prior,
    :meth:`cross_entropy`. Every moment is per weight, in the smallest shape that holds it.

    A distribution whose noise does not depend on its location may also say so by ``noise_kind``, with ``noise_scale``,
    :meth:`from_noise` and :meth:`shifted`; blocked attention makes such noise again instead of holding it.

    Args:
        proposal: The attention layer's, given where the posterior is known to have ``E[S] = exp(proposal.scores)``;
            then the scores are taken for ``log E[S]``, and nothing is computed.
        options: The parameters, and what :class:`ContinuousWeights` takes.

    Attributes:
        noise_kind: Standard noise that the value is made of, ``location + noise_scale * noise``; None for another form.
    """

    kind: ClassVar[str] = "positive weights"
    noise_kind: ClassVar[NoiseKind | None] = None

    def __init__(self, *, proposal: Proposal | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._known_mean = proposal

    @property
    def expected_total(self) -> Tensor | float | None:
        """Sum of ``E[S]`` over the unmasked entries of the event where it is known; a number, or one a batch entry."""
        return None if self._known_mean is None else self._known_mean.expected_total

    @cached_property
    def log_expected_weight(self) -> Tensor:
        """``log E[S]``, per weight: the proposed scores where these are known to be it."""
        return self.compute_log_expected_weight() if self._known_mean is None else self._known_mean.scores

    def compute_log_expected_weight(self) -> Tensor:
        """``log E[S]``, per weight, from the parameters."""
        raise NotImplementedError

    @property
    def mean_gap(self) -> Tensor:
        """``log E[S] - E[log S]``, per weight; it depends on the spread alone."""
        return self.log_expected_weight - self.mean

    @property
    def deterministic_value(self) -> Tensor:
        return self.proposal.scores.expand(self.full_shape)

    @property
    def mean_value(self) -> Tensor:
        """The value ``log E[S]``."""
        return self.log_expected_weight.expand(self.full_shape)

    @property
    def noise_scale(self) -> Tensor:
        """Factor of the standard noise, a number or one per head."""
        raise NotImplementedError

    def from_noise(self, noise: Tensor) -> Tensor:
        """The value that a draw of the standard noise becomes."""
        raise NotImplementedError

    def shifted(self, scores: Tensor, layout: Layout) -> Self:
        """The distribution of ``log S + scores``, of the shape of the scores; the location is the first parameter."""
        parameters: dict[str, Any] = {name: getattr(self, name) for name in self.parameter_names}
        location = self.parameter_names[0]
        parameters[location] = scores + parameters[location]
        return type(self)(**parameters, layout=layout, shape=scores.shape)

    def cross_entropy(self, q: LogWeights) -> Tensor:
        """``-E_q[log p(log S)]``, p being this distribution, summed over the unmasked entries of the event."""
        raise NotImplementedError(f"{type(self).__name__} has no closed-form cross entropy and is no prior")


@register_kl(LogWeights, LogWeights)
def kl_log_weights(q: LogWeights, p: LogWeights) -> Tensor:
    r"""KL between two distributions over log weights, summed over the unmasked entries of the event.

    .. math:: \mathrm{KL}(q \| p) = -\mathrm{E}_q[\log p] - \mathrm{H}[q]

    One rule serves every pair, because every prior is linear in a few moments of the posterior.

    Args:
        q: Posterior; any family with moments.
        p: Prior; Gamma or LogNormal. The result has q's batch shape, in nats.

    Raises:
        NotImplementedError: p has no closed-form cross entropy (a Weibull prior).
        ValueError: The two have different event shapes.

    Example:
        >>> import torch
        >>> from pyro_attention import LogNormalWeights
        >>> p = LogNormalWeights(torch.zeros(1, 1, 4), torch.tensor(1.0))
        >>> kl_log_weights(p, p).item()
        0.0

    Source: Fan et al. (2020), Bayesian Attention Modules, equation (4) and below.
    """
    check_same_event(q, p)
    return p.cross_entropy(q) - q.entropy()
