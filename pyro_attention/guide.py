"""AttentionGuide: the effect handler that replaces priors of attention sites by posteriors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from pyro import poutine
from pyro.infer.autoguide.effect import AutoMessenger
from pyro.nn.module import PyroModule, pyro_method
from pyro.poutine import runtime
from pyro.poutine.do_messenger import DoMessenger
from pyro.poutine.messenger import Messenger
from pyro.poutine.reparam_messenger import ReparamMessenger
from pyro.poutine.trace_messenger import TraceMessenger
from pyro.poutine.trace_struct import Trace
from pyro.poutine.util import prune_subsample_sites, site_is_subsample
from torch import nn

from pyro_attention._checks import check_kind
from pyro_attention.attention import name_model_sites
from pyro_attention.families.base import Family
from pyro_attention.families.distribution import AttentionDistribution

__all__ = [
    "AttentionGuide",
    "GuideRun",
    "check_guide",
    "forget_run",
    "is_attention_site",
    "keeps_prior",
    "ran",
    "run_guide",
]


@dataclass(frozen=True)
class GuideRun:
    """One run of an :class:`AttentionGuide`.

    Attributes:
        output: What the model returned.
        trace: Pyro's trace of the model's sites. At a latent site ``fn`` is the posterior, ``infer["prior"]`` the prior
            and ``infer["family"]`` the family, which is None where the site keeps its prior.
    """

    output: Any
    trace: Trace


class AttentionGuide(AutoMessenger):  # type: ignore[metaclass]
    """A guide over the same model: at each attention site it replaces the prior by a posterior family.

    It runs the model once and yields both traces, so Pyro's ELBOs need one forward pass. The posterior of a site
    depends on the inputs and on weights sampled at earlier sites, through the scores there, but not on the
    observations, unless by :class:`Amortised`.

    Handlers belong around the guide or inside the model, ``poutine.do`` and ``poutine.reparam`` inside; around the
    ``model`` argument of an ELBO they are ignored, as for every messenger guide. A trace of the guide holds the
    observations, too; for Pyro's ``Importance`` hide them by ``poutine.block(guide, hide_fn=lambda site:
    site["is_observed"])``.

    Args:
        model: A Pyro model: any callable that reaches LatentAttention. Sites of the layers of a module are called after
            their paths, unless they have a name (:func:`name_sites`).
        families: One family for all attention sites, or a dict from site-name patterns (as in ``fnmatch``:
            ``"encoder.*"``) to families; the first matching pattern counts.
        rest: Guide of the other latent sites, which runs first, and whose values the model takes: any Pyro guide,
            called with the arguments of the model, or a class such as ``AutoNormal`` (or a ``functools.partial`` of
            one), called with the model, in which attention sites, observations and ``keep_prior`` are hidden.
        keep_prior: Names or patterns of latent sites that are meant to be drawn from their prior; of others without a
            posterior the objectives warn.

    Raises:
        TypeError: A family is no :class:`Family`, ``rest`` cannot be called, or ``keep_prior`` is a string.
        ValueError: No patterns at all; at a call: a site no pattern matches, a pattern that matches no site, a family
            of another kind than the prior, a site of ``rest`` that is observed, an attention site or unknown in the
            model, two calls of attention under one name, or ``poutine.do`` or ``poutine.reparam`` around the guide.

    Example:
        >>> import pyro, torch
        >>> from pyro.distributions import Normal
        >>> from pyro.infer.autoguide import AutoNormal
        >>> from pyro_attention import FixedGammaPrior, LatentAttention, LogNormal
        >>> attention = LatentAttention("attention", FixedGammaPrior())
        >>> def model(scores, values):
        ...     shift = pyro.sample("shift", Normal(0.0, 1.0))
        ...     return attention(scores, values + shift).context
        >>> guide = AttentionGuide(model, {"attention": LogNormal(scale=0.5)}, rest=AutoNormal)
        >>> sorted(guide(torch.zeros(1, 2, 2), torch.ones(1, 2, 3)))
        ['attention', 'shift']
    """

    _drawn = Trace()  # of rest, in the run at hand
    _output: Any = None  # of the model

    def __init__(
        self,
        model: Callable[..., Any],
        families: Family | Mapping[str, Family],
        *,
        rest: Callable[..., Any] | None = None,
        keep_prior: Collection[str] = (),
    ) -> None:
        super().__init__(model)
        patterns = dict(families) if isinstance(families, Mapping) else {"*": families}
        if not patterns:
            raise ValueError("families is empty, expected a family or a dict from site-name patterns to families")
        for pattern, family in patterns.items():
            check_kind(f"families['{pattern}']", family, Family, "Weibull(concentration=10.0)")
        self.patterns = tuple(patterns)
        # module names may not contain the dots that patterns do
        self.families = nn.ModuleList(patterns.values())
        if isinstance(keep_prior, str):
            raise TypeError(f"keep_prior is the string '{keep_prior}', expected names in a list: ['{keep_prior}']")
        self.keep_prior = tuple(keep_prior)
        name_model_sites(model)
        if not (rest is None or callable(rest)):
            raise TypeError(f"rest is {rest!r}, expected a guide, or a class of guides such as AutoNormal")
        if isinstance(getattr(rest, "func", rest), type):

            def without_output(*args: Any, **kwargs: Any) -> None:  # which an autoguide would keep, with its graph
                model(*args, **kwargs)

            rest = rest(poutine.block(_Soft()(without_output), self._hidden_from_rest))  # type: ignore[misc]
        self.rest: Callable[..., Any] | None = rest

    @pyro_method
    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """Run the model once under the posterior; returns the value of every sample site of the model."""
        for handler in runtime._PYRO_STACK:
            if isinstance(handler, DoMessenger | ReparamMessenger):
                name = "do" if isinstance(handler, DoMessenger) else "reparam"
                seen = f"poutine.{name} stands around the guide, which has no posterior for the sites that it makes"
                raise ValueError(f"{seen}, expected it inside: AttentionGuide(poutine.{name}(model, ...), families)")
        name_model_sites(self.model)
        self._drawn = Trace() if self.rest is None else poutine.trace(self.rest).get_trace(*args, **kwargs)
        dims = [(site.get("infer") or {}).get("_enumerate_dim") for site in self._drawn.nodes.values()]
        for dim in filter(None, dims):  # steps of a Markov chain share them, and would leave them to the model
            allocator = runtime._ENUM_ALLOCATOR
            allocator.next_available_dim = min(allocator.next_available_dim, dim - 1)
        self.args_kwargs, self._outer_plates = (args, kwargs), tuple(frame.name for frame in runtime.get_plates())
        try:
            with self:
                self._output = self.model(*args, **kwargs)
        finally:
            del self.args_kwargs, self._outer_plates
        self._check_sites()
        nodes = prune_subsample_sites(self.trace).nodes
        return {name: site["value"] for name, site in nodes.items() if site["type"] == "sample"}

    def run(self, *args: Any, **kwargs: Any) -> GuideRun:
        """Run the model once under the posterior, with the errors of a call; the guide itself keeps nothing of it."""
        return run_guide(self, *args, **kwargs)

    def family(self, name: str) -> Family:
        """The family of an attention site; ValueError when no pattern matches its name."""
        pattern = self._pattern(name)
        if pattern is None:
            patterns = ", ".join(map(repr, self.patterns))
            raise ValueError(f"attention site '{name}' matches none of the patterns {patterns}; add one")
        return self.families[self.patterns.index(pattern)]  # type: ignore[return-value]

    def keeps_prior(self, name: str) -> bool:
        """Whether a latent site is meant to be drawn from its prior."""
        return any(fnmatchcase(name, pattern) for pattern in self.keep_prior)

    def get_posterior(self, name: str, prior: Any) -> Any:
        """Posterior of a site: its family's for attention sites, the prior itself elsewhere."""
        if not isinstance(prior, AttentionDistribution):
            return prior
        family = self.family(name)
        family.check_fits(prior, site=name)
        args, kwargs = self.args_kwargs
        return family.posterior(prior, *args, **kwargs)

    def get_traces(self) -> tuple[Any, Any]:
        """Traces of the model and of the guide after a call; sites that are summed out are in the model's alone."""
        model_trace, found = super().get_traces()
        guide_trace = prune_subsample_sites(self._drawn)  # rest comes first, in its own order
        for name, site in found.nodes.items():
            infer = site["infer"] or {}
            family = infer.get("family", site)
            summed_out = getattr(family, "is_marginal", False) or (family is None and "_enumerate_dim" in infer)
            if name not in guide_trace and not summed_out:
                guide_trace.add_node(name, **site)
        return model_trace, guide_trace

    def _pyro_sample(self, msg: Any) -> None:
        msg["_infer"] = msg["infer"]  # poutine.replay around the guide puts that of another run in its place
        drawn = self._drawn_site(msg)
        if drawn is not None:
            _check_drawn(msg, drawn)
            msg["value"] = drawn["value"]
            # where rest enumerates, these are all values; they lie along its dimensions, and need no others
            msg["infer"].pop("enumerate", None)
            msg["infer"]["_dim_to_id"] = dict(drawn["infer"].get("_dim_to_id", ()))
            for infer in (msg["infer"], drawn["infer"]):  # poutine.replay puts the second in the place of the first
                # handlers outside the guide have traced it when rest drew it
                infer.update(_do_not_trace=True, is_auxiliary=True)
            return
        super()._pyro_sample(msg)
        if msg["is_observed"] or site_is_subsample(msg):
            return
        if not is_attention_site(msg):
            if msg["fn"] is msg["infer"]["prior"]:
                # a plate outside the guide (vectorised particles) makes prior and posterior two objects
                msg["infer"]["family"] = None
            return
        if msg["name"] in self.trace:
            raise ValueError(
                f"attention site '{msg['name']}' is there twice in one run; give each layer its own name=, or call "
                f"name_sites(net); call a layer that is used again in `with pyro.contrib.autoname.scope(prefix=...):`"
            )
        _check_repetition(msg)
        family = self.family(msg["name"])
        msg["infer"].update(family.infer, family=family)

    def _pyro_post_sample(self, msg: Any) -> None:
        msg["infer"] = infer = msg.pop("_infer")
        drawn = self._drawn_site(msg)
        if drawn is not None:
            for each in (infer, drawn["infer"]):
                del each["_do_not_trace"], each["is_auxiliary"]
            if not site_is_subsample(msg):
                infer["prior"], msg["fn"] = msg["fn"], drawn["fn"]
            TraceMessenger._pyro_post_sample(self, msg)
            return
        # only now have the handlers around the guide said whether the site is observed: its prior scores it then
        if msg["is_observed"] and "prior" in infer:
            msg["fn"] = infer["prior"].expand(msg["fn"].batch_shape)
        elif not site_is_subsample(msg) and (not msg["is_observed"] or isinstance(msg["fn"], AttentionDistribution)):
            infer.setdefault("prior", msg["fn"])  # poutine.uncondition makes it latent
        if is_attention_site(msg) and not msg["is_observed"]:
            family = infer.setdefault("family", self.family(msg["name"]))
            infer["prior"] = family.prior(infer["prior"])
            if not family.has_prior_term:
                # a point mass has no density: without this its "KL" would be -log p, MAP instead of soft attention
                msg["mask"] = False
        super()._pyro_post_sample(msg)

    def _drawn_site(self, msg: Any) -> Any:
        """The trace node of a site that ``rest`` drew; None for others."""
        node = self._drawn.nodes.get(msg["name"])
        return node if node is not None and node["type"] == "sample" else None

    def _check_sites(self) -> None:
        """Raise ValueError when a pattern, or a site of ``rest``, has no counterpart in the model."""
        sites = [name for name, site in self.trace.nodes.items() if is_attention_site(site)]
        matched = {self._pattern(name) for name in sites}
        unused = [pattern for pattern in self.patterns if pattern not in matched]
        if unused:
            found = ", ".join(map(repr, sites)) or "none; route its attention through LatentAttention"
            raise ValueError(f"no attention site matches {', '.join(map(repr, unused))}; the model's sites: {found}")
        for name, site in prune_subsample_sites(self._drawn).nodes.items():
            if site["type"] == "sample" and name not in self.trace and not (site["infer"] or {}).get("is_auxiliary"):
                remedy = "mark a site that rest needs for itself by infer={'is_auxiliary': True}"
                raise ValueError(f"rest has the site '{name}', expected a latent site of the model; {remedy}")

    def _pattern(self, name: str) -> str | None:
        return next((pattern for pattern in self.patterns if fnmatchcase(name, pattern)), None)

    def _hidden_from_rest(self, msg: Any) -> bool:
        hidden = msg["is_observed"] or isinstance(msg["fn"], AttentionDistribution) or self.keeps_prior(msg["name"])
        return msg["type"] == "sample" and hidden

    def __getstate__(self) -> dict[str, Any]:
        # PyroModule's own leaves out weak references; a trace, of a whole autograd graph, cannot be pickled either
        state: dict[str, Any] = PyroModule.__getstate__(self)
        return {name: value for name, value in state.items() if name not in _OF_A_RUN}


# What a guide holds of its last run.
_OF_A_RUN = ("trace", "_drawn", "_output")


def forget_run(messenger: Any) -> None:
    """Drop what a messenger guide holds of its run, which would keep the step's autograd graph until the next one."""
    for name in _OF_A_RUN:
        vars(messenger).pop(name, None)


@contextmanager
def ran(guide: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
    """A messenger guide, without the handlers around it, as one run under them has left it; it then forgets the run."""
    messenger: Any = poutine.unwrap(guide)
    try:
        guide(*args, **kwargs)
        yield messenger
    finally:
        forget_run(messenger)


def run_guide(guide: Any, *args: Any, **kwargs: Any) -> GuideRun:
    """:meth:`AttentionGuide.run` of a guide that may have handlers around it, such as ``poutine.condition``."""
    check_guide(guide)
    with ran(guide, *args, **kwargs) as messenger:
        return GuideRun(messenger._output, messenger.trace)


def check_guide(guide: Any) -> AttentionGuide:
    """The guide without the handlers around it; TypeError unless it is an AttentionGuide."""
    guide = poutine.unwrap(guide)
    if not isinstance(guide, AttentionGuide):
        raise TypeError(f"guide is a {type(guide).__name__}, expected an AttentionGuide(model, family)")
    return guide


def is_attention_site(site: Any) -> bool:
    """Whether a node of a guide's trace, or a message that has passed it, is an attention site, observed or not."""
    return site["type"] == "sample" and isinstance(site["infer"].get("prior"), AttentionDistribution)


def keeps_prior(site: Any) -> bool:
    """Whether an AttentionGuide has left a latent site at its prior: ``infer["family"]`` is None then."""
    return site["infer"].get("family", site) is None


def _check_drawn(msg: Any, drawn: Any) -> None:
    """Raise ValueError unless ``rest`` may draw a site, whose node it has given."""
    name = msg["name"]
    if site_is_subsample(msg):
        if msg["value"] is not None and not msg["value"].equal(drawn["value"]):
            seen = f"plate '{name}' has a subsample of its own in the model, and rest has drawn another"
            raise ValueError(f"{seen}; give rest the same plate (create_plates= of an autoguide)")
    elif isinstance(msg["fn"], AttentionDistribution):
        raise ValueError(f"attention site '{name}' is in rest too; hide it: poutine.block(model, hide=['{name}'])")
    elif msg["is_observed"] or drawn["is_observed"]:
        where = "model" if msg["is_observed"] else "guide"
        raise ValueError(f"site '{name}' is observed in the {where}, but it is in rest, too; expected a latent site")


def _check_repetition(msg: Any) -> None:
    """Raise ValueError when a plate of the model repeats an attention site, as it does where heads were forgotten."""
    prior = msg["infer"]["prior"]
    dims, head_dim = prior.scores.dim() - prior.layout.event_dim, prior.layout.head_dim
    for frame in msg["cond_indep_stack"]:
        if frame.vectorized and frame.size > 1 and -frame.dim > dims:
            raise ValueError(
                f"site '{msg['name']}': its scores have no dimension for plate '{frame.name}' of size {frame.size}; "
                f"add that of the heads to scores, values and keys (.unsqueeze({head_dim})), or, if all of the plate "
                f"share their scores, one of size 1 at the left (.unsqueeze(0))"
            )


class _Soft(Messenger):
    """Gives attention its deterministic weights, while a guide of the other sites looks at them; inside the model."""

    def _pyro_sample(self, msg: Any) -> None:
        if msg["value"] is None and isinstance(msg["fn"], AttentionDistribution):
            msg["value"] = msg["fn"].soft_value
