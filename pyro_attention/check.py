"""check_model: look at every attention site before training."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from pyro import poutine
from torch import Tensor

from pyro_attention.guide import AttentionGuide, PriorWarning, is_attention_site, sites_at_prior
from pyro_attention.objectives.choice import elbo_for
from pyro_attention.objectives.elbo import AttentionELBO, other_model, untrained_parameters
from pyro_attention.objectives.enumeration import AlignmentELBO

__all__ = ["ModelReport", "SiteReport", "check_model"]


@dataclass(frozen=True)
class SiteReport:
    """What was seen at one attention site.

    Attributes:
        name: Site name.
        family: Name of the posterior distribution, such as WeibullWeights.
        prior: Name of the prior distribution.
        batch_shape: Plate dimensions.
        event_shape: (heads, queries, keys) or (edges, heads).
        masked: Fraction of masked entries.
        kl: KL of the site in nats, None where the site has no prior term.
        gradient_norm: Euclidean norm of the loss's gradient with respect to the site's scores, None without one, as in
            blocked attention, which holds no scores.
    """

    name: str
    family: str
    prior: str
    batch_shape: tuple[int, ...]
    event_shape: tuple[int, ...]
    masked: float
    kl: float | None
    gradient_norm: float | None


@dataclass(frozen=True)
class ModelReport:
    """Result of :func:`check_model`; prints as a table.

    Attributes:
        sites: One report per attention site, in the order of the model.
        loss: Negative ELBO in nats, None when it could not be computed.
        problems: What is wrong, each with its remedy; empty when all is well.
    """

    sites: tuple[SiteReport, ...]
    loss: float | None
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not self.problems

    def __str__(self) -> str:
        rows = [("site", "family", "prior", "batch", "event", "masked", "KL", "|gradient|")]
        for site in self.sites:
            kl = "-" if site.kl is None else f"{site.kl:.4g}"
            gradient = "-" if site.gradient_norm is None else f"{site.gradient_norm:.3g}"
            shapes = str(site.batch_shape), str(site.event_shape)
            rows.append((site.name, site.family, site.prior, *shapes, f"{site.masked:.1%}", kl, gradient))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        lines.append(f"loss {self.loss:.6g}" if self.loss is not None else "loss could not be computed")
        lines += [f"problem: {problem}" for problem in self.problems] or ["no problems found"]
        return "\n".join(line.rstrip() for line in lines)


def check_model(
    model: Callable[..., Any],
    guide: AttentionGuide,
    *args: Any,
    elbo: AttentionELBO | AlignmentELBO | None = None,
    svi: bool = False,
    **kwargs: Any,
) -> ModelReport:
    """Run one training step without updating parameters, and report every attention site and every problem found.

    Among the problems are a KL that outweighs the data, with a weight that would not, a guide of another model, and
    parameters that no optimiser would see.

    Args:
        model: The Pyro model.
        guide: Its guide.
        args: Arguments of a training step, observations included.
        elbo: Objective; by default that of :func:`elbo_for`.
        svi: Check as well that Pyro's SVI would train every parameter (all are param sites).
        kwargs: Keyword arguments of a training step.

    Returns:
        The report; ``print(report)`` shows a table.

    Example:
        >>> from pyro_attention import FixedGammaPrior, LatentAttention, Weibull
        >>> attention = LatentAttention("attention", FixedGammaPrior())
        >>> def model(scores, values):
        ...     return attention(scores, values).context
        >>> scores = torch.zeros(1, 2, 3, requires_grad=True)
        >>> report = check_model(model, AttentionGuide(model, Weibull()), scores, torch.ones(1, 3, 4))
        >>> report.sites[0].event_shape, report.problems
        ((1, 2, 3), ('the model observes nothing: no sample site has obs=, so the loss holds no likelihood',))
    """
    elbo = elbo_for(guide) if elbo is None else elbo
    recorder = _Recorder()
    problems = [*filter(None, [other_model(model, guide)])]
    loss: Tensor | None = None
    try:
        with torch.enable_grad(), poutine.trace(param_only=True) as tracer, recorder, warnings.catch_warnings():
            warnings.simplefilter("ignore", PriorWarning)  # it is among the problems
            loss = torch.as_tensor(elbo.differentiable_loss(model, guide, *args, **kwargs))
    except (ValueError, TypeError, RuntimeError, NotImplementedError) as error:
        problems.append(f"{type(error).__name__}: {error}")
    else:
        problems += _problems(loss, recorder, tracer.trace, svi)
        if not svi:
            problems += filter(None, [untrained_parameters(loss, model, guide, trace=tracer.trace)])
        if isinstance(elbo, AttentionELBO) and recorder.observed:
            problems += filter(None, [elbo.heavy_kl(loss.item())])
        problems += filter(None, [sites_at_prior(poutine.unwrap(guide), recorder.latent.values())])
    sites = _site_reports(recorder, loss, getattr(elbo, "kl_record", {}))
    problems += [
        f"site '{site.name}': the gradient of its scores is {site.gradient_norm}; look for infinite raw scores"
        for site in sites
        if site.gradient_norm is not None and not torch.tensor(site.gradient_norm).isfinite()
    ]
    return ModelReport(sites, None if loss is None else loss.item(), tuple(problems))


def _site_reports(recorder: _Recorder, loss: Tensor | None, kl: dict[str, Tensor]) -> tuple[SiteReport, ...]:
    gradients = _gradient_norms(loss, {name: prior.scores for name, (prior, _) in recorder.sites.items()})
    return tuple(
        SiteReport(
            name=name,
            family=type(posterior).__name__,
            prior=type(prior).__name__,
            batch_shape=tuple(prior.batch_shape),
            event_shape=tuple(prior.event_shape),
            masked=_masked_fraction(prior),
            kl=kl[name].item() if name in kl else None,
            gradient_norm=gradients.get(name),
        )
        for name, (prior, posterior) in recorder.sites.items()
    )


class _Recorder(poutine.messenger.Messenger):
    """Keeps every latent site, with prior and posterior of those of attention; stands outside the guide."""

    def __init__(self) -> None:
        super().__init__()
        self.latent: dict[str, Any] = {}  # messages of latent sites, which the guide completes later
        self.observed = False

    @property
    def sites(self) -> dict[str, tuple[Any, Any]]:
        attention = filter(is_attention_site, self.latent.values())
        return {site["name"]: (site["infer"]["prior"], site["fn"]) for site in attention}

    def _pyro_post_sample(self, msg: Any) -> None:
        if not msg["is_observed"]:
            self.latent[msg["name"]] = msg
        self.observed |= msg["is_observed"] and msg["infer"].get("_deterministic") is None


def _problems(loss: Tensor, recorder: _Recorder, trace: Any, svi: bool) -> list[str]:
    problems = []
    if not recorder.observed:
        problems.append("the model observes nothing: no sample site has obs=, so the loss holds no likelihood")
    if not loss.isfinite():
        problems.append(f"the loss is {loss.item()}; normalise the scores or look for extreme observations")
    if not loss.requires_grad:
        problems.append("nothing to train: the loss depends on no parameter that requires a gradient")
    elif svi:
        problems += filter(None, [untrained_parameters(loss, trace=trace)])
    masked = [name for name, (prior, _) in recorder.sites.items() if _masked_fraction(prior) == 1]
    return problems + [f"site '{name}': every entry is masked; in masks True means may attend" for name in masked]


def _masked_fraction(prior: Any) -> float:
    """Fraction of entries that are masked or do not count."""
    if prior.event_shape:
        return 1 - prior.counts.double().mean().item() / prior.event_shape.numel()
    mask = prior.layout.kept  # of an alignment, which is one value
    return 0.0 if mask is None else 1 - mask.double().mean().item()


def _gradient_norms(loss: Tensor | None, scores: dict[str, Any]) -> dict[str, float]:
    """Norm of the loss's gradient at the scores of each site that has one."""
    wanted = {name: tensor for name, tensor in scores.items() if isinstance(tensor, Tensor) and tensor.requires_grad}
    if loss is None or not loss.requires_grad or not wanted:
        return {}
    found = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
    return {name: each.norm().item() for name, each in zip(wanted, found, strict=True) if each is not None}
