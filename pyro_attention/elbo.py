"""AttentionELBO: Pyro's mean-field ELBO, made strict, economical and observable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from pyro import poutine
from pyro.distributions import Delta
from pyro.distributions.util import scale_and_mask
from pyro.infer import TraceMeanField_ELBO
from pyro.infer.util import is_validation_enabled
from pyro.poutine.guide import GuideMessenger
from pyro.poutine.util import prune_subsample_sites
from pyro.util import check_model_guide_match, check_site_shape
from torch import Tensor
from torch.distributions import kl_divergence

from pyro_attention._checks import unregistered_parameters

__all__ = ["AttentionELBO"]


class AttentionELBO(TraceMeanField_ELBO):
    r"""Negative ELBO with closed-form KL, summed over every valid attention weight.

    .. math:: -\mathrm{E}_q[\log p(y \mid W)] + \mathrm{kl\_weight} \cdot \sum_\text{sites} \mathrm{KL}(q \| p)

    Works wherever a Pyro ELBO does: ``SVI(model, guide, optim, AttentionELBO())``, and as a module for plain PyTorch,
    Lightning and DDP: ``AttentionELBO()(model, guide)``. With an :class:`AttentionGuide` the model runs once a step.

    Args:
        kl_weight: Weight of the KL terms, or a callable of :attr:`step` (see :mod:`pyro_attention.schedules`); 0 skips
            them.
        kl: "closed_form" raises where there is none; "sampled" estimates every KL from the drawn weights (for
            ablations; far noisier).
        num_particles: Samples per estimate.
        vectorize_particles: Draw them in one pass, by a plate at the left.
        max_plate_nesting: Number of nested plates, needed only with vectorised particles; guessed when omitted.

    Attributes:
        step: Step given to a ``kl_weight`` schedule; set by the caller (the training loop), never counted inside.
        kl_record: Unweighted KL of every site at the last evaluation, averaged over particles, in nats.

    Raises:
        ValueError: At a call: a KL without closed form, an ELBO that is NaN, or parameters that would not train.

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
        kl: Literal["closed_form", "sampled"] = "closed_form",
        num_particles: int = 1,
        vectorize_particles: bool = False,
        max_plate_nesting: float = float("inf"),
    ) -> None:
        super().__init__(  # type: ignore[no-untyped-call]
            num_particles=num_particles,
            vectorize_particles=vectorize_particles,
            max_plate_nesting=max_plate_nesting,
        )
        if kl not in ("closed_form", "sampled"):
            raise ValueError(f"kl is '{kl}', expected 'closed_form' or 'sampled'")
        self.kl_weight = kl_weight
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
        return self._evaluate(model, guide, args, kwargs)[0]

    def loss_and_grads(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        """Estimate of the negative ELBO; its gradient is added to the parameters of the param store."""
        loss, params = self._evaluate(model, guide, args, kwargs)
        if not loss.requires_grad:
            raise ValueError("nothing to train: the loss depends on no parameter that requires a gradient")
        # stock Pyro skips the backward pass silently when nothing is registered
        problem = unregistered_parameters(loss, params) if is_validation_enabled() else None
        if problem is not None:
            raise ValueError(problem)
        loss.backward(retain_graph=self.retain_graph)
        return loss.item()

    def _evaluate(self, model: Any, guide: Any, args: Any, kwargs: Any) -> tuple[Tensor, list[Tensor]]:
        """Loss and the param sites' tensors."""
        self.kl_record = {}
        loss: Tensor | float = 0.0
        params: list[Tensor] = []
        traces = self._get_traces(model, guide, args, kwargs)  # type: ignore[no-untyped-call]
        for model_trace, guide_trace in traces:
            loss = loss - self._elbo_particle(model_trace, guide_trace) / self.num_particles
            for trace in (model_trace, guide_trace):
                params += [s["value"].unconstrained() for s in trace.nodes.values() if s["type"] == "param"]
        loss = torch.as_tensor(loss)
        if is_validation_enabled() and loss.isnan():
            raise ValueError(
                f"the ELBO is NaN (KL per site: {self.kl_record}); look for NaN in the observed data, or a learning "
                f"rate or raw scores so large that the likelihood overflows"
            )
        return loss, params

    def _get_trace(self, model: Any, guide: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Traces of model and guide; log-probabilities are computed at observed sites only."""
        messenger = poutine.unwrap(guide)
        if isinstance(messenger, GuideMessenger):
            guide(*args, **kwargs)
            model_trace, guide_trace = messenger.get_traces()
            # the trace would keep this step's autograd graph alive until the next one
            del messenger.trace
        else:
            guide_trace = prune_subsample_sites(poutine.trace(guide).get_trace(*args, **kwargs))
            replayed = poutine.replay(model, trace=guide_trace)
            model_trace = prune_subsample_sites(poutine.trace(replayed).get_trace(*args, **kwargs))
        model_trace.compute_log_prob(lambda _, site: site["is_observed"])
        if is_validation_enabled():
            check_model_guide_match(model_trace, guide_trace, self.max_plate_nesting)
            for _, site in _sample_sites(model_trace):
                if site["is_observed"]:
                    check_site_shape(site, self.max_plate_nesting)
        return model_trace, guide_trace

    def _elbo_particle(self, model_trace: Any, guide_trace: Any) -> Tensor:
        elbo, weight = torch.zeros(()), self.current_kl_weight()
        for name, site in _sample_sites(model_trace):
            if site["is_observed"]:
                elbo = elbo + site["log_prob_sum"]
            elif weight > 0:
                if name not in guide_trace.nodes:
                    raise ValueError(
                        f"site '{name}' is in the model alone; use AlignmentELBO to sum an alignment out, or give the "
                        f"guide such a site"
                    )
                kl = self._kl(name, guide_trace.nodes[name], site)
                if kl is not None:
                    elbo = elbo - weight * kl
                    self.kl_record[name] = self.kl_record.get(name, 0) + kl.detach() / self.num_particles
        return elbo

    def _kl(self, name: str, guide_site: Any, model_site: Any) -> Tensor | None:
        """KL of one site, summed over its batch; None where the site has no prior term."""
        q, p, mask = guide_site["fn"], model_site["fn"], guide_site["mask"]
        kept = q is p or guide_site["infer"].get("keeps_prior", False)
        if mask is False or (kept and (q.has_rsample or not q.log_prob(guide_site["value"]).requires_grad)):
            return None
        if not q.has_rsample:
            self._check_unreparameterised(name, q)
        if self.kl == "sampled":
            kl = q.log_prob(guide_site["value"]) - p.log_prob(guide_site["value"])
        elif isinstance(q, Delta):
            kl = -p.log_prob(q.v)
        else:
            try:
                kl = kl_divergence(q, p)
            except NotImplementedError:
                raise ValueError(
                    f"site '{name}': KL({type(q).__name__} || {type(p).__name__}) has no closed form; choose another "
                    f"pair, register one with torch.distributions.register_kl, or pass kl='sampled'"
                ) from None
        return scale_and_mask(kl, scale=guide_site["scale"], mask=mask).sum()  # type: ignore[no-any-return]

    def _check_unreparameterised(self, name: str, q: Any) -> None:
        raise ValueError(
            f"site '{name}': {type(q).__name__} has no reparameterised sampler, it cannot train here; use "
            f"AlignmentELBO or ScoreFunctionELBO for alignments"
        )


def _sample_sites(trace: Any) -> Iterator[tuple[str, Any]]:
    return ((name, site) for name, site in trace.nodes.items() if site["type"] == "sample")
