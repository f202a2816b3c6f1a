"""AttentionELBO: Pyro's mean-field ELBO, made strict, economical and observable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import ClassVar, Literal

import pyro
import torch
from pyro import poutine
from pyro.distributions import TransformedDistribution
from pyro.distributions.util import scale_and_mask
from pyro.infer import TraceMeanField_ELBO
from pyro.infer.elbo import ELBO, ELBOModule
from pyro.poutine.guide import GuideMessenger
from pyro.poutine.util import prune_subsample_sites
from torch import Tensor
from torch.distributions import kl_divergence

from pyro_attention._checks import as_float, check_count
from pyro_attention._typing import Args, Kwargs, Message, Model, Trace
from pyro_attention.draws import AllDraws, Minibatch, Replayed, broadcasts, is_point_mass, runs
from pyro_attention.guide import forget_run, is_attention_site, keeps_prior
from pyro_attention.objectives.reached_parameters import frozen_parameters, warn_of_thawed
from pyro_attention.objectives.validation import check_run, check_step, watch_evaluation

__all__ = ["AttentionELBO", "DifferentiableELBO"]


class DifferentiableELBO(ELBO):
    """Objective that is trained by its ``differentiable_loss``.

    Attributes:
        is_evidence: Whether the objective is the log of a mean over draws, under which a width can be learned.
    """

    is_evidence: ClassVar[bool] = False
    _terms: Mapping[str, Tensor] = {}  # log likelihoods at the observed sites, at the last evaluation

    def __call__(self, model: Model, guide: Model) -> ELBOModule:
        """Return the loss as a module, called with the arguments of the model."""
        return _CheckedModule(model, guide, self)  # type: ignore[arg-type]  # Pyro takes functions, too

    def _evaluate(self, model: Model, guide: Model, args: Args, kwargs: Kwargs) -> Tensor:
        """Return the loss of one evaluation; a subclass implements this."""
        raise NotImplementedError

    def differentiable_loss(self, model: Model, guide: Model, *args: object, **kwargs: object) -> Tensor:
        """Return an estimate of the loss in nats, a scalar tensor with a gradient."""
        return watch_evaluation(self, model, guide, partial(self._evaluate, model, guide, args, kwargs))

    def loss(self, model: Model, guide: Model, *args: object, **kwargs: object) -> float:
        """Return an estimate of the loss in nats, without gradient."""
        with torch.no_grad():
            return float(self.differentiable_loss(model, guide, *args, **kwargs))

    def loss_and_grads(self, model: Model, guide: Model, *args: object, **kwargs: object) -> float:
        """Return the value of the loss, and add its gradient to the parameters of the param store."""
        frozen = frozen_parameters(model, guide)
        with poutine.trace(param_only=True) as tracer:
            loss = self.differentiable_loss(model, guide, *args, **kwargs)
        warn_of_thawed(frozen)
        check_step(self, loss, (), tracer.trace)
        loss.backward(retain_graph=self.retain_graph)
        return loss.item()

    def _guess_max_plate_nesting(self, model: Model, guide: Model, args: Args, kwargs: Kwargs) -> None:
        if isinstance(poutine.unwrap(guide), GuideMessenger):
            # it runs its model, under the handlers around it, which another run would lack
            model = lambda *_, **__: None  # noqa: E731
        super()._guess_max_plate_nesting(model, guide, args, kwargs)


class _CheckedModule(ELBOModule):
    def forward(self, *args: object, **kwargs: object) -> Tensor:
        frozen = frozen_parameters(self.model, self.guide)
        loss: Tensor = super().forward(*args, **kwargs)
        warn_of_thawed(frozen)
        assert isinstance(self.elbo, DifferentiableELBO)
        if loss.requires_grad:
            check_step(self.elbo, loss, (self,), None)
        return loss


class AttentionELBO(DifferentiableELBO, TraceMeanField_ELBO):
    r"""Negative ELBO with closed-form KL, summed over every valid attention weight.

    .. math:: -\mathrm{E}_q[\log p(y \mid W)] + \mathrm{kl\_weight} \cdot \sum_\text{sites} \mathrm{KL}(q \| p)

    Works wherever a Pyro ELBO does: ``SVI(model, guide, optim, AttentionELBO())``, and as a module for plain PyTorch
    and Lightning: ``AttentionELBO()(model, guide)``. With an :class:`AttentionGuide` the model runs once a step.

    One evaluation is one run of the guide (``_get_trace``), which puts the posterior into each site, and then the KL of
    each site (``_kl``): torch's ``kl_divergence`` chooses the rule by the two types, for log weights
    :func:`pyro_attention.families.distribution.kl_log_weights`, cross entropy minus entropy.

    Args:
        kl_weight: Weight of the KL terms, or a callable of :attr:`step` (see :mod:`pyro_attention.schedules`); 0 skips
            them.
        kl_mean: Take the mean of the KL over attention weights and sites instead of the sum of the ELBO. Then a weight
            such as 0.01 suits any number of heads, layers and keys.
        kl: "closed_form" raises for a pair without a closed form, except of an autoguide; "sampled" estimates the KL
            from the draws.
        num_particles: Samples per estimate.
        vectorize_particles: Draw them in one pass, by a plate at the left, where a replay shows that the model
            broadcasts over it (:func:`pyro_attention.draws.broadcasts`), else one by one. A pass shares dropout ahead
            of the attention, which single runs draw anew; both are bounds.
        max_plate_nesting: Number of nested plates, needed only with vectorized particles; guessed when omitted.

    Attributes:
        step: Step given to a ``kl_weight`` schedule; set by the caller (the training loop), never counted inside.
        kl_record: Unweighted KL of every site at the last evaluation, averaged over particles.

    Raises:
        ValueError: An option out of range; at a call: a KL without closed form, an ELBO that is NaN or infinite, a
            latent site in the model or the guide alone, handlers around the model alone, or parameters that would not
            train.

    Example:
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
        check_count("num_particles", num_particles)
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
        """Return the KL weight at the present step."""
        weight = self.kl_weight(self.step) if callable(self.kl_weight) else self.kl_weight
        if not 0 <= weight < float("inf"):
            raise ValueError(f"kl_weight is {weight} at step {self.step}, expected a finite number >= 0")
        return weight

    def _evaluate(self, model: Model, guide: Model, args: Args, kwargs: Kwargs) -> Tensor:
        self.kl_record = {}
        loss: Tensor | float = 0.0
        for model_trace, guide_trace in self._get_traces(model, guide, args, kwargs):
            loss = loss - self._elbo_particle(model_trace, guide_trace) / self.num_particles
        return torch.as_tensor(loss)

    def _get_traces(self, model: Model, guide: Model, args: Args, kwargs: Kwargs) -> Iterator[tuple[Trace, Trace]]:
        run, count = partial(self._get_trace, model, guide, args, kwargs), self.num_particles
        if not self.vectorize_particles or count == 1:
            yield from (run() for _ in range(count))  # each of a minibatch of its own, as in Pyro
            return
        together = self._broadcasts(model, guide, args, kwargs, AllDraws)
        nesting, minibatch = self._nesting, Minibatch()
        for traces, _ in runs(run, count, together=together, nesting=nesting, minibatch=minibatch, plate=AllDraws):
            yield traces

    @property
    def _nesting(self) -> int:
        """Number of nested plates of the model, to the left of which particles are vectorized."""
        return int(self.max_plate_nesting) - 1

    def _broadcasts(self, model: Model, guide: Model, args: Args, kwargs: Kwargs, plate: type[pyro.plate]) -> bool:
        """Return whether particles may share a pass; Pyro counts their plate as one of the nested ones."""
        if self.max_plate_nesting == float("inf"):
            self._guess_max_plate_nesting(model, guide, args, kwargs)

        def run() -> Replayed:
            return Replayed(AttentionELBO._get_trace(self, model, guide, args, kwargs))

        return broadcasts(guide, poutine.unwrap(model), "objective", run, nesting=self._nesting, plate=plate)

    def _get_trace(self, model: Model, guide: Model, args: Args, kwargs: Kwargs) -> tuple[Trace, Trace]:
        """Return traces of model and guide; log-probabilities are computed at observed sites only."""
        messenger: object = poutine.unwrap(guide)
        if isinstance(messenger, GuideMessenger):
            try:
                guide(*args, **kwargs)
                model_trace, guide_trace = messenger.get_traces()
            finally:
                forget_run(messenger)
        else:
            guide_trace = poutine.trace(guide).get_trace(*args, **kwargs)
            replayed = poutine.replay(model, trace=guide_trace)
            model_trace = poutine.trace(replayed).get_trace(*args, **kwargs)
        # not before the replay: model and guide share their minibatch
        model_trace, guide_trace = prune_subsample_sites(model_trace), prune_subsample_sites(guide_trace)
        model_trace.compute_log_prob(lambda _, site: site["is_observed"])
        for site in map(model_trace.nodes.__getitem__, model_trace.observation_nodes):
            if site["log_prob_sum"].dtype.itemsize < 4:  # a sum in half precision is rounded
                site["log_prob_sum"] = as_float(site["log_prob"]).sum()
        if self.kl_mean:
            _take_means(model_trace, guide_trace)
        self._terms = {name: model_trace.nodes[name]["log_prob_sum"].detach() for name in model_trace.observation_nodes}
        check_run(self, guide, model_trace, guide_trace)
        return model_trace, guide_trace

    def _elbo_particle(self, model_trace: Trace, guide_trace: Trace) -> Tensor:
        elbo, weight = torch.zeros(()), self.current_kl_weight()
        self._kl_terms: dict[str, Tensor] = {}
        for name in model_trace.observation_nodes:
            elbo = elbo + _beside(elbo, model_trace.nodes[name]["log_prob_sum"])
        for name in model_trace.stochastic_nodes:
            if name not in guide_trace.nodes:
                raise ValueError(f"site '{name}' is in the model alone; use AlignmentELBO if its family is Marginal")
        for name, site in _sample_sites(guide_trace).items():
            if name not in model_trace.nodes and not site["infer"].get("is_auxiliary"):
                raise ValueError(f"site '{name}' is in the guide alone; mark it by infer={{'is_auxiliary': True}}")
            self._check_pathwise(name, site)
            kl_of_plates = self._kl(name, site, model_trace.nodes.get(name)) if weight > 0 else None
            if kl_of_plates is not None:
                kl = kl_of_plates.sum()
                elbo = elbo - weight * _beside(elbo, kl)
                self.kl_record[name] = self.kl_record.get(name, 0) + kl.detach() / self.num_particles
                self._kl_terms[name] = kl_of_plates.detach()  # rewards of ScoreFunctionELBO
        return elbo

    def _kl(self, name: str, guide_site: Message, model_site: Message | None) -> Tensor | None:
        """Return the KL of a site, with the dimensions of its plates; None where the site has no prior term."""
        q, value = guide_site["fn"], guide_site["value"]
        at_prior = keeps_prior(guide_site) or (model_site is not None and q is model_site["fn"])
        if guide_site["mask"] is False or (at_prior and _has_path(guide_site)):
            return None
        if model_site is None:  # auxiliary
            return _weighted(q.log_prob(value), guide_site)
        p = model_site["fn"]
        if self.kl == "closed_form" and not is_point_mass(q):
            try:
                return _weighted(torch.as_tensor(kl_divergence(q, p)), guide_site)
            except NotImplementedError:
                if type(q) is not TransformedDistribution:  # which is that of an autoguide
                    remedy = "choose another pair, register one with torch.distributions.register_kl, or pass"
                    problem = f"site '{name}': KL({type(q).__name__} || {type(p).__name__}) has no closed form"
                    raise ValueError(f"{problem}; {remedy} kl='sampled'") from None
        return _weighted(q.log_prob(value), guide_site) - _weighted(p.log_prob(value), model_site)

    def _check_pathwise(self, name: str, site: Message) -> None:
        # a site that keeps a prior without parameters has none to lose
        if not (_has_path(site) if keeps_prior(site) else site["fn"].has_rsample):
            raise ValueError(
                f"site '{name}': {type(site['fn']).__name__} has no reparameterized sampler, so it cannot train here; "
                f"use AlignmentELBO or ScoreFunctionELBO for alignments, and poutine.mask instead of obs_mask= for "
                f"labels"
            )


def _beside(total: Tensor, term: Tensor) -> Tensor:
    """Return a term on the GPU of the total: layers may lie on several. Numbers of the CPU go with any of them."""
    return term if total.is_cpu or term.is_cpu else term.to(total.device)


def _take_means(model_trace: Trace, guide_trace: Trace) -> None:
    sites = [name for name, site in _sample_sites(guide_trace).items() if is_attention_site(site)]
    for name in sites:
        site = guide_trace.nodes[name]
        site["scale"] = site["scale"] * (1 / (len(sites) * site["infer"]["prior"].counts.clamp(min=1)))
        model_trace.nodes[name]["scale"] = site["scale"]


def _sample_sites(trace: Trace) -> dict[str, Message]:
    return {name: site for name, site in trace.nodes.items() if site["type"] == "sample"}


def _has_path(site: Message) -> bool:
    fn = site["fn"]
    return bool(fn.has_rsample) or not fn.log_prob(site["value"]).requires_grad


def _weighted(log_prob: Tensor, site: Message) -> Tensor:
    return torch.as_tensor(scale_and_mask(log_prob, scale=site["scale"], mask=site["mask"]))
