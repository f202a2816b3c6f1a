"""check_model: a training step without an update, reported as a table and a list of problems."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from pyro import poutine
from torch import Tensor

from pyro_attention._typing import Args, Kwargs, Model
from pyro_attention.alignments.enumeration import AlignmentELBO
from pyro_attention.draws import BroadcastWarning, broadcast_notes, forget_replays
from pyro_attention.guide import AttentionGuide
from pyro_attention.objectives.choice import elbo_for
from pyro_attention.objectives.elbo import AttentionELBO
from pyro_attention.objectives.evidence import EvidenceELBO, log_likelihood_at_mean
from pyro_attention.objectives.gap import gap_problem
from pyro_attention.objectives.learned_widths import WidthWarning, collapsing_widths
from pyro_attention.objectives.reached_parameters import frozen_parameters, thawed_parameters, unreached_parameters
from pyro_attention.objectives.validation import (
    PriorWarning,
    Recorder,
    heavy_kl,
    masked_fraction,
    problems_of_pass,
    sites_at_prior,
    untrained_parameters,
)

__all__ = ["ModelReport", "SiteReport", "check_model"]


@dataclass(frozen=True)
class SiteReport:
    """Report on one attention site.

    Attributes:
        name: Site name.
        family: Name of the posterior distribution, such as WeibullWeights.
        prior: Name of the prior distribution.
        batch_shape: Plate dimensions.
        event_shape: (heads, queries, keys) or (edges, heads).
        masked: Fraction of masked entries.
        kl: KL of the site in nats, None where the site has no prior term.
    """

    name: str
    family: str
    prior: str
    batch_shape: tuple[int, ...]
    event_shape: tuple[int, ...]
    masked: float
    kl: float | None


@dataclass(frozen=True)
class ModelReport:
    """Result of :func:`check_model`; prints as a table.

    Attributes:
        sites: One report per attention site, in the order of the model.
        loss: Negative ELBO in nats, None when it could not be computed.
        problems: Problems, each with its remedy.
        notes: Hints on speed: an objective of several draws that makes them one by one.
    """

    sites: tuple[SiteReport, ...]
    loss: float | None
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not self.problems

    def __str__(self) -> str:
        rows = [("site", "family", "prior", "batch", "event", "masked", "KL")]
        for site in self.sites:
            kl = "-" if site.kl is None else f"{site.kl:.4g}"
            shapes = str(site.batch_shape), str(site.event_shape)
            rows.append((site.name, site.family, site.prior, *shapes, f"{site.masked:.1%}", kl))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        lines.append(f"loss {self.loss:.6g}" if self.loss is not None else "loss could not be computed")
        lines += [f"problem: {problem}" for problem in self.problems] or ["no problems found"]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(line.rstrip() for line in lines)


def check_model(
    model: Model,
    guide: AttentionGuide,
    *args: object,
    elbo: AttentionELBO | AlignmentELBO | None = None,
    **kwargs: object,
) -> ModelReport:
    """Run one training step without updating parameters, and report every attention site and every problem found.

    An objective of several draws in a pass, or of enumerated alignments, is compared with single runs
    (:mod:`pyro_attention.draws`). Problems are, among others, a KL that outweighs the data, a guide of another model,
    and parameters that no optimizer would train.

    Args:
        model: The Pyro model.
        guide: Its guide.
        args: Arguments of a training step, observations included.
        elbo: Objective; by default the result of :func:`elbo_for`.
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
    recorder = Recorder()
    loss: Tensor | None = None
    frozen = frozen_parameters(model, guide)
    for owner in (guide, model):
        forget_replays(owner)
    try:
        with torch.enable_grad(), poutine.trace(param_only=True) as tracer, recorder, warnings.catch_warnings():
            for category in (PriorWarning, WidthWarning, BroadcastWarning):  # they are among the problems and notes
                warnings.simplefilter("ignore", category)
            loss = torch.as_tensor(elbo.differentiable_loss(model, guide, *args, **kwargs))
    except (ValueError, TypeError, RuntimeError, NotImplementedError) as error:
        problems = [f"{type(error).__name__}: {error}"]
    else:
        latent = recorder.latent.values()
        candidates = [
            *problems_of_pass(loss, recorder),
            untrained_parameters(loss, model, guide, trace=tracer.trace),
            heavy_kl(elbo, loss.item()) if isinstance(elbo, AttentionELBO) and recorder.observed else None,
            _wide_gap(elbo, guide, args, kwargs) if isinstance(elbo, EvidenceELBO) and loss.isfinite() else None,
            sites_at_prior(guide, latent),
            collapsing_widths(elbo, latent),
            thawed_parameters(frozen),
            unreached_parameters(loss, model, recorder.sites),
        ]
        problems = [problem for problem in candidates if problem is not None]
    for weight in frozen.values():
        weight.requires_grad_(False)
    sites = _site_reports(recorder, getattr(elbo, "kl_record", {}))
    return ModelReport(sites, None if loss is None else loss.item(), tuple(problems), tuple(broadcast_notes(guide)))


def _wide_gap(elbo: EvidenceELBO, guide: Model, args: Args, kwargs: Kwargs) -> str | None:
    """Describe a gap of the last evaluation that is too large to learn a width; None if it is small enough."""
    assert elbo.bounds is not None
    signal = elbo.bounds.value.mean() - log_likelihood_at_mean(guide, args, kwargs).mean()
    return gap_problem(elbo.bounds.remainder.mean().item(), signal.item(), elbo.num_particles)


def _site_reports(recorder: Recorder, kl: dict[str, Tensor]) -> tuple[SiteReport, ...]:
    """Return a report of every attention site, with its KL where the objective has recorded one."""
    return tuple(
        SiteReport(
            name=name,
            family=type(posterior).__name__,
            prior=type(prior).__name__,
            batch_shape=tuple(prior.batch_shape),
            event_shape=tuple(prior.event_shape),
            masked=masked_fraction(prior),
            kl=kl[name].item() if name in kl else None,
        )
        for name, (prior, posterior) in recorder.sites.items()
    )
