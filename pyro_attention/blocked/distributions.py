"""Prior and posterior of attention weights that are never held, of a site too large for its n x n scores."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pyro_attention._checks import as_float, check_scores
from pyro_attention.blocked.ops.blocked_attention import blocked_attention
from pyro_attention.blocked.ops.counter_noise import NoiseKind
from pyro_attention.blocked.pairs import Pairs
from pyro_attention.blocked.value import BlockedValue, rows_of
from pyro_attention.families.distribution import LogWeights
from pyro_attention.families.lognormal import LogNormalWeights
from pyro_attention.families.weibull import WeibullWeights

__all__ = ["BlockedPosterior", "BlockedPrior", "Noise"]


class Noise(NamedTuple):
    """Noise of a distribution of ``log S`` that is its first parameter plus a scale times standard noise.

    Attributes:
        kind: Of the standard noise.
        scale: From a distribution to the factor of its noise, a number or one per head.
    """

    kind: NoiseKind
    scale: Callable[[Any], Tensor]


# The distributions that blocked attention draws from, as it makes their noise again; add one of your own.
NOISE: dict[type[LogWeights], Noise] = {
    WeibullWeights: Noise("log_exponential", lambda q: q.concentration.reciprocal()),
    LogNormalWeights: Noise("normal", lambda q: q.scale),
}


class _Shifted:
    """The scores of a blocked site as a family sees them: it may add a shift to them, and nothing else."""

    def __init__(self, site: str, dims: int, shift: Tensor | float = 0.0) -> None:
        self.site, self.dims, self.shift = site, dims, shift

    def dim(self) -> int:
        return self.dims

    def __add__(self, shift: Any) -> _Shifted:
        return _Shifted(self.site, self.dims, self.shift + shift)

    __radd__ = __add__

    def __sub__(self, shift: Any) -> _Shifted:
        return _Shifted(self.site, self.dims, self.shift - shift)

    def _refuse(self, *_: Any) -> Any:
        raise _not_blocked(self.site)

    __getattr__ = __getitem__ = __len__ = __neg__ = __mul__ = __rmul__ = __truediv__ = __pow__ = __rsub__ = _refuse

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        scores = next(each for each in args if isinstance(each, cls))
        if func.__name__ in ("add", "__add__") and len(args) == 2 and not kwargs:
            return scores + next(each for each in args if each is not scores)
        raise _not_blocked(scores.site)


def _not_blocked(site: str) -> ValueError:
    """The error of a family that does something with scores that are never held."""
    return ValueError(
        f"site '{site}': blocked attention draws Weibull and LogNormal weights around its scores, expected a family "
        f"that adds noise to them, the same whatever they are: Weibull, LogNormal or Soft; for other families use "
        f"MultiheadAttention, which holds the scores"
    )


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
        return self.pairs.layout(slice(None)).softmax(value.to_dense())

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

    @property
    def scores(self) -> Any:
        """A stand-in for the scores, which are never held; a family may add a shift to them."""
        return _Shifted(self.site, len(self.pairs.shape))

    def with_scores(self, scores: Tensor) -> BlockedPrior:  # noqa: ARG002
        raise _not_blocked(self.site)

    def matched(self, posterior: type[Any], *parameters: Any) -> Any:
        """Posterior with these parameters, the first of which are the scores, shifted.

        Raises:
            ValueError: They are not, or the distribution is not one of :data:`NOISE`.
        """
        location, *spread = parameters
        zero = as_float(self.pairs.queries).new_zeros(self.event_shape[0], 1, 1)
        if posterior not in NOISE or not isinstance(location, _Shifted):
            raise _not_blocked(self.site)
        if torch.broadcast_tensors(zero, torch.as_tensor(location.shift), *spread)[0].shape != zero.shape:
            raise _not_blocked(self.site)  # not the same for all pairs of a head
        relative = LogNormalWeights(zero, torch.ones_like(zero)).proposing(zero)
        relative = relative.matched(posterior, zero + location.shift, *spread)
        return BlockedPosterior(self.pairs, relative, site=self.site)

    @property
    def counts(self) -> Tensor:
        return self.event_shape[0] * self.pairs.counts().sum((-3, -2, -1))

    @property
    def soft_value(self) -> BlockedValue:
        """The value without noise, whose weights are ordinary attention."""
        return BlockedValue(BlockedPosterior(self.pairs, None, site=self.site).expand(self.batch_shape), None)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        raise NotImplementedError(
            f"site '{self.site}': blocked attention draws from the posterior alone; run the model under an "
            f"AttentionGuide, or use MultiheadAttention to draw from the prior"
        )


class BlockedPosterior(_BlockedWeights):
    r"""Posterior of the weights of query-key pairs: :math:`\log S_{ij} = \Phi_{ij} + \delta + c\,\varepsilon_{ij}`.

    Args:
        pairs: Queries, keys and masks.
        relative: Distribution for scores of zero, with one entry or one per head; None adds no noise.
        site: Name of the site, for messages.
    """

    def __init__(self, pairs: Pairs, relative: LogWeights | None, *, site: str) -> None:
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
        scores, relative = self.pairs.scores(rows), self.relative
        assert relative is not None  # a point mass stands at no site
        location, *spread = (getattr(relative, name) for name in relative.parameter_names)
        parameters: Any = scores + location, *spread
        return type(relative)(*parameters, layout=self.pairs.layout(rows), shape=scores.shape)

    def noise(self) -> tuple[NoiseKind | None, Tensor | None]:
        """Distribution of the noise and its factor, one number or one per head."""
        if self.relative is None:
            return None, None
        kind, scale = NOISE[type(self.relative)]
        return kind, scale(self.relative).reshape(-1)

    def draw_rows(self, rows: slice, noise: Tensor) -> Tensor:
        """``log S`` of some queries, from their standard noise."""
        q = self.window(rows)
        return torch.addcmul(getattr(q, q.parameter_names[0]), noise, NOISE[type(q)].scale(q))

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
