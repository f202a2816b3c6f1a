"""What may be wrong with a model: check_model looks at it before training, and the objectives while they train."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import pyro
import torch
from pyro import poutine
from pyro.infer.trace_mean_field_elbo import _check_mean_field_requirement
from pyro.infer.util import is_validation_enabled
from pyro.poutine.guide import GuideMessenger
from pyro.util import check_model_guide_match, check_site_shape
from torch import Tensor, nn

from pyro_attention.families.distribution import AttentionDistribution
from pyro_attention.guide import AttentionGuide, first_match, is_attention_site, keeps_prior, plates_of
from pyro_attention.objectives.choice import elbo_for
from pyro_attention.objectives.elbo import EVALUATIONS, RUN_CHECKS, STEP_CHECKS, AttentionELBO
from pyro_attention.objectives.enumeration import AlignmentELBO
from pyro_attention.objectives.evidence import EvidenceELBO, log_likelihood_at_mean
from pyro_attention.objectives.gap import gap_problem

__all__ = ["KLWarning", "ModelReport", "PriorWarning", "SiteReport", "check_model"]


class KLWarning(UserWarning):
    """The KL weight is one that may ruin a training."""


class PriorWarning(UserWarning):
    """A latent site is drawn from its prior, and nobody said that it should be."""


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
        rows = [("site", "family", "prior", "batch", "event", "masked", "KL")]
        for site in self.sites:
            kl = "-" if site.kl is None else f"{site.kl:.4g}"
            shapes = str(site.batch_shape), str(site.event_shape)
            rows.append((site.name, site.family, site.prior, *shapes, f"{site.masked:.1%}", kl))
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
    problems = []
    loss: Tensor | None = None
    try:
        with torch.enable_grad(), poutine.trace(param_only=True) as tracer, recorder, warnings.catch_warnings():
            warnings.simplefilter("ignore", PriorWarning)  # it is among the problems
            loss = torch.as_tensor(elbo.differentiable_loss(model, guide, *args, **kwargs))
    except (ValueError, TypeError, RuntimeError, NotImplementedError) as error:
        problems.append(f"{type(error).__name__}: {error}")
    else:
        problems += _problems(loss, recorder)
        problems += filter(None, [_untrained_parameters(loss, model, guide, trace=tracer.trace)])
        if isinstance(elbo, AttentionELBO) and recorder.observed:
            problems += filter(None, [_heavy_kl(elbo, loss.item())])
        if isinstance(elbo, EvidenceELBO) and loss.isfinite():
            problems += filter(None, [_wide_gap(elbo, model, args, kwargs)])
        problems += filter(None, [_sites_at_prior(guide, recorder.latent.values())])
    sites = _site_reports(recorder, getattr(elbo, "kl_record", {}))
    return ModelReport(sites, None if loss is None else loss.item(), tuple(problems))


def _site_reports(recorder: _Recorder, kl: dict[str, Tensor]) -> tuple[SiteReport, ...]:
    return tuple(
        SiteReport(
            name=name,
            family=type(posterior).__name__,
            prior=type(prior).__name__,
            batch_shape=tuple(prior.batch_shape),
            event_shape=tuple(prior.event_shape),
            masked=_masked_fraction(prior),
            kl=kl[name].item() if name in kl else None,
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
        # alignments over edges that are summed out are observed, too, as any of the edges
        attention = isinstance(msg["fn"], AttentionDistribution)
        if attention or not msg["is_observed"]:
            self.latent[msg["name"]] = msg
        self.observed |= msg["is_observed"] and not attention and msg["infer"].get("_deterministic") is None


def _problems(loss: Tensor, recorder: _Recorder) -> list[str]:
    problems = []
    if not recorder.observed:
        problems.append("the model observes nothing: no sample site has obs=, so the loss holds no likelihood")
    if not loss.isfinite():
        problems.append(f"the loss is {loss.item()}; normalise the scores or look for extreme observations")
    if not loss.requires_grad:
        problems.append("nothing to train: the loss depends on no parameter that requires a gradient")
    masked = [name for name, (prior, _) in recorder.sites.items() if _masked_fraction(prior) == 1]
    return problems + [f"site '{name}': every entry is masked; in masks True means may attend" for name in masked]


def _masked_fraction(prior: Any) -> float:
    """Fraction of entries that are masked or do not count."""
    if prior.event_shape:
        return float(1 - prior.counts.double().mean() / prior.event_shape.numel())
    mask = prior.layout.kept  # of an alignment, which is one value
    return 0.0 if mask is None else float(1 - mask.double().mean())


def _sites_at_prior(guide: Any, sites: Iterable[Any]) -> str | None:
    """What is to be said of latent sites that keep their prior without having been told to; None when none does."""
    # what is enumerated is summed out
    at_prior = [s["name"] for s in sites if keeps_prior(s) and "_enumerate_dim" not in s["infer"]]
    messenger: Any = poutine.unwrap(guide)
    kept = [name for name in at_prior if not messenger.keeps_prior(name)]
    if not kept:
        return None
    return (
        f"latent sites without a posterior are drawn from their prior: {', '.join(map(repr, kept))}; give the "
        f"guide one ({{..., '{kept[0]}': AutoNormalMessenger(model)}}), observe them, or say that they keep it "
        f"(keep_prior={kept})"
    )


def _heavy_kl(elbo: AttentionELBO, loss: float) -> str | None:
    """What is to be said when the KL of the last evaluation outweighs the rest of its loss; None when not."""
    weight = elbo.current_kl_weight()
    kl = weight * sum(float(kl) for kl in elbo.kl_record.values())
    data = abs(loss - kl)
    if not data < kl < float("inf"):
        return None
    return (
        f"the KL outweighs the data: {kl:.4g} nats with kl_weight {weight:.3g}, against {data:.4g} of the data; where "
        f"the prior is not meant to decide, choose a smaller weight, such as kl_weight="
        f"{weight * max(data / kl, 1e-6) / 30:.1g}"
    )


def _wide_gap(elbo: EvidenceELBO, model: Any, args: Any, kwargs: Any) -> str | None:
    """What is to be said when the draws of the last evaluation are too few to learn a width; None when not."""
    assert elbo.bounds is not None
    signal = elbo.bounds.value.mean() - log_likelihood_at_mean(model, args, kwargs).mean()
    return gap_problem(elbo.bounds.remainder.mean().item(), signal.item(), elbo.num_particles)


def _untrained_parameters(loss: Tensor, *modules: Any, trace: Any = None) -> str | None:
    """What is wrong when a loss depends on parameters of no module, and no param site of a trace; None when nothing is.

    Without a module SVI is to train the parameters, else an optimiser of those of the modules.
    """
    known = [] if trace is None else [trace.nodes[name]["value"].unconstrained() for name in trace.param_nodes]
    known += [parameter for each in modules if isinstance(each, nn.Module) for parameter in each.parameters()]
    ids, leaves, seen, stack = set(map(id, known)), [], set(), [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node is not None and node not in seen:
            seen.add(node)
            stack += [parent for parent, _ in node.next_functions]
            leaves.append(getattr(node, "variable", None))
    found = [leaf for leaf in leaves if isinstance(leaf, nn.Parameter)]  # an input may need a gradient, too
    shapes = [str(tuple(parameter.shape)) for parameter in found if id(parameter) not in ids]
    if not shapes:
        return None
    seen_as = "belong to no module of the loss" if modules else "are no param sites, so SVI would not train them"
    return (
        f"{len(shapes)} of {len(found)} parameters (shapes {', '.join(shapes[:5])}) need gradients but {seen_as}; make "
        f"the model a PyroModule that holds its layers, or call pyro.module('net', net) in it; call "
        f"pyro.clear_param_store() first where another model was trained in this process (their names clash); or give "
        f"elbo.differentiable_loss(model, guide, ...) an optimiser of your own choice of parameters"
    )


# While an objective trains

_FIRST, _EVERY = 10, 100  # values are looked at in the first evaluations of a guide, and then in one of so many
_EVALUATED: WeakKeyDictionary[Any, tuple[int, int]] = WeakKeyDictionary()  # of objectives: the guide, and how often
_COMPLETE: WeakSet[nn.Module] = WeakSet()  # losses whose first step has shown that nothing is missing
_WEIGHED: WeakSet[Any] = WeakSet()  # objectives whose KL was compared with the data
_STEPS: WeakKeyDictionary[Any, tuple[int, int]] = WeakKeyDictionary()  # of objectives: the step, and its training steps


def _watch(elbo: Any, model: Any, guide: Any, evaluate: Callable[[], Tensor]) -> Tensor:
    """Evaluate an objective; while Pyro validates, its value has to be finite.

    All other values, such as parameters and observations, are validated in the first evaluations and now and then, as
    each look at one waits for the device.
    """
    _check_model_of_guide(model, guide)
    key, validates = id(poutine.unwrap(guide)), is_validation_enabled()
    seen, count = _EVALUATED.get(elbo, (key, 0))
    count = count + 1 if seen == key else 1
    _EVALUATED[elbo] = key, count
    with pyro.validation_enabled(validates and (count <= _FIRST or count % _EVERY == 0)):
        loss = evaluate()
    if validates and not loss.isfinite():
        kl = {name: float(kl) for name, kl in getattr(elbo, "kl_record", {}).items()}
        data = {name: term.item() for name, term in elbo._terms.items()}
        raise ValueError(
            f"the ELBO is {-loss.item()} (KL per site: {kl}; log likelihood per site: {data}); look for NaN or "
            f"impossible values in the observed data, for a learning rate too large, or for raw scores near 89, whose "
            f"KL overflows (normalize_scores=True)"
        )
    return loss


def _check_model_of_guide(model: Any, guide: Any) -> None:
    """Raise ValueError when a guide that is a handler stands over another model."""
    messenger: Any = poutine.unwrap(guide)
    if isinstance(messenger, GuideMessenger) and poutine.unwrap(model) != poutine.unwrap(messenger.model):
        raise ValueError("the model is not that of the guide, which runs its own one; pass guide.model")


def _check_run(elbo: Any, guide: Any, model_trace: Any, guide_trace: Any) -> None:
    """Look at the sites of a run, where Pyro validates."""
    messenger: Any = poutine.unwrap(guide)
    if not is_validation_enabled():
        return
    if isinstance(messenger, AttentionGuide):
        sites = {**model_trace.nodes, **guide_trace.nodes}
        _check_patterns(messenger, sites)
        for site in filter(is_attention_site, sites.values()):
            _check_plates(site)
        problem = _sites_at_prior(guide, [site for site in guide_trace.nodes.values() if site["type"] == "sample"])
        if problem is not None:
            warnings.warn(problem, PriorWarning, stacklevel=2)
    if isinstance(elbo, AttentionELBO):
        if elbo.kl == "closed_form" and not isinstance(messenger, GuideMessenger):
            _check_mean_field_requirement(model_trace, guide_trace)
        check_model_guide_match(model_trace, guide_trace, elbo.max_plate_nesting)
        for name in model_trace.observation_nodes:
            check_site_shape(model_trace.nodes[name], elbo.max_plate_nesting)


def _check_patterns(guide: Any, sites: dict[str, Any]) -> None:
    """Raise ValueError when a pattern matches no site of the model."""
    known = {name: is_attention_site(site) for name, site in sites.items() if site["type"] == "sample"}
    matched = {first_match(name, guide.patterns if own else guide.other_patterns) for name, own in known.items()}
    unused = [repr(pattern) for pattern in guide.patterns + guide.other_patterns if pattern not in matched]
    if unused:
        names = ", ".join(repr(name) for name, own in known.items() if own)
        names = names or "none; route its attention through LatentAttention"
        raise ValueError(f"no site matches {', '.join(unused)}; the model's attention sites: {names}")


def _check_plates(site: Any) -> None:
    """Raise ValueError where a batch dimension has no plate, or a plate repeats a site because heads were forgotten."""
    plated = {frame.dim for frame in site["cond_indep_stack"] if frame.vectorized}
    plated.update(site["infer"].get("_dim_to_id", ()))
    shape = tuple(site["fn"].batch_shape)
    missing = [dim for dim in range(-len(shape), 0) if shape[dim] > 1 and dim not in plated]
    if missing:
        raise ValueError(
            f"site '{site['name']}': batch shape {shape} has no plate at dimension {missing[-1]}; wrap the call, "
            f"for example `with pyro.plate('data', {shape[missing[-1]]}, dim={missing[-1]}):`"
        )
    prior = site["infer"]["prior"]
    dims, head_dim = prior.scores.dim() - prior.layout.event_dim, prior.layout.head_dim
    for name, frame in plates_of(site).items():
        if frame.size > 1 and -frame.dim > dims and name != "num_particles_vectorized":
            raise ValueError(
                f"site '{site['name']}': its scores have no dimension for plate '{name}' of size {frame.size}; add "
                f"that of the heads to scores, values and keys (.unsqueeze({head_dim})), or, if all of the plate share "
                f"their scores, one of size 1 at the left (.unsqueeze(0))"
            )


def _check_parameters(_: Any, loss: Tensor, modules: Sequence[Any], trace: Any) -> None:
    """Raise ValueError where a parameter would not train; stock Pyro skips the backward pass silently."""
    if not loss.requires_grad:
        raise ValueError("nothing to train: the loss depends on no parameter that requires a gradient")
    if is_validation_enabled() and not any(module in _COMPLETE for module in modules):
        problem = _untrained_parameters(loss, *modules, trace=trace)
        if problem is not None:
            raise ValueError(problem)
        _COMPLETE.update(modules)


def _watch_kl(elbo: Any, loss: Tensor, *_: Any) -> None:
    """Warn, once each, of a KL that outweighs the data at the start, and of a schedule whose step does not move."""
    problem = None
    if getattr(elbo, "kl_record", None) and elbo not in _WEIGHED:
        _WEIGHED.add(elbo)
        problem = _heavy_kl(elbo, loss.item())
    if callable(getattr(elbo, "kl_weight", None)):
        step, count = _STEPS.get(elbo, (elbo.step, 0))
        _STEPS[elbo] = elbo.step, count + 1 if step == elbo.step else 1
        if _STEPS[elbo][1] == 100 and elbo.kl_weight(elbo.step + 1) != elbo.kl_weight(elbo.step):
            seen = "kl_weight is a schedule, and elbo.step was the same in 100 training steps, so it does not change"
            problem = f"{seen}; set elbo.step in the training loop"
    if problem is not None:
        warnings.warn(problem, KLWarning, stacklevel=2)


EVALUATIONS.append(_watch)
RUN_CHECKS.append(_check_run)
STEP_CHECKS.extend([_check_parameters, _watch_kl])
