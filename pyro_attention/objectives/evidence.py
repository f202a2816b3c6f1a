"""EvidenceELBO: the log evidence of every item, by several draws of its attention weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeAlias

import pyro
import torch
from pyro import poutine
from pyro.distributions import TorchDistribution
from pyro.distributions.util import scale_and_mask
from pyro.infer.util import is_validation_enabled
from pyro.poutine.util import prune_subsample_sites
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pyro_attention._checks import as_float
from pyro_attention._compat import (
    below,
    handlers_but_tracers,
    is_in_backward_pass,
    tree_leaves,
    validates_distributions,
)
from pyro_attention._typing import Args, Kwargs, Message, Model, Site, Trace
from pyro_attention.alignments.base import AlignmentWeights
from pyro_attention.draws import Minibatch, SharedDraws, runs
from pyro_attention.families.distribution import AttentionDistribution, ContinuousWeights
from pyro_attention.guide import (
    DRAWS,
    AttentionGuide,
    check_guide,
    forget_run,
    is_attention_site,
    is_deterministic,
    keeps_prior,
    plates_of,
)
from pyro_attention.objectives.correction import LEAST_DRAWS, EvidenceBound, GradientFactors, evidence_bound
from pyro_attention.objectives.elbo import AttentionELBO
from pyro_attention.objectives.gap import GapRecord, GapWatch
from pyro_attention.posterior.passes import AtMean, seeded

__all__ = ["EvidenceELBO", "ItemWeights", "item_weights", "log_likelihood_at_mean", "sum_to_items"]

Scale: TypeAlias = Tensor | float | None
"""Scale of sites: a number, a tensor that broadcasts, or None before the first pass."""


class EvidenceELBO(AttentionELBO):
    r"""Log evidence by K draws of the attention weights, with weights for each item of the plates.

    .. math:: \sum_i \mathrm{E}\Bigl[\log \frac{1}{K} \sum_{k=1}^K w_{ik}\Bigr], \qquad
              w_{ik} = f(y_i \mid W_{ik})\, \frac{p(W_{ik} \mid x_i)}{q(W_{ik} \mid x_i, y_i)}, \quad W_{ik} \sim q

    It lies between the ELBO (K = 1) and the log evidence, which it reaches as K grows. The ELBO is largest at a width
    of zero; this is not, so a width that the prior has (:class:`ScorePrior`) is learned from the data. With the guide
    :class:`FromPrior` the ratio of p and q is one; a guide that sees y (:class:`Amortized`) needs fewer draws.

    The gap of the bound below the log evidence grows with the width, so widths learned from few draws are too small.
    The jackknife over the draws estimates the gap and adds it, at most 0.3 nats an item
    (:func:`~pyro_attention.objectives.correction.evidence_bound`). The corrected sum is closer to the log evidence and
    no lower bound of it. :attr:`gap_record` has the remaining gap, and training warns
    (:class:`~pyro_attention.objectives.gap.GapWarning`) where it is too large to learn a width.

    An item is an entry of the plates that all latent sites and all observations have in common: a sentence, for
    example, if its queries are one site, or a word if every word has a site. The importance weight of an item covers
    all its sites: with a stack of layers, K draws of all layers together, so that deep stacks and large items, such as
    a whole graph, need far more draws. Masked observations do not count; the scale of the sites multiplies an item's
    bound.

    All draws are of one minibatch and come from one pass, by a plate at the left, where a replay shows that the model
    broadcasts over it (:func:`pyro_attention.draws.broadcasts`), else from single runs, which take longer. A pass
    shares the part of the model before the attention, dropout included; single runs draw that dropout anew, which
    tightens the bound: both are bounds. Gradients are pathwise. If a single attention site has a posterior that differs
    from its prior, the gradient of that posterior's parameters is doubly reparameterized, so that its signal does not
    vanish as K grows; with several such sites it is the plain gradient of the bound. ``kl_record`` stays empty.

    Args:
        num_particles: Draws K, at least 4, or 2 without the correction.
        correction: "jackknife", or None for the bound of K draws itself.
        chunk_size: Draws in one pass; all when omitted. Passes are run again in the backward pass, so that the memory
            is that of one pass, at the cost of another forward pass, and of the part before the attention once a chunk.
        max_plate_nesting: Number of nested plates, without that of the draws; guessed when omitted.

    Attributes:
        bounds: Estimated log evidence and gap of every item at the last evaluation, an
            :class:`~pyro_attention.objectives.correction.EvidenceBound` without gradient; None before the first.

    Raises:
        ValueError: Too few draws. At a call: no observation; sites without a common plate, or with another scale;
            weights of an item that all vanish.

    Example:
        >>> import pyro
        >>> from pyro_attention import AttentionGuide, Dense, FromPrior, LatentAttention, LogNormal, ScorePrior
        >>> attention = LatentAttention("attention", ScorePrior(LogNormal(scale=0.5, learnable=True)))
        >>> def model(scores, values, y):
        ...     with pyro.plate("data", len(y)):
        ...         mean = attention(scores, values, layout=Dense(event_dim=2)).context.squeeze(-1).squeeze(-1)
        ...         pyro.sample("y", pyro.distributions.Normal(mean, 1.0), obs=y)
        >>> elbo = EvidenceELBO(num_particles=4, max_plate_nesting=1)
        >>> guide = AttentionGuide(model, FromPrior())
        >>> round(elbo.loss(model, guide, torch.zeros(2, 1, 3), torch.ones(1, 3, 1), torch.ones(2)), 3)  # log 2 pi
        1.838

    Source: Burda et al. (2016), Importance Weighted Autoencoders; Nowozin (2018), Debiasing Evidence Approximations;
    Tucker et al. (2019), Doubly Reparameterized Gradient Estimators for Monte Carlo Objectives.
    """

    is_evidence = True

    def __init__(
        self,
        num_particles: int = 16,
        *,
        correction: Literal["jackknife"] | None = "jackknife",
        chunk_size: int | None = None,
        max_plate_nesting: float = float("inf"),
    ) -> None:
        if correction not in ("jackknife", None):
            raise ValueError(f"correction is {correction!r}, expected 'jackknife' or None")
        if num_particles < 2:
            raise ValueError(f"num_particles is {num_particles}, expected at least 2; AttentionELBO works with one")
        if correction is not None and num_particles < LEAST_DRAWS:
            raise ValueError(
                f"num_particles is {num_particles} with correction='{correction}', expected at least {LEAST_DRAWS}; "
                f"fewer draws estimate their gap too poorly: take more, or correction=None"
            )
        if chunk_size is not None and chunk_size < 1:
            raise ValueError(f"chunk_size is {chunk_size}, expected at least 1")
        super().__init__(
            kl_weight=0.0,  # the prior enters by the weights
            num_particles=num_particles,
            vectorize_particles=True,
            max_plate_nesting=max_plate_nesting,
        )
        self.correction, self.chunk_size = correction, chunk_size
        self.bounds: EvidenceBound | None = None
        self.gap_watch = GapWatch()

    @property
    def gap_record(self) -> GapRecord | None:
        """Gap of the log evidence in the last evaluation; None before the first evaluation."""
        return None if self.bounds is None else GapRecord.of(self.bounds)

    def _evaluate(self, model: Model, guide: Model, args: Args, kwargs: Kwargs) -> Tensor:
        check_guide(guide)
        self.kl_record, factors = {}, list[GradientFactors]()
        log_importance_weights, scale = self._log_importance_weights(model, guide, args, kwargs, factors)
        corrected = self.correction is not None
        # all draws are needed for them; the hooks of the draws read them in the backward pass
        factors.append(GradientFactors(log_importance_weights, corrected=corrected))
        bounds = evidence_bound(log_importance_weights, corrected=corrected)
        if validates_distributions() and (count := (~bounds.value.isfinite()).sum().item()):
            raise ValueError(
                f"the log evidence of {count} of {bounds.value.numel()} items is NaN or infinite: all of their "
                f"{self.num_particles} weights vanish, or an observation is NaN; put a number in place of missing "
                f"observations and hide them by poutine.mask, or give the likelihood more noise"
            )
        self.bounds = replace(bounds, value=bounds.value.detach())
        if torch.is_grad_enabled():
            at_mean = partial(log_likelihood_at_mean, guide, args, kwargs, seed=self.gap_watch.steps)
            self.gap_watch.step(self.bounds, self.num_particles, at_mean)
        return -torch.as_tensor(scale_and_mask(bounds.value, scale=scale)).sum()

    def _log_importance_weights(
        self, model: Model, guide: Model, args: Args, kwargs: Kwargs, factors: list[GradientFactors]
    ) -> tuple[Tensor, Scale]:
        """Return the log weights of all draws ``[draws, ...]``, and the scale of their sites."""
        size = self.chunk_size or self.num_particles
        together = size > 1 and self._broadcasts(model, guide, args, kwargs, SharedDraws)
        saves_memory = size < self.num_particles and torch.is_grad_enabled()
        # checkpoint keeps the random state of the devices that it sees among the arguments
        devices = [torch.empty(0, device="cuda")] if torch.cuda.is_initialized() else []
        devices += [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.is_cuda]
        run = partial(self._get_trace, model, guide, args, kwargs)
        validates, minibatch, handlers = is_validation_enabled(), Minibatch(), handlers_but_tracers()

        def draw(draws: slice, *_: Tensor) -> tuple[Tensor, Scale]:
            # as at first, when it is run again: those around the call may have ended by then
            around = below(handlers) if is_in_backward_pass() else nullcontext()
            with around, pyro.validation_enabled(validates):
                return self._draw(run, draws, factors, together=together, minibatch=minibatch)

        chunks = list[Tensor]()
        scale: Scale = None
        for start in range(0, self.num_particles, size):
            draws = slice(start, min(start + size, self.num_particles))
            if saves_memory:
                chunk, scale = checkpoint(partial(draw, draws), *devices, use_reentrant=False)
            else:
                chunk, scale = draw(draws)
            chunks.append(chunk)
        return _joined(chunks), scale

    def _draw(
        self,
        run: Callable[[], tuple[Trace, Trace]],
        draws: slice,
        factors: list[GradientFactors],
        *,
        together: bool,
        minibatch: Minibatch,
    ) -> tuple[Tensor, Scale]:
        """Return the log weights ``[draws, ...]`` of some of the draws, and the scale of their sites.

        The draws of a posterior of its own are prepared for their gradient.
        """
        rows, scale, first = list[Tensor](), None, draws.start
        nesting = int(self.max_plate_nesting) - 1 if together else 0
        passes = runs(run, draws.stop - draws.start, together=together, nesting=nesting, minibatch=minibatch)
        for (model_trace, guide_trace), size in passes:
            items = self._weigh(model_trace, guide_trace, first if size is None else draws, factors)
            rows.append(items.log_importance_weights.unsqueeze(0) if size is None else items.log_importance_weights)
            scale, first = items.scale, first + (size or 1)
        return _joined(rows), scale

    def _weigh(
        self, model_trace: Trace, guide_trace: Trace, draws: slice | int, factors: list[GradientFactors]
    ) -> ItemWeights:
        """Return the log weights of one pass."""
        self._elbo_particle(model_trace, guide_trace)  # for its checks
        sites = {name: site for name, site in guide_trace.nodes.items() if site["type"] == "sample"}
        latent = [
            (site, model_trace.nodes[name]["fn"] if name in model_trace.nodes else None) for name, site in sites.items()
        ]
        sites_with_ratio = [site for site, prior in latent if _has_ratio(site, prior)]
        if len(sites_with_ratio) == 1 and isinstance(sites_with_ratio[0]["fn"], ContinuousWeights):
            _reparameterize_doubly(sites_with_ratio[0], draws, factors)
        return item_weights(latent, [model_trace.nodes[name] for name in model_trace.observation_nodes])


def _reparameterize_doubly(site: Message, draws: slice | int, factors: list[GradientFactors]) -> None:
    """Let the parameters of a posterior have the doubly reparameterized gradient: by the path of the draws alone.

    Args:
        site: The site, whose distribution has no gradient of its own afterwards.
        draws: Numbers of the draws of its value, among all of the evaluation.
        factors: Factors of the draws' gradients. The list is filled after all passes, and read in the backward pass.
    """
    q, value = site["fn"], site["value"]
    site["fn"] = _detached(q)
    if not value.requires_grad:
        return
    event = [1] * len(q.event_shape)

    def weigh(grad: Tensor) -> Tensor:
        of_draws = factors[0][draws]
        return (grad * of_draws.reshape(*of_draws.shape, *event).to(grad)).sum_to_size(grad.shape)

    value.register_hook(weigh)


def _joined(rows: list[Tensor]) -> Tensor:
    """Join log weights ``[draws, ...]`` of passes, with dimensions of size one for plates that only some show."""
    if len(rows) == 1:
        return rows[0]
    dims = max(row.dim() for row in rows)
    return torch.cat([row.reshape(len(row), *[1] * (dims - row.dim()), *row.shape[1:]) for row in rows])


@dataclass(frozen=True)
class ItemWeights:
    """Log importance weights of the items of one pass, in 32 bits or more.

    Attributes:
        log_importance_weights: ``[draws, ...]``, with the dimensions of all plates, of size one where a plate is within
            an item; without the first one where the pass is a single draw.
        dims: Dimensions of the plates whose entries are items, negative.
        scale: Scale of the sites, a number or a tensor that broadcasts.
    """

    log_importance_weights: Tensor
    dims: tuple[int, ...]
    scale: Scale


def item_weights(
    latent: Iterable[tuple[Message, TorchDistribution | None]], observed: Iterable[Message]
) -> ItemWeights:
    r"""Weigh every item, :math:`\log f(y_i \mid W_i) + \log p(W_i) - \log q(W_i)`, in one pass of a guide.

    Args:
        latent: Latent sites of the guide's trace, each with its distribution in the model, or None without one. Sites
            that keep their prior, by ``FromPrior`` or without a family, add nothing.
        observed: Observed sites.

    Raises:
        ValueError: As at a call of :class:`EvidenceELBO`.
    """
    latent, observed = list(latent), [site for site in observed if not is_deterministic(site)]
    if not observed:
        raise ValueError("the model observes nothing, so draws have no weights; pass it the observations")
    sites = [*(site for site, _ in latent), *observed]
    dims, scale = _item_dims(sites), _common_scale(sites)
    total = torch.zeros(())
    for site in observed:
        log_prob = site["unscaled_log_prob"] if "unscaled_log_prob" in site else site["fn"].log_prob(site["value"])
        total = total + sum_to_items(log_prob, site, dims)
    for site, prior in latent:
        if _has_ratio(site, prior):
            if isinstance(site["fn"], AlignmentWeights):
                raise ValueError(
                    f"site '{site['name']}': draws of {type(site['fn']).__name__} are relaxed, and their log "
                    f"probability is no density, so they have no importance weights; draw keys, by "
                    f"Categorical(enumerate=False), or sum them out, by exact_alignments(guide.model, ...)"
                )
            log_p = 0.0 if prior is None else prior.log_prob(site["value"])
            total = total + sum_to_items(log_p - site["fn"].log_prob(site["value"]), site, dims)
    _check_scale_of_items(scale, total)
    return ItemWeights(total, dims, scale)


def log_likelihood_at_mean(model: Model, args: Args, kwargs: Kwargs, *, seed: int = 0) -> Tensor:
    """Return the log likelihood of every item with the prior mean of all attention weights, by one run of the model.

    Args:
        model: The Pyro model, or its guide, with the handlers around it, which may hold the observations.
        args: Its arguments, with the observations.
        kwargs: Its keyword arguments.
        seed: Seed of other noise than that of the attention, such as dropout; the global generators are not changed.

    Returns:
        Log likelihoods in nats, with the dimensions of all plates, of size one where a plate is within an item.
    """
    messenger: object = poutine.unwrap(model)
    try:
        with torch.no_grad(), poutine.block(), seeded(seed), _AtPriorMean():  # handlers outside see nothing of it
            trace = prune_subsample_sites(poutine.trace(model).get_trace(*args, **kwargs))
    finally:
        if isinstance(messenger, AttentionGuide):
            forget_run(messenger)
    trace.compute_log_prob(lambda _, site: site["is_observed"])
    sites = [site for site in trace.nodes.values() if site["type"] == "sample" and not is_deterministic(site)]
    dims, total = _item_dims(sites), torch.zeros(())
    for site in sites:
        if site["is_observed"]:
            total = total + sum_to_items(site["unscaled_log_prob"], site, dims)
    return total


class _AtPriorMean(AtMean):
    """Handler around a model, or its guide, that makes every attention site a point mass at its prior mean."""

    def _pyro_sample(self, msg: Message) -> None:
        prior = msg["infer"].get("prior")
        if not msg["is_observed"] and isinstance(prior, AttentionDistribution):
            msg["fn"] = prior
        super()._pyro_sample(msg)


def _has_ratio(site: Message, prior: TorchDistribution | None) -> bool:
    """Return whether prior and posterior of a latent site differ."""
    return not (site["mask"] is False or keeps_prior(site) or site["fn"] is prior)


def sum_to_items(log_prob: Tensor, site: Site, dims: Collection[int]) -> Tensor:
    """Sum the masked log probability of a site over its plates, but those of the items and of the draws.

    In 32 bits or more, as sums in half precision lose the small terms.
    """
    log_prob = scale_and_mask(as_float(log_prob), mask=site["mask"])
    kept_dims = {*dims, *(frame.dim for frame in site["cond_indep_stack"] if frame.name == DRAWS)}
    summed_dims = [dim for dim in range(-log_prob.dim(), 0) if dim not in kept_dims]
    return log_prob.sum(summed_dims, keepdim=True) if summed_dims else log_prob


def _item_dims(sites: list[Message]) -> tuple[int, ...]:
    """Return the dimensions of the plates that all sites have in common."""
    plates = [plates_of(site) for site in sites]
    common = set(plates[0]).intersection(*plates[1:])
    attended = [
        frame
        for site, site_plates in zip(sites, plates, strict=True)
        if is_attention_site(site)
        for frame in site_plates.values()
    ]
    if not common and any(frame.size > 1 for frame in attended):
        plates_by_site = ", ".join(
            f"'{site['name']}' in {sorted(site_plates) or 'none'}"
            for site, site_plates in zip(sites, plates, strict=True)
        )
        raise ValueError(
            f"no plate holds all sites (plates by site: {plates_by_site}), so that all data would be one item, whose "
            f"weights vanish; put attention and observations of an item into one plate, and keep other latent sites "
            f"within it"
        )
    return tuple(sorted(plates[0][name].dim for name in common))


def _common_scale(sites: list[Message]) -> Scale:
    """Return the scale of all sites; raise ValueError where they differ."""
    first = sites[0]
    for site in sites[1:]:
        if (torch.as_tensor(site["scale"]) != torch.as_tensor(first["scale"])).any():
            problem = f"site '{site['name']}' has scale {site['scale']} and site '{first['name']}' {first['scale']}"
            raise ValueError(f"{problem}, expected the same; put poutine.scale, or the subsampled plate, around both")
    scale: Scale = first["scale"]
    return scale


def _check_scale_of_items(scale: Scale, log_importance_weights: Tensor) -> None:
    """Raise ValueError where a scale differs within an item, whose bound it would multiply several times."""
    shape = log_importance_weights.shape
    if isinstance(scale, Tensor) and torch.broadcast_shapes(scale.shape, shape).numel() != shape.numel():
        raise ValueError(
            f"the sites have a scale of shape {tuple(scale.shape)}, expected one number an item, of a shape that "
            f"broadcasts to {tuple(shape[-scale.dim() :])}, as a plate within an item has one bound for all its entries"
        )


def _detached(q: ContinuousWeights) -> ContinuousWeights:
    """Copy a distribution, with parameters that pass on no gradient."""
    new = copy.copy(q)
    for name in q.parameter_names:
        setattr(new, name, getattr(q, name).detach())
    return new
