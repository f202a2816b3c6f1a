"""The base of independent positive weights, as distributions over ``log S``, and the KL of every pair of them."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar, TypeVar

from torch import Tensor
from torch.distributions import register_kl

from pyro_attention.families.distribution import ContinuousWeights, check_same_event

__all__ = ["LogWeights", "kl_log_weights"]

Posterior = TypeVar("Posterior", bound="LogWeights")


class LogWeights(ContinuousWeights):
    """Independent positive attention weights S, as a distribution over ``log S``.

    The value is ``log S`` because ``softmax(log S)`` is the normalised weight, is stable where ``S / S.sum()`` gives
    NaN, and leaves every KL unchanged (log is a bijection).

    A subclass supplies :meth:`draw`, the moments ``mean`` (E[log S]), ``variance`` (Var[log S]),
    ``log_expected_weight`` (log E[S]) and ``entropy_per_weight``, and, to serve as a prior, :meth:`cross_entropy`.
    Every moment is per weight, in the smallest shape that holds it.

    """

    kind: ClassVar[str] = "positive weights"
    _matches: LogWeights | None = None

    def matched(self, posterior: type[Posterior], *parameters: Tensor) -> Posterior:
        """Posterior with these parameters of the site whose prior this is, known to have ``E[S] = exp(scores)``."""
        q = posterior(*parameters, layout=self.layout, shape=self.full_shape)
        # as if the property had been computed already
        q.__dict__.update(_matches=self, log_expected_weight=self.scores)
        return q

    @cached_property
    def expected_total(self) -> Tensor | float | None:
        """Sum of ``E[S]`` over the unmasked entries of the event where it is known; a number, or one a batch entry."""
        p = self._matches
        return p.normalizer.total(p.scores, p.layout) if p is not None and p.normalizes else None

    @cached_property
    def log_expected_weight(self) -> Tensor:
        """``log E[S]``, per weight."""
        raise NotImplementedError

    @property
    def mean_gap(self) -> Tensor:
        """``log E[S] - E[log S]``, per weight; it depends on the spread alone."""
        return self.log_expected_weight - self.mean

    @property
    def soft_value(self) -> Tensor:
        return self.scores.expand(self.full_shape)

    @property
    def mean_value(self) -> Tensor:
        """The value ``log E[S]``."""
        return self.log_expected_weight.expand(self.full_shape)

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
