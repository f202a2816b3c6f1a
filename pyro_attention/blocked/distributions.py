"""Prior and posterior of attention weights that are never held, of a site too large for its n x n scores."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from pyro.distributions import Delta
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pyro_attention._checks import check_scores
from pyro_attention.blocked.ops.blocked_attention import blocked_attention
from pyro_attention.blocked.pairs import Pairs
from pyro_attention.blocked.value import BlockedValue, rows_of
from pyro_attention.families.base import Family
from pyro_attention.families.log_weights import LogWeights
from pyro_attention.families.lognormal import LogNormalWeights
from pyro_attention.families.proposal import Proposal
from pyro_attention.layout import Dense
from pyro_attention.ops.noise import NoiseKind

__all__ = ["BlockedPosterior", "BlockedPrior"]


class _BlockedWeights(LogWeights):
    """Log weights of query-key pairs; what has no formula is computed on one window of queries at a time."""

    def __init__(self, pairs: Pairs) -> None:
        super().__init__(layout=pairs.layout(), shape=pairs.shape)
        self.pairs = pairs

    def window(self, rows: slice) -> LogWeights:
        """The distribution of the weights of some queries, in memory."""
        raise NotImplementedError

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density of ``log S``, window by window, which backward computes again: the batch shape."""
        return self.sum_windows(lambda rows: self.window(rows).log_prob(rows_of(value, rows)))

    def weights(self, value: Tensor) -> Tensor:
        """Normalised weights of a value, all of them; ValueError when they would take too much memory."""
        return self.pairs.layout(slice(None)).softmax(self.materialise(value))

    def materialise(self, value: Tensor) -> Tensor:
        """``log S`` of all pairs; ValueError when it would take too much memory."""
        return value.dense() if isinstance(value, BlockedValue) else value

    def sum_windows(self, term: Callable[[slice], Tensor]) -> Tensor:
        """Sum of a function of some queries over all of them; backward computes each window again."""
        total = self.pairs.queries.new_zeros(self.batch_shape)
        for rows in self.pairs.windows():
            if torch.is_grad_enabled():
                part = checkpoint(term, rows, use_reentrant=False, preserve_rng_state=False)
            else:
                part = term(rows)
            total = total + part
        return total


class BlockedPrior(_BlockedWeights):
    """Prior of the weights of query-key pairs.

    Args:
        network: Prior network: a module called with (scores, keys, layout).
        pairs: Queries, keys and masks.
        per_query: Whether its parameters differ from query to query, as those of a contextual prior under a causal
            mask do; then its KL is computed by windows.
        site: Name of the site, for messages.

    Attributes:
        parameters: The prior with parameters per key, which all queries share; None when it is one per query.
    """

    def __init__(self, network: Callable[..., LogWeights], pairs: Pairs, *, per_query: bool, site: str) -> None:
        super().__init__(pairs)
        self.network, self.site = network, site
        shape_only = pairs.queries.new_zeros(()).expand(pairs.shape)
        self.parameters = None if per_query else network(shape_only, pairs.keys, pairs.layout())

    def window(self, rows: slice) -> LogWeights:
        shape_only = self.pairs.queries.new_zeros(()).expand(self.pairs.shape)[..., rows, :]
        return self.network(shape_only, self.pairs.keys, self.pairs.layout(rows))

    def posterior(self, family: Family, *args: Any, **kwargs: Any) -> BlockedPosterior:  # noqa: ARG002
        """Posterior of a family that adds noise to the scores, the same whatever they are.

        Raises:
            ValueError: It does not, or its class does not say so (``shifts_scores``).
        """
        zero = self.pairs.queries.new_zeros(self.event_shape[0], 1, 1)
        origin = LogNormalWeights(zero, torch.ones(())).with_proposal(Proposal(zero, Dense(), normalize=False))
        relative = family.posterior(origin) if family.shifts_scores else None
        if isinstance(relative, Delta) or (isinstance(relative, LogWeights) and relative.noise_kind is not None):
            return BlockedPosterior(self.pairs, relative, site=self.site)
        raise ValueError(
            f"site '{self.site}': blocked attention draws Weibull and LogNormal weights, not those of "
            f"{type(family).__name__}; choose one of these families (or Soft()), or "
            f"MultiheadAttention(implementation='dense'); a family of your own whose noise does not depend on the "
            f"scores says so where it is defined: class Mine(Family, shifts_scores=True)"
        )

    @property
    def held_scores(self) -> None:
        """None: the scores are never held together."""
        return None

    @property
    def masked_fraction(self) -> float:
        """Fraction of masked pairs; the layout knows of the key mask alone."""
        return 1 - (self.pairs.counts().double() / self.pairs.shape[-2]).mean().item()

    @property
    def counts(self) -> Tensor:
        return self.event_shape[0] * self.pairs.counts().sum((-3, -2, -1))

    @property
    def deterministic_value(self) -> BlockedValue:
        """The value without noise, whose weights are ordinary attention."""
        point = Delta(self.pairs.queries.new_zeros(self.event_shape[0], 1, 1), event_dim=3)
        return BlockedPosterior(self.pairs, point, site=self.site).mean_value

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        raise NotImplementedError(
            f"site '{self.site}': blocked attention draws from the posterior alone; run the model under an "
            f"AttentionGuide, or pass implementation='dense' to draw from the prior"
        )


class BlockedPosterior(_BlockedWeights):
    r"""Posterior of the weights of query-key pairs: :math:`\log S_{ij} = \Phi_{ij} + \delta + c\,\varepsilon_{ij}`.

    Args:
        pairs: Queries, keys and masks.
        relative: Distribution for scores of zero, with one entry or one per head; a Delta adds no noise.
        site: Name of the site, for messages.
    """

    def __init__(self, pairs: Pairs, relative: LogWeights | Delta, *, site: str) -> None:
        super().__init__(pairs)
        self.relative, self.site = relative, site
        self._log_sums: dict[str, Tensor] = {}  # shared by copies

    def rsample(self, sample_shape: Any = ()) -> BlockedValue:
        """A value that holds a seed from torch's global generator instead of numbers."""
        seed = int(torch.randint(2**63 - 1, ()))
        return BlockedValue(self.expand(torch.Size(sample_shape) + self.batch_shape), seed)

    @property
    def mean_value(self) -> BlockedValue:
        """The value ``log E[S]``."""
        return BlockedValue(self, None)

    def window(self, rows: slice) -> LogWeights:
        if isinstance(self.relative, Delta):
            raise NotImplementedError("a point mass has no density")
        return self.relative.shifted(self.pairs.scores(rows), self.pairs.layout(rows))

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density of ``log S``; zero for a point mass, whose site has no prior term."""
        if isinstance(self.relative, Delta):
            return self.pairs.queries.new_zeros(self.batch_shape)
        return super().log_prob(value)

    def noise(self) -> tuple[NoiseKind | None, Tensor | None]:
        """Distribution of the noise and its factor, one number or one per head."""
        if isinstance(self.relative, Delta):
            return None, None
        return self.relative.noise_kind, self.relative.noise_scale.reshape(-1)

    def attend(self, seed: int | None, values: Tensor) -> Tensor:
        """Context ``[..., H, M, D]`` of the values under the weights of a seed; None for the posterior mean."""
        kind, scale = self.noise() if seed is not None else (None, None)
        pairs, slices = self.pairs, self.full_shape[:-2]
        mask = None if pairs.key_mask is None else pairs.key_mask[..., None, :]
        context, log_sums = blocked_attention(
            pairs.queries.expand(*slices, *pairs.queries.shape[-2:]), pairs.keys, values,
            noise=kind, noise_scale=scale, seed=seed or 0, key_mask=mask, causal=pairs.causal,
        )  # fmt: skip
        # the products of finite queries and keys may overflow; of these only the rows are held
        check_scores(log_sums.detach(), site=self.site, name="rows of scores")
        self._log_sums["rows"] = log_sums
        return context if pairs.query_mask is None else context.where(pairs.query_mask[..., None, :, None], 0)

    def log_sums(self) -> Tensor:
        """Log-sum-exp of the scores of each query, ``[..., H, M]``, known already once the weights have been used."""
        if "rows" not in self._log_sums:
            self._log_sums["rows"] = self.pairs.log_sums()
        return self._log_sums["rows"]

    def detach(self) -> BlockedPosterior:
        """The same without gradients."""
        relative = copy.copy(self.relative)
        for name, item in vars(relative).items():
            if isinstance(item, Tensor):
                setattr(relative, name, item.detach())
        return BlockedPosterior(self.pairs.detach(), relative, site=self.site).expand(self.batch_shape)
