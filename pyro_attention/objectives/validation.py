"""Checks of a model: by check_model before training, and by the objectives while they train."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable
from weakref import WeakKeyDictionary, WeakSet

import pyro
from pyro import poutine
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.infer.util import is_validation_enabled
from pyro.poutine.guide import GuideMessenger
from pyro.poutine.messenger import Messenger
from pyro.util import check_model_guide_match, check_site_shape
from torch import Tensor, nn

from pyro_attention._compat import check_mean_field_requirement, handlers_around
from pyro_attention._typing import Message, Model, Trace
from pyro_attention.families.distribution import AttentionDistribution
from pyro_attention.guide import (
    AttentionGuide,
    check_guide,
    first_match,
    is_attention_site,
    is_deterministic,
    keeps_prior,
    plates_of,
)
from pyro_attention.objectives.learned_widths import WidthWarning, collapsing_widths
from pyro_attention.objectives.reached_parameters import leaves_of

if TYPE_CHECKING:
    from pyro_attention.objectives.elbo import DifferentiableELBO

__all__ = [
    "KLWarning",
    "PriorWarning",
    "Recorder",
    "check_run",
    "check_step",
    "heavy_kl",
    "masked_fraction",
    "problems_of_pass",
    "sites_at_prior",
    "untrained_parameters",
    "watch_evaluation",
]


class KLWarning(UserWarning):
    """Warning of a KL weight that may ruin a training."""


class PriorWarning(UserWarning):
    """Warning of a latent site that is drawn from its prior though ``keep_prior`` does not name it."""


@runtime_checkable
class _WithKL(Protocol):
    """An objective with a weighted KL, as :class:`AttentionELBO` has."""

    kl_record: dict[str, Tensor]
    kl_weight: float | Callable[[int], float]
    step: int
    _terms: Mapping[str, Tensor]  # log likelihoods at the observed sites

    def current_kl_weight(self) -> float: ...


class Recorder(poutine.messenger.Messenger):
    """Handler around a guide that records every latent site, with prior and posterior of attention sites."""

    def __init__(self) -> None:
        super().__init__()
        self.latent: dict[str, Message] = {}  # messages of latent sites, which the guide completes later
        self.observed = False

    @property
    def sites(self) -> dict[str, tuple[AttentionDistribution, TorchDistributionMixin]]:
        """Prior and posterior of every attention site, by name."""
        attention = filter(is_attention_site, self.latent.values())
        return {site["name"]: (site["infer"]["prior"], site["fn"]) for site in attention}

    def _pyro_post_sample(self, msg: Message) -> None:
        # alignments over edges that are summed out are observed, too, as any of the edges
        attention = isinstance(msg["fn"], AttentionDistribution)
        if attention or not msg["is_observed"]:
            self.latent[msg["name"]] = msg
        self.observed |= msg["is_observed"] and not attention and not is_deterministic(msg)


def problems_of_pass(loss: Tensor, recorder: Recorder) -> list[str]:
    """Describe problems of a loss and of its sites: no observation, no gradient, no number, or all entries masked."""
    problems = []
    if not recorder.observed:
        problems.append("the model observes nothing: no sample site has obs=, so the loss holds no likelihood")
    if not loss.isfinite():
        problems.append(f"the loss is {loss.item()}; normalize the scores or look for extreme observations")
    if not loss.requires_grad:
        problems.append("nothing to train: the loss depends on no parameter that requires a gradient")
    masked = [name for name, (prior, _) in recorder.sites.items() if masked_fraction(prior) == 1]
    return problems + [f"site '{name}': every entry is masked; in masks True means may attend" for name in masked]


def masked_fraction(prior: AttentionDistribution) -> float:
    """Return the fraction of entries that are masked or do not count."""
    if prior.event_shape:
        return float(1 - prior.counts.double().mean() / prior.event_shape.numel())
    mask = prior.layout.counted_entries  # of an alignment, which is one value
    return 0.0 if mask is None else float(1 - mask.double().mean())


def sites_at_prior(guide: Model, sites: Iterable[Message]) -> str | None:
    """Describe the latent sites that keep their prior though the guide does not say so; None when there are none."""
    # what is enumerated is summed out
    at_prior = [s["name"] for s in sites if keeps_prior(s) and "_enumerate_dim" not in s["infer"]]
    messenger = check_guide(guide)
    unintended = [name for name in at_prior if not messenger.keeps_prior(name)]
    if not unintended:
        return None
    return (
        f"latent sites without a posterior are drawn from their prior: {', '.join(map(repr, unintended))}; give the "
        f"guide one ({{..., '{unintended[0]}': AutoNormalMessenger(model)}}), observe them, or pass "
        f"keep_prior={unintended}"
    )


def heavy_kl(elbo: _WithKL, loss: float) -> str | None:
    """Describe a KL of the last evaluation that outweighs the rest of its loss; None when it does not."""
    weight = elbo.current_kl_weight()
    kl = weight * sum(float(kl) for kl in elbo.kl_record.values())
    data = abs(loss - kl)
    if not data < kl < float("inf"):
        return None
    if not elbo._terms:
        return (
            "the loss holds the KL alone: no site was observed in this evaluation, so the weights become those of "
            "their prior; pass the observations, such as loss(x, y=y)"
        )
    return (
        f"the KL outweighs the data: {kl:.4g} nats with kl_weight {weight:.3g}, against {data:.4g} of the data; where "
        f"the prior is not meant to decide, choose a smaller weight, such as kl_weight="
        f"{weight * max(data / kl, 1e-6) / 30:.1g}"
    )


def untrained_parameters(loss: Tensor, *modules: object, trace: Trace | None = None) -> str | None:
    """Describe parameters of a loss that nothing trains; None when there are none.

    They belong to no module and are no param site of the trace. Without a module SVI is to train the parameters, else
    an optimizer of those of the modules.
    """
    known = [] if trace is None else [trace.nodes[name]["value"].unconstrained() for name in trace.param_nodes]
    known += [parameter for module in modules if isinstance(module, nn.Module) for parameter in module.parameters()]
    ids = set(map(id, known))
    # an input may need a gradient, too
    parameters = [leaf for leaf in leaves_of(loss) if isinstance(leaf, nn.Parameter)]
    shapes = [str(tuple(parameter.shape)) for parameter in parameters if id(parameter) not in ids]
    if not shapes:
        return None
    seen_as = "belong to no module of the loss" if modules else "are no param sites, so SVI would not train them"
    return (
        f"{len(shapes)} of {len(parameters)} parameters (shapes {', '.join(shapes[:5])}) need gradients but {seen_as}; "
        f"make the model a PyroModule that holds its layers, as plain modules where some are frozen, or call "
        f"pyro.module('net', net) in it; call "
        f"pyro.clear_param_store() first where another model was trained in this process (their names clash); or give "
        f"elbo.differentiable_loss(model, guide, ...) an optimizer of your own choice of parameters"
    )


# While an objective trains

_FIRST, _EVERY = 10, 100  # values are looked at in the first evaluations of a guide, and then in one of so many
# the guide of an objective's last evaluation, by its id, and the number of evaluations with it
_EVALUATED: WeakKeyDictionary[DifferentiableELBO, tuple[int, int]] = WeakKeyDictionary()
_COMPLETE: WeakSet[nn.Module] = WeakSet()  # losses whose first step has shown that nothing is missing
_WEIGHED: WeakSet[DifferentiableELBO] = WeakSet()  # objectives whose KL was compared with the data
# the last ``step`` of an objective, and the number of training steps that it stayed the same
_STEPS: WeakKeyDictionary[DifferentiableELBO, tuple[int, int]] = WeakKeyDictionary()


def watch_evaluation(elbo: DifferentiableELBO, model: Model, guide: Model, evaluate: Callable[[], Tensor]) -> Tensor:
    """Evaluate an objective; while Pyro validates, its value has to be finite.

    All other values, such as parameters and observations, are validated in the first evaluations and now and then, as
    each look at one waits for the device.
    """
    _check_model_of_guide(model, guide)
    key, validates = id(poutine.unwrap(guide)), is_validation_enabled()
    last_key, count = _EVALUATED.get(elbo, (key, 0))
    count = count + 1 if last_key == key else 1
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


def _check_model_of_guide(model: Model, guide: Model) -> None:
    """Raise when a guide that is a handler stands over another model, or where the model should be."""
    if isinstance(poutine.unwrap(model), GuideMessenger):
        raise TypeError("the guide is the first argument, expected the model: elbo(model, guide)")
    messenger: object = poutine.unwrap(guide)
    if not isinstance(messenger, GuideMessenger):
        return
    if poutine.unwrap(model) != poutine.unwrap(messenger.model):
        raise ValueError("the model is not that of the guide, which runs its model itself; pass guide.model")
    _check_handlers_of_model(model, guide, messenger)


def _check_handlers_of_model(model: Model, guide: Model, messenger: GuideMessenger) -> None:
    """Raise ValueError for handlers around the model alone, without which the guide runs it."""
    kinds = {type(handler) for handler in [*handlers_around(guide), *handlers_around(messenger.model)]}
    for handler in handlers_around(model):
        if isinstance(handler, Messenger) and type(handler) not in kinds:  # a partial function has its arguments there
            raise ValueError(
                f"{type(handler).__name__} stands around the model that the objective was given, but the guide runs "
                f"its model itself, without it; put it around the guide, elbo(model, handler(guide)), or inside the "
                f"model"
            )


def check_run(elbo: DifferentiableELBO, guide: Model, model_trace: Trace, guide_trace: Trace) -> None:
    """Look at the sites of a run, where Pyro validates: raise ValueError, or warn."""
    messenger: object = poutine.unwrap(guide)
    if not is_validation_enabled():
        return
    if isinstance(messenger, AttentionGuide):
        sites = {**model_trace.nodes, **guide_trace.nodes}
        _check_patterns(messenger, sites)
        for site in filter(is_attention_site, sites.values()):
            _check_plates(site)
        drawn = [site for site in guide_trace.nodes.values() if site["type"] == "sample"]
        for problem, category in (
            (sites_at_prior(guide, drawn), PriorWarning),
            (collapsing_widths(elbo, drawn), WidthWarning),
        ):
            if problem is not None:
                warnings.warn(problem, category, stacklevel=2)
    kl = getattr(elbo, "kl", None)
    if kl is not None:  # an AttentionELBO; Pyro looks at the sites of the others itself
        if kl == "closed_form" and not isinstance(messenger, GuideMessenger):
            check_mean_field_requirement(model_trace, guide_trace)
        check_model_guide_match(model_trace, guide_trace, elbo.max_plate_nesting)
        for name in model_trace.observation_nodes:
            check_site_shape(model_trace.nodes[name], elbo.max_plate_nesting)


def _check_patterns(guide: AttentionGuide, sites: Mapping[str, Message]) -> None:
    """Raise ValueError when a pattern matches no site of the model."""
    known = {name: is_attention_site(site) for name, site in sites.items() if site["type"] == "sample"}
    matched = {
        first_match(name, guide.patterns if is_attention else guide.other_patterns)
        for name, is_attention in known.items()
    }
    unused = [repr(pattern) for pattern in guide.patterns + guide.other_patterns if pattern not in matched]
    if unused:
        names = ", ".join(repr(name) for name, is_attention in known.items() if is_attention)
        names = names or "none; route its attention through LatentAttention"
        raise ValueError(f"no site matches {', '.join(unused)}; the model's attention sites: {names}")


def _check_plates(site: Message) -> None:
    """Raise ValueError where a batch dimension has no plate, or a plate repeats a site because heads were forgotten."""
    dims_of_plates = {frame.dim for frame in site["cond_indep_stack"] if frame.vectorized}
    dims_of_plates.update(site["infer"].get("_dim_to_id", ()))  # of what is enumerated
    shape = tuple(site["fn"].batch_shape)
    layout = site["infer"]["prior"].layout
    scores_shape = site["infer"]["call"].shape
    batch = tuple(scores_shape[: len(scores_shape) - layout.event_dim])
    missing = [dim for dim in range(-len(shape), 0) if shape[dim] > 1 and dim not in dims_of_plates]
    for dim in missing:
        _check_items_stand_in_plate(site, dim, batch)
    if missing:
        raise ValueError(
            f"site '{site['name']}': batch shape {shape} has no plate at dimension {missing[-1]}; wrap the call, "
            f"for example `with pyro.plate('data', {shape[missing[-1]]}, dim={missing[-1]}):`"
        )
    for name, frame in plates_of(site).items():
        if frame.size > 1 and -frame.dim > len(batch) and name != "num_particles_vectorized":
            raise ValueError(
                f"site '{site['name']}': its scores have no dimension for plate '{name}' of size {frame.size}; add "
                f"that of the heads to scores, values and keys (.unsqueeze({layout.head_dim})), or, if all of the "
                f"plate share their scores, one of size 1 at the left (.unsqueeze(0))"
            )


def _check_items_stand_in_plate(site: Message, dim: int, batch: tuple[int, ...]) -> None:
    """Raise ValueError where the items of a plate stand at a dimension beside it, whose size is one at the plate.

    Args:
        site: Attention site.
        dim: Dimension of the batch without a plate.
        batch: Shape of the batch of the scores.
    """
    size = site["fn"].batch_shape[dim]
    for name, frame in plates_of(site).items():
        size_at_plate = batch[frame.dim] if -frame.dim <= len(batch) else 1
        if frame.size == size and size_at_plate == 1:
            raise ValueError(
                f"site '{site['name']}': the {frame.size} items of plate '{name}' at dimension {frame.dim} stand at "
                f"dimension {dim} of the batch {batch}, so that every item would meet every other; remove the "
                f"dimension of size 1 from the inputs of the layer (.squeeze), or open the plate with dim={dim}"
            )


def check_step(elbo: DifferentiableELBO, loss: Tensor, modules: Sequence[nn.Module], trace: Trace | None) -> None:
    """Look at a training step, before its backward pass.

    Args:
        elbo: The objective.
        loss: The loss.
        modules: Modules that an optimizer of the caller trains, or none.
        trace: Param sites that SVI trains, or None.
    """
    _check_parameters(loss, modules, trace)
    _watch_kl(elbo, loss)


def _check_parameters(loss: Tensor, modules: Sequence[nn.Module], trace: Trace | None) -> None:
    """Raise ValueError where a parameter would not train; stock Pyro skips the backward pass silently."""
    if not loss.requires_grad:
        raise ValueError("nothing to train: the loss depends on no parameter that requires a gradient")
    if is_validation_enabled() and not any(module in _COMPLETE for module in modules):
        problem = untrained_parameters(loss, *modules, trace=trace)
        if problem is not None:
            raise ValueError(problem)
        _COMPLETE.update(modules)


def _watch_kl(elbo: DifferentiableELBO, loss: Tensor) -> None:
    """Warn, once each, of a KL that outweighs the data at the start, and of a schedule whose step does not move."""
    if not isinstance(elbo, _WithKL):
        return
    problem = None
    if elbo.kl_record and elbo not in _WEIGHED:
        _WEIGHED.add(elbo)
        problem = heavy_kl(elbo, loss.item())
    if callable(elbo.kl_weight):
        last_step, count = _STEPS.get(elbo, (elbo.step, 0))
        count = count + 1 if last_step == elbo.step else 1
        _STEPS[elbo] = elbo.step, count
        if count == 100 and elbo.kl_weight(elbo.step + 1) != elbo.kl_weight(elbo.step):
            symptom = "kl_weight is a schedule, and elbo.step was the same in 100 training steps, so it does not change"
            problem = f"{symptom}; set elbo.step in the training loop"
    if problem is not None:
        warnings.warn(problem, KLWarning, stacklevel=2)
