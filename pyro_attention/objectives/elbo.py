"""AttentionELBO: Pyro's mean-field ELBO, made strict, economical and observable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from pyro import poutine
from pyro.distributions import Delta
from pyro.distributions.util import scale_and_mask
from pyro.infer import TraceMeanField_ELBO
from pyro.infer.elbo import ELBO, ELBOModule
from pyro.infer.util import is_validation_enabled
from pyro.poutine.guide import GuideMessenger
from pyro.poutine.util import prune_subsample_sites
from pyro.util import check_model_guide_match, check_site_shape
from torch import Tensor
from torch.distributions import kl_divergence

from pyro_attention.guide import is_attention_site, keeps_prior, ran

__all__ = [
    "RUN_CHECKS",
    "STEP_CHECKS",
    "AttentionELBO",
    "DifferentiableELBO",
    "WholeELBOModule",
    "check_model_of_guide",
    "is_point_mass",
]


# What looks for mistakes in a run, and at the loss of a training step; pyro_attention.check adds its checks.
RUN_CHECKS: list[Callable[[Any, Any, Any, Any], None]] = []  # objective, guide, traces of model and guide
STEP_CHECKS: list[Callable[[Any, Tensor, Sequence[Any], Any], None]] = []  # objective, loss, modules, param sites


class DifferentiableELBO(ELBO):
    """An objective with ``differentiable_loss``, which is all that its training needs."""

    def __call__(self, model: Any, guide: Any) -> ELBOModule:
        """The loss as a module, called with the arguments of the model; ValueError as of :meth:`loss_and_grads`."""
        check_model_of_guide(model, guide)
        return WholeELBOModule(model, guide, self)

    def loss_and_grads(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        """Value of the loss; its gradient is added to the parameters of the param store.

        Raises:
            ValueError: The loss depends on no parameter, or on one that would not train, or the guide is that of
                another model.
        """
        check_model_of_guide(model, guide)
        with poutine.trace(param_only=True) as tracer:
            loss: Tensor = self.differentiable_loss(model, guide, *args, **kwargs)  # type: ignore[attr-defined]
        if not loss.requires_grad:
            raise ValueError("nothing to train: the loss depends on no parameter that requires a gradient")
        self.check_step(loss, trace=tracer.trace)
        loss.backward(retain_graph=self.retain_graph)
        return loss.item()

    def check_step(self, loss: Tensor, *modules: Any, trace: Any = None) -> None:
        """Look at the loss of a training step, of the parameters of modules or of the param sites of a trace."""
        for check in STEP_CHECKS:
            check(self, loss, modules, trace)

    def _guess_max_plate_nesting(self, model: Any, guide: Any, args: Any, kwargs: Any) -> None:
        if isinstance(poutine.unwrap(guide), GuideMessenger):
            # it runs its model, under the handlers around it, which another run would lack
            model = lambda *_, **__: None  # noqa: E731
        super()._guess_max_plate_nesting(model, guide, args, kwargs)


class WholeELBOModule(ELBOModule):
    """Pyro's module of a loss, whose graph reaches all parameters, as DistributedDataParallel waits for all of them."""

    elbo: DifferentiableELBO

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        loss: Tensor = super().forward(*args, **kwargs)
        if not loss.requires_grad:
            return loss
        self.elbo.check_step(loss, self)
        parameters = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return _Reach.apply(loss, *parameters)  # type: ignore[no-any-return]


class _Reach(torch.autograd.Function):
    """The first argument; the others get no gradient, but their hooks are called."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, *parameters: Tensor) -> Tensor:
        ctx.count = len(parameters)
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return gradient, *[None] * ctx.count


def check_model_of_guide(model: Any, guide: Any) -> None:
    """Raise ValueError when a guide that is a handler stands over another model."""
    messenger: Any = poutine.unwrap(guide)
    if isinstance(messenger, GuideMessenger) and poutine.unwrap(model) != poutine.unwrap(messenger.model):
        raise ValueError("the model is not that of the guide, which runs its own one; pass guide.model")


class AttentionELBO(DifferentiableELBO, TraceMeanField_ELBO):
    r"""Negative ELBO with closed-form KL, summed over every valid attention weight.

    .. math:: -\mathrm{E}_q[\log p(y \mid W)] + \mathrm{kl\_weight} \cdot \sum_\text{sites} \mathrm{KL}(q \| p)

    Works wherever a Pyro ELBO does: ``SVI(model, guide, optim, AttentionELBO())``, and as a module for plain PyTorch,
    Lightning and DDP: ``AttentionELBO()(model, guide)``. With an :class:`AttentionGuide` the model runs once a step.
    The KL of an autoguide is estimated from the drawn values, as in stock Pyro.

    DDP needs no ``find_unused_parameters=True`` for parameters that a step does not use, whose ``grad`` stays None in
    one process. Run the module once before it is wrapped when an autoguide makes its parameters at the first call, and
    seed every rank differently afterwards, or all draw equal noise.

    Args:
        kl_weight: Weight of the KL terms, or a callable of :attr:`step` (see :mod:`pyro_attention.schedules`); 0 skips
            them. A training whose KL outweighs its data at the first step warns.
        kl_mean: Take the mean of the KL over the attention weights in each entry of the plates, and over attention
            sites, where the ELBO has a sum. Then a weight such as 0.01 suits any number of heads, layers and keys.
        kl: "closed_form" raises where there is none; "sampled" estimates every KL from the draws, far noisier.
        num_particles: Samples per estimate.
        vectorize_particles: Draw them in one pass, by a plate at the left.
        max_plate_nesting: Number of nested plates, needed only with vectorised particles; guessed when omitted.

    Attributes:
        step: Step given to a ``kl_weight`` schedule; set by the caller (the training loop), never counted inside.
        kl_record: Unweighted KL of every site, of auxiliary ones too, at the last evaluation, averaged over particles.

    Raises:
        ValueError: At a call: a KL without closed form, an ELBO that is NaN or infinite, a latent site in the model or
            the guide alone, one with another scale or mask there, or parameters that would not train.

    Example:
        >>> import pyro
        >>> from pyro_attention import AttentionGuide, FixedGammaPrior, LatentAttention, Weibull
        >>> attention = LatentAttention("attention", FixedGammaPrior())
        >>> model = lambda scores, values: attention(scores, values).context
        >>> elbo = AttentionELBO()
        >>> loss = elbo.loss(model, AttentionGuide(model, Weibull()), torch.zeros(1, 2, 2), torch.ones(1, 2, 3))
        >>> sorted(elbo.kl_record), bool(loss > 0)
        (['attention'], True)

    Source: Fan et al. (2020), Bayesian Attention Modules, equation (5).
    """

    def __init__(
        self,
        *,
        kl_weight: float | Callable[[int], float] = 1.0,
        kl_mean: bool = False,
        kl: Literal["closed_form", "sampled"] = "closed_form",
        num_particles: int = 1,
        vectorize_particles: bool = False,
        max_plate_nesting: float = float("inf"),
    ) -> None:
        super().__init__(
            num_particles=num_particles, vectorize_particles=vectorize_particles, max_plate_nesting=max_plate_nesting
        )
        if kl not in ("closed_form", "sampled"):
            raise ValueError(f"kl is '{kl}', expected 'closed_form' or 'sampled'")
        self.kl_weight, self.kl_mean = kl_weight, kl_mean
        self.kl: Literal["closed_form", "sampled"] = kl
        self.step = 0
        self.kl_record: dict[str, Tensor] = {}
        self.current_kl_weight()

    def current_kl_weight(self) -> float:
        """The KL weight at the present step; ValueError when it is negative or not finite."""
        weight = self.kl_weight(self.step) if callable(self.kl_weight) else self.kl_weight
        if not 0 <= weight < float("inf"):
            raise ValueError(f"kl_weight is {weight} at step {self.step}, expected a finite number >= 0")
        return weight

    def loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        """Estimate of the negative ELBO in nats, without gradient."""
        with torch.no_grad():
            return float(self.differentiable_loss(model, guide, *args, **kwargs))

    def differentiable_loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Estimate of the negative ELBO in nats, a scalar tensor."""
        self.kl_record = {}
        loss: Tensor | float = 0.0
        for model_trace, guide_trace in self._get_traces(model, guide, args, kwargs):
            elbo = self._elbo_particle(model_trace, guide_trace)
            if is_validation_enabled() and not elbo.isfinite():
                raise ValueError(self._why_not_finite(elbo, model_trace))
            loss = loss - elbo / self.num_particles
        return torch.as_tensor(loss)

    def _get_trace(self, model: Any, guide: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Traces of model and guide; log-probabilities are computed at observed sites only."""
        if isinstance(poutine.unwrap(guide), GuideMessenger):
            with ran(guide, *args, **kwargs) as messenger:
                model_trace, guide_trace = messenger.get_traces()
        else:
            guide_trace = poutine.trace(guide).get_trace(*args, **kwargs)
            replayed = poutine.replay(model, trace=guide_trace)
            model_trace = poutine.trace(replayed).get_trace(*args, **kwargs)
        if is_validation_enabled():
            check_model_guide_match(model_trace, guide_trace, self.max_plate_nesting)
        # not before the replay: model and guide share their minibatch
        model_trace, guide_trace = prune_subsample_sites(model_trace), prune_subsample_sites(guide_trace)
        model_trace.compute_log_prob(lambda _, site: site["is_observed"])
        if self.kl_mean:
            _take_means(model_trace, guide_trace)
        if is_validation_enabled():
            for name in model_trace.observation_nodes:
                check_site_shape(model_trace.nodes[name], self.max_plate_nesting)
        for check in RUN_CHECKS:
            check(self, guide, model_trace, guide_trace)
        return model_trace, guide_trace

    def _elbo_particle(self, model_trace: Any, guide_trace: Any) -> Tensor:
        elbo, weight = torch.zeros(()), self.current_kl_weight()
        for name in model_trace.observation_nodes:
            elbo = elbo + model_trace.nodes[name]["log_prob_sum"]
        for name in model_trace.stochastic_nodes:
            if name not in guide_trace.nodes:
                raise ValueError(
                    f"site '{name}' is in the model alone; use AlignmentELBO, which sums it out if it is Marginal, or "
                    f"give the guide such a site"
                )
        for name, site in _sample_sites(guide_trace).items():
            if name not in model_trace.nodes and not site["infer"].get("is_auxiliary"):
                remedy = "give the model such a site, or mark it by infer={'is_auxiliary': True}"
                raise ValueError(f"site '{name}' is in the guide alone; {remedy}")
            self._check_pathwise(name, site)
            if weight > 0:
                # ScoreFunctionELBO reads it there
                site["kl"] = self._kl(name, site, model_trace.nodes.get(name))
                if site["kl"] is not None:
                    kl = site["kl"].sum()
                    elbo = elbo - weight * kl
                    self.kl_record[name] = self.kl_record.get(name, 0) + kl.detach() / self.num_particles
        return elbo

    def _kl(self, name: str, guide_site: Any, model_site: Any) -> Tensor | None:
        """KL of one site, with the dimensions of its plates; None where the site has no prior term."""
        q, value = guide_site["fn"], guide_site["value"]
        at_prior = keeps_prior(guide_site) or (model_site is not None and q is model_site["fn"])
        if guide_site["mask"] is False or (at_prior and _has_path(guide_site)):
            return None
        if model_site is None:  # auxiliary
            return _weighted(q.log_prob(value), guide_site)
        p = model_site["fn"]
        if self.kl == "sampled" or is_point_mass(q):
            return _weighted(q.log_prob(value), guide_site) - _weighted(p.log_prob(value), model_site)
        try:
            kl = kl_divergence(q, p)
        except NotImplementedError:
            remedy = "choose another pair, register one with torch.distributions.register_kl, or pass kl='sampled'"
            seen = f"KL({type(q).__name__} || {type(p).__name__}) has no closed form"
            raise ValueError(f"site '{name}': {seen}; {remedy}") from None
        for what in ("scale", "mask"):
            one, other = guide_site[what], model_site[what]
            if one is not other and not (_as_tensor(one) == _as_tensor(other)).all():
                raise ValueError(
                    f"site '{name}': its {what} is {one} in the guide and {other} in the model; put poutine.{what} "
                    f"around the site in both, or pass kl='sampled'"
                )
        return _weighted(torch.as_tensor(kl), guide_site)

    def _check_pathwise(self, name: str, site: Any) -> None:
        """Raise ValueError when a site's draw loses a gradient."""
        # a site that keeps a prior without parameters has none to lose
        if not (_has_path(site) if keeps_prior(site) else site["fn"].has_rsample):
            raise ValueError(
                f"site '{name}': {type(site['fn']).__name__} has no reparameterised sampler, it cannot train here; use "
                f"AlignmentELBO or ScoreFunctionELBO for alignments, and where obs_mask= hides labels use poutine.mask "
                f"around their site with obs= instead"
            )

    def _why_not_finite(self, elbo: Tensor, model_trace: Any) -> str:
        kl = {name: float(kl) for name, kl in self.kl_record.items()}
        observed = {name: model_trace.nodes[name]["log_prob_sum"].item() for name in model_trace.observation_nodes}
        broken = ", ".join(repr(name) for name, value in kl.items() if abs(value) == float("inf"))
        remedy = "look for NaN or impossible values in the observed data, or for a learning rate too large"
        if broken:
            remedy = f"the KL of {broken} overflows, as for raw scores near 89: normalise them (normalize_scores=True)"
        return f"the ELBO is {elbo.item()} (KL per site: {kl}; log likelihood per site: {observed}); {remedy}"


def _take_means(model_trace: Any, guide_trace: Any) -> None:
    """Scale attention sites, so that their KL is that of a mean weight in the mean site."""
    sites = [name for name, site in _sample_sites(guide_trace).items() if is_attention_site(site)]
    for name in sites:
        site = guide_trace.nodes[name]
        site["scale"] = site["scale"] * (1 / (len(sites) * site["infer"]["prior"].counts.clamp(min=1)))
        model_trace.nodes[name]["scale"] = site["scale"]


def _sample_sites(trace: Any) -> dict[str, Any]:
    return {name: site for name, site in trace.nodes.items() if site["type"] == "sample"}


def _has_path(site: Any) -> bool:
    """Whether a draw passes on all the gradients that its distribution has."""
    return site["fn"].has_rsample or not site["fn"].log_prob(site["value"]).requires_grad


def _weighted(log_prob: Tensor, site: Any) -> Tensor:
    return scale_and_mask(log_prob, scale=site["scale"], mask=site["mask"])  # type: ignore[no-any-return]


def _as_tensor(value: Any) -> Tensor:
    return torch.as_tensor(True if value is None else value)  # no mask is a mask of True


def is_point_mass(q: Any) -> bool:
    """Whether a distribution is a Delta, transformed or not."""
    while hasattr(q, "base_dist") and not isinstance(q, Delta):
        q = q.base_dist
    return isinstance(q, Delta)
