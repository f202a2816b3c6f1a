"""AttentionELBO: Pyro's mean-field ELBO, made strict, economical and observable."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import torch
from pyro import poutine
from pyro.distributions import Delta
from pyro.distributions.util import scale_and_mask
from pyro.infer import TraceMeanField_ELBO
from pyro.infer.elbo import ELBO, ELBOModule
from pyro.infer.util import is_validation_enabled
from pyro.poutine.guide import GuideMessenger
from pyro.poutine.trace_struct import Trace
from pyro.poutine.util import prune_subsample_sites
from pyro.util import check_model_guide_match, check_site_shape
from torch import Tensor, nn
from torch.distributions import kl_divergence

from pyro_attention.guide import is_attention_site, keeps_prior, run_messenger

__all__ = [
    "AttentionELBO",
    "DifferentiableELBO",
    "KLWarning",
    "WholeELBOModule",
    "other_model",
    "parameters_elsewhere",
    "unregistered_parameters",
]


class DifferentiableELBO(ELBO):
    """An objective with ``differentiable_loss``, which is all that its training needs."""

    def __call__(self, model: Any, guide: Any) -> ELBOModule:
        """The loss as a module, called with the arguments of the model.

        Raises:
            ValueError: The guide is that of another model; at the first call: the loss depends on parameters that
                belong to no module of its own.
        """
        _raise(other_model(model, guide))
        return WholeELBOModule(model, guide, self)

    def watch(self, loss: Tensor) -> None:
        """Look at the loss of a training step, before its backward pass."""

    def loss_and_grads(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        """Value of the loss; its gradient is added to the parameters of the param store.

        Raises:
            ValueError: The loss depends on no parameter, or on one that SVI would not train, or the guide is that of
                another model.
        """
        _raise(other_model(model, guide))
        with poutine.trace(param_only=True) as tracer:
            loss: Tensor = self.differentiable_loss(model, guide, *args, **kwargs)  # type: ignore[attr-defined]
        if not loss.requires_grad:
            raise ValueError("nothing to train: the loss depends on no parameter that requires a gradient")
        # stock Pyro skips the backward pass silently when nothing is registered
        if is_validation_enabled():
            _raise(unregistered_parameters(loss, tracer.trace))
        self.watch(loss)
        loss.backward(retain_graph=self.retain_graph)
        return loss.item()

    def _guess_max_plate_nesting(self, model: Any, guide: Any, args: Any, kwargs: Any) -> None:
        if isinstance(poutine.unwrap(guide), GuideMessenger):
            # it runs its model, under the handlers around it, which another run would lack
            model = _nothing
        super()._guess_max_plate_nesting(model, guide, args, kwargs)


def _nothing(*_: Any, **__: Any) -> None:
    """A model without sites."""


class WholeELBOModule(ELBOModule):
    """Pyro's module of a loss, whose graph reaches every parameter, those too that this step does not use.

    DistributedDataParallel waits for all of them.
    """

    elbo: DifferentiableELBO
    _complete = False  # nothing is missing among the parameters, as the first step has shown

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        loss: Tensor = super().forward(*args, **kwargs)
        if not loss.requires_grad:
            return loss
        if not self._complete and is_validation_enabled():
            _raise(parameters_elsewhere(loss, self))
            self._complete = True
        self.elbo.watch(loss)
        parameters = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return _Reach.apply(loss, *parameters)  # type: ignore[no-any-return]


def other_model(model: Any, guide: Any) -> str | None:
    """What is wrong when a guide that is a handler stands over another model; None when it does not."""
    messenger: Any = poutine.unwrap(guide)
    if not isinstance(messenger, GuideMessenger) or poutine.unwrap(model) == poutine.unwrap(messenger.model):
        return None
    return (
        "the model is not that of the guide, which runs its own one and leaves the other untrained; pass guide.model, "
        "or make a guide of this model"
    )


def _raise(problem: str | None) -> None:
    if problem is not None:
        raise ValueError(problem)


class _Reach(torch.autograd.Function):
    """The first argument; the others get no gradient, but their hooks are called."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, *parameters: Tensor) -> Tensor:
        ctx.count = len(parameters)
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return gradient, *[None] * ctx.count


_STILL = 100  # training steps at one step of a schedule that are too many


class KLWarning(UserWarning):
    """The KL weight is one that may ruin a training."""


class AttentionELBO(DifferentiableELBO, TraceMeanField_ELBO):
    r"""Negative ELBO with closed-form KL, summed over every valid attention weight.

    .. math:: -\mathrm{E}_q[\log p(y \mid W)] + \mathrm{kl\_weight} \cdot \sum_\text{sites} \mathrm{KL}(q \| p)

    Works wherever a Pyro ELBO does: ``SVI(model, guide, optim, AttentionELBO())``, and as a module for plain PyTorch,
    Lightning and DDP: ``AttentionELBO()(model, guide)``. With an :class:`AttentionGuide` the model runs once a step.

    A point mass, such as a site of an autoguide, has the exact term ``log q - log p`` at its value, and an auxiliary
    site of the guide has ``log q``: the KL of an autoguide is estimated from the drawn values, as in stock Pyro.

    Parameters that a step does not use (a prior network while the KL weight is 0, or under ``Soft``) take part in the
    module's loss without a gradient: their ``grad`` stays None in one process, and DDP averages zeros, without
    ``find_unused_parameters=True`` (an optimiser with weight decay then shrinks them). Two things are left to the
    caller of DDP: run the module once before it is wrapped when an autoguide makes its parameters at the first call,
    and seed every rank differently afterwards (``torch.manual_seed(seed + rank)``), or all draw equal noise.

    Args:
        kl_weight: Weight of the KL terms, or a callable of :attr:`step` (see :mod:`pyro_attention.schedules`); 0 skips
            them. A training whose KL outweighs its data at the first step warns.
        kl_mean: Take the mean of the KL over the attention weights in each entry of the plates, and over attention
            sites, where the ELBO has a sum. Then a weight such as 0.01 suits any number of heads, layers and keys.
        kl: "closed_form" raises where there is none; "sampled" estimates every KL from the drawn weights (for
            ablations; far noisier).
        num_particles: Samples per estimate.
        vectorize_particles: Draw them in one pass, by a plate at the left.
        max_plate_nesting: Number of nested plates, needed only with vectorised particles; guessed when omitted.

    Attributes:
        step: Step given to a ``kl_weight`` schedule; set by the caller (the training loop), never counted inside.
        kl_record: Unweighted KL of every site at the last evaluation, averaged over particles, in nats. An auxiliary
            site has its own entry, its part of the KL.

    Raises:
        ValueError: At a call: a KL without closed form, an ELBO that is NaN or infinite, a latent site of the model
            without one in the guide or the other way round, another scale or mask of a site in a hand-written guide
            than in the model, or parameters that would not train.

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
        self.kl_weight = kl_weight
        self.kl_mean = kl_mean
        self.kl: Literal["closed_form", "sampled"] = kl
        self.step = 0
        self._seen, self._weighed = (0, 0), False  # a step and how often it was seen; whether the KL was looked at
        self.kl_record: dict[str, Tensor] = {}
        self.current_kl_weight()

    def current_kl_weight(self) -> float:
        """The KL weight at the present step; ValueError when it is negative or not finite."""
        weight = self.kl_weight(self.step) if callable(self.kl_weight) else self.kl_weight
        if not 0 <= weight < float("inf"):
            raise ValueError(f"kl_weight is {weight} at step {self.step}, expected a finite number >= 0")
        return weight

    def heavy_kl(self, loss: float) -> str | None:
        """What is to be said when the KL of the last evaluation outweighs the rest of its loss; None when not."""
        weight = self.current_kl_weight()
        kl = weight * sum(float(kl) for kl in self.kl_record.values())
        data = abs(loss - kl)
        if not data < kl < float("inf"):
            return None
        less = 10.0 ** math.ceil(math.log10(10 * kl / max(data, 1e-6 * kl)))
        return (
            f"the KL outweighs the data: {kl:.4g} nats with kl_weight {weight:.3g}, against {data:.4g} of the data; "
            f"where the prior is not meant to decide, make the weight {less:.0f} times smaller (kl_weight="
            f"{weight / less:.2g})"
        )

    def watch(self, loss: Tensor) -> None:
        """Warn, once each, of a KL that outweighs the data at the start, and of a schedule whose step does not move."""
        if self.kl_record and not self._weighed:
            self._weighed = True
            problem = self.heavy_kl(loss.item())
            if problem is not None:
                warnings.warn(problem, KLWarning, stacklevel=2)
        step, count = self._seen
        self._seen = self.step, count + 1 if step == self.step else 1
        moves = callable(self.kl_weight) and self.kl_weight(self.step + 1) != self.kl_weight(self.step)
        if self._seen[1] == _STILL and moves:
            warnings.warn(
                f"kl_weight is a schedule, and elbo.step was the same in {_STILL} training steps, so the weight does "
                f"not change; set elbo.step in the training loop",
                KLWarning,
                stacklevel=2,
            )

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
            model_trace, guide_trace = run_messenger(guide, args, kwargs)
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
            if self.kl == "closed_form":
                _check_mean_field(model_trace, guide_trace)
        return model_trace, guide_trace

    def _elbo_particle(self, model_trace: Any, guide_trace: Any) -> Tensor:
        elbo, weight = torch.zeros(()), self.current_kl_weight()
        for name in model_trace.observation_nodes:
            elbo = elbo + model_trace.nodes[name]["log_prob_sum"]
        for name in model_trace.stochastic_nodes:
            if name not in guide_trace.nodes:
                family = model_trace.nodes[name]["infer"].get("family")
                remedy = (
                    "use AlignmentELBO, which sums it out"
                    if getattr(family, "is_marginal", False)
                    else "give the guide such a site"
                )
                raise ValueError(f"site '{name}' is in the model alone; {remedy}")
        for name, site in _sample_sites(guide_trace):
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
        if guide_site["mask"] is False or _keeps_prior(guide_site, model_site):
            return None
        if model_site is None:  # auxiliary
            return _weighted(q.log_prob(value), guide_site)
        p = model_site["fn"]
        if self.kl == "sampled" or _is_point_mass(q):
            return _weighted(q.log_prob(value), guide_site) - _weighted(p.log_prob(value), model_site)
        try:
            kl = kl_divergence(q, p)
        except NotImplementedError:
            remedy = "choose another pair, register one with torch.distributions.register_kl, or pass kl='sampled'"
            seen = f"KL({type(q).__name__} || {type(p).__name__}) has no closed form"
            raise ValueError(f"site '{name}': {seen}; {remedy}") from None
        for what in ("scale", "mask"):
            if not _equal(guide_site[what], model_site[what]):
                raise ValueError(
                    f"site '{name}': its {what} is {guide_site[what]} in the guide and {model_site[what]} in the "
                    f"model; put poutine.{what} around the site in both, or pass kl='sampled'"
                )
        return _weighted(torch.as_tensor(kl), guide_site)

    def _check_pathwise(self, name: str, site: Any) -> None:
        """Raise ValueError when a site's draw loses a gradient."""
        # a site that keeps a prior without parameters has none to lose
        if not (_has_path(site) if keeps_prior(site) else site["fn"].has_rsample):
            seen = f"site '{name}': {type(site['fn']).__name__} has no reparameterised sampler, it cannot train here"
            remedy = "use AlignmentELBO or ScoreFunctionELBO for alignments"
            if name.endswith("_unobserved"):  # Pyro's own name
                remedy = "where obs_mask= hides labels, use poutine.mask around their site with obs= instead"
            raise ValueError(f"{seen}; {remedy}")

    def _why_not_finite(self, elbo: Tensor, model_trace: Any) -> str:
        record = {name: float(kl) for name, kl in self.kl_record.items()}
        observed = {name: model_trace.nodes[name]["log_prob_sum"].item() for name in model_trace.observation_nodes}
        broken = [name for name, kl in record.items() if not math.isfinite(kl)]
        remedy = "look for NaN or impossible values in the observed data, for raw scores or a learning rate too large"
        if broken:
            remedy = (
                f"the KL of {', '.join(map(repr, broken))} overflows, as it does for raw scores near 89: let the layer "
                f"normalise them (normalize_scores=True), scale them down, or lower the learning rate"
            )
        return f"the ELBO is {elbo.item()} (KL per site: {record}; log likelihood per site: {observed}); {remedy}"


def _take_means(model_trace: Any, guide_trace: Any) -> None:
    """Scale attention sites, so that their KL is that of a mean weight in the mean site."""
    sites = [name for name, site in _sample_sites(guide_trace) if is_attention_site(site)]
    for name in sites:
        factor = 1 / (len(sites) * guide_trace.nodes[name]["infer"]["prior"].counts.clamp(min=1))
        for trace in (model_trace, guide_trace):
            trace.nodes[name]["scale"] = trace.nodes[name]["scale"] * factor


def _keeps_prior(guide_site: Any, model_site: Any) -> bool:
    same = model_site is not None and guide_site["fn"] is model_site["fn"]
    return (same or keeps_prior(guide_site)) and _has_path(guide_site)


def _has_path(site: Any) -> bool:
    """Whether a draw passes on all the gradients that its distribution has."""
    return site["fn"].has_rsample or not site["fn"].log_prob(site["value"]).requires_grad


def _weighted(log_prob: Tensor, site: Any) -> Tensor:
    return scale_and_mask(log_prob, scale=site["scale"], mask=site["mask"])  # type: ignore[no-any-return]


def _is_point_mass(q: Any) -> bool:
    while hasattr(q, "base_dist") and not isinstance(q, Delta):
        q = q.base_dist
    return isinstance(q, Delta)


def _equal(one: Any, other: Any) -> bool:
    """Whether two scales or masks are the same; no mask is a mask of True."""
    if one is other:
        return True
    one, other = (torch.as_tensor(True if value is None else value) for value in (one, other))
    return bool((one == other).all())


def _check_mean_field(model_trace: Any, guide_trace: Any) -> None:
    """Warn when closed-form KL terms may be wrong: Pyro's mean-field condition, by the order of the sites."""
    # sites that a messenger took from the model are in its order
    own = {name: site for name, site in _sample_sites(guide_trace) if "prior" not in site["infer"]}
    order = [name for name in own if name in model_trace.nodes]
    expected = [name for name in model_trace.nodes if name in own]
    if order != expected and not all(_is_point_mass(own[name]["fn"]) for name in order):
        warnings.warn(
            f"failed to verify the mean field restriction on the guide: its sites come in the order {order}, those of "
            f"the model in the order {expected}; sample them in the model's order, or pass kl='sampled'",
            stacklevel=2,
        )


def _sample_sites(trace: Any) -> Iterator[tuple[str, Any]]:
    return ((name, site) for name, site in trace.nodes.items() if site["type"] == "sample")


def unregistered_parameters(loss: Tensor, trace: Trace) -> str | None:
    """What is wrong when a loss depends on parameters that are no param sites of its trace; None when nothing is."""
    leaves = _leaves(loss)
    missing = _missing(leaves, _param_sites(trace))
    if not missing:
        return None
    return (
        f"{_count(missing, leaves)} need gradients but are no param sites, so SVI would not train them; make the model "
        f"a PyroModule or call pyro.module('net', net) inside it, call pyro.clear_param_store() first where another "
        f"model or guide was trained in this process (their names clash), or train AttentionELBO()(model, guide) with "
        f"a torch optimiser"
    )


def parameters_elsewhere(loss: Tensor, *parts: Any, trace: Trace | None = None) -> str | None:
    """What is wrong when a loss depends on parameters of other modules than its parts; None when nothing is.

    Param sites of a trace are not missed: SVI trains them.
    """
    leaves = [leaf for leaf in _leaves(loss) if isinstance(leaf, nn.Parameter)]  # an input may need a gradient, too
    own = [parameter for part in parts if isinstance(part, nn.Module) for parameter in part.parameters()]
    missing = _missing(leaves, [*own, *_param_sites(trace)])
    if not missing:
        return None
    return (
        f"{_count(missing, leaves)} need gradients but belong to no module of the loss, so an optimiser of its "
        f"parameters() would not train them; make the model a torch.nn.Module that holds the layers it calls, or give "
        f"elbo.differentiable_loss(model, guide, ...) an optimiser of your own choice of parameters"
    )


def _leaves(loss: Tensor) -> list[Tensor]:
    """Tensors that the gradient of a loss is added to."""
    leaves, seen, stack = [], set(), [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        stack.extend(parent for parent, _ in node.next_functions)
    return leaves


def _param_sites(trace: Trace | None) -> list[Tensor]:
    sites: list[Any] = [] if trace is None else [trace.nodes[name]["value"] for name in trace.param_nodes]
    return [site.unconstrained() for site in sites]


def _missing(leaves: Iterable[Tensor], known: Iterable[Tensor]) -> list[Tensor]:
    ids = {id(tensor) for tensor in known}
    return [leaf for leaf in leaves if id(leaf) not in ids]


def _count(missing: list[Tensor], leaves: Sequence[Tensor]) -> str:
    shapes = ", ".join(str(tuple(leaf.shape)) for leaf in missing[:5])
    return f"{len(missing)} of {len(leaves)} parameters (shapes {shapes})"
