"""Prior and posterior of attention weights that are never held, of a site too large for its n x n scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import register_kl
from torch.utils.checkpoint import checkpoint

from pyro_attention._checks import as_float, check_scores
from pyro_attention._compat import ordinary_torch_function, tree_leaves, validates_distributions, wrapper_tensor
from pyro_attention.attention_call import AttentionCall
from pyro_attention.blocked.ops.blocked_attention import blocked_attention
from pyro_attention.blocked.ops.counter_noise import CounterNoise, NoiseKind
from pyro_attention.families.base import Family, OneParameterFamily
from pyro_attention.families.distribution import AttentionDistribution, LogWeights, kl_log_weights
from pyro_attention.families.gamma import GammaWeights
from pyro_attention.families.lognormal import LogNormalWeights
from pyro_attention.families.soft import Soft
from pyro_attention.families.weibull import WeibullWeights
from pyro_attention.layout import Dense
from pyro_attention.normalizers import Normalizer, Softmax
from pyro_attention.ops.special import lgamma_exp

__all__ = ["BlockedCall", "BlockedPosterior", "BlockedPrior", "BlockedValue", "Pairs"]

_WINDOW_ENTRIES = 2**20
_ON_A_GPU = 8  # times as many there, where many small operations take longer than a few large ones


@dataclass(frozen=True, eq=False)
class Pairs:
    r"""Inputs of an attention call that determine its scores :math:`s_{ij} = q_i \cdot k_j` and its mask.

    Arguments are those of :func:`attend_blocked`; ``normalize`` says whether scores enter the site as log-softmax.
    """

    queries: Tensor
    keys: Tensor
    key_mask: Tensor | None = None
    query_mask: Tensor | None = None
    causal: bool = False
    normalize: bool = True

    @property
    def shape(self) -> torch.Size:
        """Shape of the scores, ``[..., H, M, N]``."""
        batch = torch.broadcast_shapes(self.queries.shape[:-2], self.keys.shape[:-2])
        return torch.Size((*batch, self.queries.size(-2), self.keys.size(-2)))

    def windows(self) -> Iterator[slice]:
        """Yield blocks of queries, each with about as many scores as fit in a few megabytes, tens of them on a GPU."""
        entries = _WINDOW_ENTRIES * (1 if self.queries.is_cpu else _ON_A_GPU)
        rows = max(1, entries * self.shape[-2] // max(1, self.shape.numel()))
        for start in range(0, self.shape[-2], rows):
            yield slice(start, min(start + rows, self.shape[-2]))

    def layout(self, rows: slice | None = None) -> Dense:
        """Return the layout of some queries, or of all queries with the key mask alone."""
        mask = None if self.key_mask is None else self.key_mask[..., None, None, :]
        if rows is None:
            return Dense(mask)
        masks = [] if mask is None else [mask]
        if self.query_mask is not None:
            masks.append(self.query_mask[..., None, rows, None])
        if self.causal:
            i, j = (torch.arange(size, device=self.queries.device) for size in self.shape[-2:])
            masks.append(i[rows, None] >= j)
        if not masks:
            return Dense()
        return Dense(torch.stack(torch.broadcast_tensors(*masks)).all(0))

    def scores(self, rows: slice) -> Tensor:
        """Return scores of some queries as they enter the site, ``[..., H, R, N]``; masked ones are zero."""
        layout = self.layout(rows)
        with torch.autocast(self.queries.device.type, enabled=False):
            scores = as_float(self.queries[..., rows, :]) @ as_float(self.keys).transpose(-1, -2)
        if self.normalize:
            return Softmax().normalize_scores(scores, layout)
        return scores if layout.mask is None else scores.masked_fill(~layout.mask, 0)

    @property
    def head_mask(self) -> Tensor | None:
        """Key mask with a dimension for heads, ``[..., 1, N]``."""
        return None if self.key_mask is None else self.key_mask.unsqueeze(-2)

    def log_sums(self) -> Tensor:
        """Return the log-sum-exp of the scores of each query, ``[..., H, M]``; zero for one that sees no key."""
        values = self.keys[..., :1]  # the context is not wanted here
        return blocked_attention(self.queries, self.keys, values, key_mask=self.head_mask, causal=self.causal)[1]

    # Sums over pairs that need no scores.

    def sum_over_queries(self, x: Tensor) -> Tensor:
        """Sum ``[..., M, F]`` over the queries that see each key: ``[..., N, F]``; zero at masked keys."""
        if self.query_mask is not None:
            x = x.where(self.query_mask[..., None, :, None], 0)
        keys = self.shape[-1]
        if self.causal:
            later = x.flip(-2).cumsum(-2).flip(-2)[..., :keys, :]
            total = torch.nn.functional.pad(later, (0, 0, 0, keys - later.size(-2)))
        else:
            total = x.sum(-2, keepdim=True).expand(*x.shape[:-2], keys, x.size(-1))
        return total if self.key_mask is None else total.where(self.key_mask[..., None, :, None], 0)

    def counts(self) -> Tensor:
        """Return the number of queries that see each key, ``[..., 1, 1, N]``."""
        return self.sum_over_queries(as_float(self.queries).new_ones(1, self.shape[-2], 1)).transpose(-1, -2)

    def seeing(self) -> Tensor:
        """Return the boolean mask of the queries that see any key, broadcastable to ``[..., H, M]``."""
        queries, keys = self.shape[-2:]
        allowed = self.queries.new_ones(1, keys, dtype=torch.bool) if self.key_mask is None else self.key_mask
        if self.causal:
            last = torch.arange(queries, device=allowed.device).clamp(max=keys - 1)
            allowed = allowed.cummax(-1).values[..., last]
        else:
            allowed = allowed.any(-1, keepdim=True)
        allowed = allowed.unsqueeze(-2) if self.key_mask is not None else allowed
        return allowed if self.query_mask is None else allowed & self.query_mask.unsqueeze(-2)


class BlockedValue(Tensor):
    """``log S`` of a site ``[..., H, M, N]`` as posterior and seed: a tensor without storage.

    It has a shape, a dtype and a device; an operation that needs its numbers raises. :meth:`window` returns some of
    them.

    Args:
        posterior: Distribution it is drawn from.
        seed: Seed of the noise; None for none, which is the posterior mean.

    Example:
        >>> from pyro_attention import AttentionGuide, Weibull
        >>> from pyro_attention.blocked import BlockedMultiheadAttention
        >>> layer = BlockedMultiheadAttention(8, 2)
        >>> guide = AttentionGuide(lambda x: layer(x, x, x, need_weights=False)[0], Weibull())
        >>> value = guide(torch.randn(5, 8))["attention"]
        >>> value.shape, value.window(slice(1, 3)).shape
        (torch.Size([2, 5, 5]), torch.Size([2, 2, 5]))
    """

    posterior: BlockedPosterior
    seed: int | None

    @staticmethod
    def __new__(cls, posterior: BlockedPosterior, seed: int | None) -> BlockedValue:
        queries = posterior.pairs.queries
        dtype = torch.float64 if queries.dtype == torch.float64 else torch.float32
        value: BlockedValue = wrapper_tensor(cls, posterior.full_shape, dtype=dtype, device=queries.device)
        value.posterior, value.seed = posterior, seed
        return value

    def window(self, rows: slice) -> Tensor:
        """Return ``log S`` of a slice of queries, ``[..., H, R, N]``, with gradients."""
        posterior, shape = self.posterior, self.posterior.full_shape
        if posterior.relative is None or self.seed is None:
            return posterior.pairs.scores(rows).expand(*shape[:-2], -1, -1)
        q = posterior.window(rows)
        kind, scale = NOISE[type(q)]
        table = CounterNoise(kind, self.seed, (shape[:-2].numel(), *shape[-2:]), device=self.device)
        noise = table.block(slice(None), rows, dtype=self.dtype).unflatten(0, shape[:-2])
        location: Tensor = getattr(q, q.parameter_names[0])
        return torch.addcmul(location, noise, scale(q))

    def attend(self, values: Tensor) -> Tensor:
        """Return the context ``[..., H, M, D]`` of the values ``[..., H, N, D]``."""
        posterior, pairs, slices = self.posterior, self.posterior.pairs, self.posterior.full_shape[:-2]
        kind, scale = None, None
        if posterior.relative is not None and self.seed is not None:
            kind, of = NOISE[type(posterior.relative)]
            scale = of(posterior.relative).reshape(-1)
        context, log_sums = blocked_attention(
            pairs.queries.expand(*slices, *pairs.queries.shape[-2:]), pairs.keys, values, noise=kind, noise_scale=scale,
            seed=self.seed or 0, key_mask=pairs.head_mask, causal=pairs.causal,
        )  # fmt: skip
        # the products of finite queries and keys may overflow; of these only the rows are held
        check_scores(log_sums.detach(), site=posterior.site, name="rows of scores")
        posterior.known["log_sums"] = log_sums
        return context if pairs.query_mask is None else context.where(pairs.query_mask[..., None, :, None], 0)

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        return f"BlockedValue(shape={tuple(self.shape)}, seed={self.seed})"

    __torch_function__ = ordinary_torch_function  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: object, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, object] | None = None
    ) -> Tensor:
        if all(value.seed is None for value in args if isinstance(value, cls)):  # a point mass, without noise
            if func is torch.ops.aten.expand.default:
                return cls(args[0].posterior.expand(args[1][:-3]), None)
            if func is torch.ops.aten.eq.Tensor:
                return torch.ones((), dtype=torch.bool, device=args[0].device).expand(args[0].shape)
        value = next(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, cls))
        raise RuntimeError(
            f"{func} on the log weights of site '{value.posterior.site}', which blocked attention does not hold: "
            f"materialize first, some queries by value.window(rows), or draw weights by "
            f"pyro_attention.sample_posterior (in place of Pyro's Predictive); MultiheadAttention holds them all"
        )


# The distributions of ``log S`` that are drawn here, as their noise can be made again: its kind, and the factor of it,
# a number or one per head; add one of your own, whose first parameter is the location.
NOISE: dict[type[LogWeights], tuple[NoiseKind, Callable[[Any], Tensor]]] = {
    WeibullWeights: ("log_exponential", lambda q: q.concentration.reciprocal()),
    LogNormalWeights: ("normal", lambda q: q.scale),
}


def _not_blocked(site: str) -> ValueError:
    """Return the error of a family that does something with scores, queries or keys."""
    return ValueError(
        f"site '{site}': blocked attention draws Weibull and LogNormal weights around its scores, expected a family "
        f"that adds noise to them, of one width a head: Weibull, LogNormal or Soft, without a network of widths; for "
        f"other families use MultiheadAttention, which holds the scores"
    )


class _BlockedWeights(LogWeights):
    """Log weights of query-key pairs; terms without a formula are computed on one window of queries at a time."""

    def __init__(self, pairs: Pairs) -> None:
        super().__init__(layout=pairs.layout(), shape=pairs.shape)
        self.pairs = pairs

    def window(self, rows: slice) -> LogWeights:
        """Return the distribution of the weights of some queries, in memory."""
        raise NotImplementedError

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of ``log S``, window by window, which backward computes again: the batch shape."""

        def some_rows(rows: slice) -> Tensor:
            part = value.window(rows) if isinstance(value, BlockedValue) else value[..., rows, :]
            return self.window(rows).log_prob(part)

        return self.sum_windows(some_rows)

    def weights(self, value: Tensor, normalizer: Normalizer | None = None) -> Tensor:  # noqa: ARG002
        """Return the softmax of a value, all of it."""
        everything = value.window(slice(None)) if isinstance(value, BlockedValue) else value
        return self.pairs.layout(slice(None)).softmax(everything)

    def sum_windows(self, term: Callable[[slice], Tensor]) -> Tensor:
        """Sum a function of some queries over all of them; backward computes each window again."""
        total = self.pairs.queries.new_zeros(self.batch_shape)
        for rows in self.pairs.windows():
            if torch.is_grad_enabled():
                part = checkpoint(term, rows, use_reentrant=False, preserve_rng_state=False)
            else:
                part = term(rows)
            total = total + part
        return total


class BlockedPrior(_BlockedWeights):
    """Prior of the weights of query-key pairs; with parameters for each query its KL is computed in windows."""

    def __init__(self, network: Callable[..., LogWeights], pairs: Pairs, *, per_query: bool, site: str) -> None:
        super().__init__(pairs)
        self.network, self.site = network, site
        # those per key, which all queries share
        self.parameters = None if per_query else network(self._call(slice(None), pairs.layout()))

    def window(self, rows: slice) -> LogWeights:
        return self.network(self._call(rows, self.pairs.layout(rows)))

    def _call(self, rows: slice, layout: Dense) -> AttentionCall:
        """Return the record of some queries, whose scores have a shape and no memory: the prior does not read them."""
        shape_only = self.pairs.queries.new_zeros(()).expand(self.pairs.shape)[..., rows, :]
        return AttentionCall(scores=shape_only, layout=layout, keys=self.pairs.keys, site=self.site)

    @property
    def counts(self) -> Tensor:
        return self.event_shape[0] * self.pairs.counts().sum((-3, -2, -1))

    def soft_value(self, call: AttentionCall) -> BlockedValue:  # noqa: ARG002
        """Return the value without noise, whose weights are ordinary attention."""
        return BlockedValue(BlockedPosterior(self.pairs, None, site=self.site).expand(self.batch_shape), None)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        raise NotImplementedError(
            f"site '{self.site}': blocked attention draws from the posterior alone; run the model under an "
            f"AttentionGuide, or use MultiheadAttention to draw from the prior"
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class BlockedCall(AttentionCall):
    """Record of a call that holds no scores: its scores are zeros, one a head, ``[H, 1, 1]``."""

    pairs: Pairs

    @property
    def shape(self) -> torch.Size:
        return self.pairs.shape

    def posterior(self, family: Family, prior: AttentionDistribution) -> TorchDistribution:
        """Return the posterior of a family that adds noise to the scores.

        It is the posterior of scores of zero, shifted by the scores. While distributions are validated, other scores
        test that the family is of this kind; a GPU is waited for there.

        Raises:
            ValueError: The family does anything else with scores, queries or keys.
        """
        if isinstance(family, Soft):
            return family.posterior(self, prior)
        if not isinstance(family, OneParameterFamily) or family.network is not None:
            raise _not_blocked(self.site)
        at_zero = self._relative(family, self.scores)
        if validates_distributions():
            self._check_shifts(family, at_zero)
        return BlockedPosterior(self.pairs, at_zero, site=self.site)

    def _check_shifts(self, family: OneParameterFamily, at_zero: LogWeights) -> None:
        """Raise ValueError unless other scores shift the posterior of scores of zero, and change nothing else of it."""
        other = torch.linspace(-1.0, 2.0, 3 * self.scores.size(0)).to(self.scores).view(-1, 1, 3)
        at_other = self._relative(family, other)
        location, *spread = (getattr(at_zero, name) for name in at_zero.parameter_names)
        shifted, *unchanged = (getattr(at_other, name) for name in at_other.parameter_names)
        alike = all(torch.equal(a, b) for a, b in zip(spread, unchanged, strict=True))
        if location.numel() > self.scores.numel() or not alike or not torch.allclose(shifted, other + location):
            raise _not_blocked(self.site)

    def _relative(self, family: OneParameterFamily, scores: Tensor) -> LogWeights:
        """Return the posterior of a few scores, without a mask."""
        call = AttentionCall(scores=scores, layout=Dense(), site=self.site)
        posterior = family.posterior(call, LogNormalWeights(scores, torch.ones_like(scores)))
        if (
            not isinstance(posterior, LogWeights)
            or type(posterior) not in NOISE
            or posterior.full_shape != scores.shape
        ):
            raise _not_blocked(self.site)
        return posterior


class BlockedPosterior(_BlockedWeights):
    r"""Posterior of the weights of query-key pairs: :math:`\log S_{ij} = \Phi_{ij} + \delta + c\,\varepsilon_{ij}`.

    ``relative`` is the posterior of scores of zero, with one entry or one per head; None adds no noise.
    """

    def __init__(self, pairs: Pairs, relative: LogWeights | None, *, site: str) -> None:
        super().__init__(pairs)
        self.relative, self.site = relative, site
        self.known: dict[str, Tensor] = {}  # shared by copies

    def rsample(self, sample_shape: Sequence[int] = ()) -> BlockedValue:
        """Return a value that holds a seed from torch's global generator instead of numbers."""
        seed = int(torch.randint(2**63 - 1, (), device="cpu"))  # torch's default device might have to be waited for
        return BlockedValue(self.expand(torch.Size(sample_shape) + self.batch_shape), seed)

    @property
    def mean_value(self) -> BlockedValue:
        """Value ``log E[S]``."""
        return BlockedValue(self, None)

    def window(self, rows: slice) -> LogWeights:
        scores, relative = self.pairs.scores(rows), self.relative
        assert relative is not None  # a point mass stands at no site
        location, *spread = (getattr(relative, name) for name in relative.parameter_names)
        of_pairs: Callable[..., LogWeights] = type(relative)
        return of_pairs(scores + location, *spread, layout=self.pairs.layout(rows), shape=scores.shape)

    @property
    def log_sums(self) -> Tensor:
        """Log-sum-exp of the scores of each query, ``[..., H, M]``, known already once the weights have been used."""
        if "log_sums" not in self.known:
            self.known["log_sums"] = self.pairs.log_sums()
        return self.known["log_sums"]


@register_kl(BlockedPosterior, BlockedPrior)
def _kl_blocked(q: BlockedPosterior, p: BlockedPrior) -> Tensor:
    r"""Sum the KL over all pairs that may attend: q's batch shape, in nats.

    With scores :math:`\Phi_{ij} = q_i \cdot k_j - \ell_i`, every term of the KL from a Gamma prior needs only the sums
    :math:`\sum_i q_i` and :math:`\sum_i \ell_i` over the queries that see a key; other priors need the scores again.
    """
    relative, prior = q.relative, p.parameters
    assert relative is not None  # a point mass has no KL
    # an autocast region would redo the products in half precision
    with torch.autocast(q.pairs.queries.device.type, enabled=False):
        if not isinstance(prior, GammaWeights) or (prior.log_rate.dim() and prior.log_rate.size(-1) != 1):
            return q.sum_windows(lambda rows: kl_log_weights(q.window(rows), p.window(rows)))
        cross = _gamma(q, relative, prior)
        return cross - _sum(q, q.pairs.counts() * relative.entropy_per_weight)


def _sum(q: BlockedPosterior, term: Tensor) -> Tensor:
    """Sum ``[..., H or 1, 1, N]`` over heads and keys: the batch shape."""
    return term.expand(*q.batch_shape, q.event_shape[0], 1, -1).sum((-3, -2, -1))


def _gamma(q: BlockedPosterior, relative: LogWeights, p: GammaWeights) -> Tensor:
    r"""Sum :math:`\log\Gamma(a) - a\,(\mathrm{E}_q[\log S] + \log b) + b\,\mathrm{E}_q[S]`."""
    shift = relative.mean + p.log_rate
    constant = lgamma_exp(p.log_concentration) - p.concentration * shift
    expected = (relative.log_expected_weight + p.log_rate).exp() * _expected_sums(q)
    return _sum(q, q.pairs.counts() * constant - p.concentration * _score_sums(q)) + _sum(q, expected)


def _score_sums(q: BlockedPosterior) -> Tensor:
    """Sum the scores over the queries that see each key, ``[..., H, 1, N]``."""
    pairs = q.pairs
    sums = (pairs.sum_over_queries(as_float(pairs.queries)) * as_float(pairs.keys)).sum(-1, keepdim=True)
    if pairs.normalize:
        sums = sums - pairs.sum_over_queries(q.log_sums.unsqueeze(-1))
    return sums.transpose(-1, -2)


def _expected_sums(q: BlockedPosterior) -> Tensor:
    """Sum the exponentials of the scores over queries and keys, ``[..., H or 1, 1, 1]``."""
    seeing = q.pairs.seeing()
    # one for each query that sees a key, if these are normalized
    total = seeing if q.pairs.normalize else q.log_sums.exp().where(seeing, 0)
    queries = q.event_shape[1]
    return as_float(total).expand(*total.shape[:-1], queries).sum(-1)[..., None, None]
