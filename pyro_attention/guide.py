"""AttentionGuide: the effect handler that replaces priors of attention sites by posteriors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, cast

from pyro import poutine
from pyro.distributions import Delta, TorchDistribution
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.infer.autoguide.effect import AutoMessenger
from pyro.nn.module import PyroModule, PyroModuleList, pyro_method
from pyro.poutine import runtime
from pyro.poutine.guide import GuideMessenger
from pyro.poutine.trace_struct import Trace as PyroTrace
from pyro.poutine.util import prune_subsample_sites, site_is_subsample
from torch import Tensor, nn

from pyro_attention._checks import check_kind
from pyro_attention._observations import check_observation
from pyro_attention._typing import Message, Model, PlateFrame, Site
from pyro_attention.attention import name_sites
from pyro_attention.attention_call import AttentionCall
from pyro_attention.families.base import Family
from pyro_attention.families.distribution import AttentionDistribution

__all__ = [
    "DRAWS",
    "AttentionGuide",
    "GuideRun",
    "attention_weights",
    "check_guide",
    "first_match",
    "forget_run",
    "is_attention_site",
    "is_deterministic",
    "keeps_prior",
    "plates_of",
    "run_guide",
]

DRAWS = "_samples"  # the plate of many draws in one pass, at the left of those of the model
_PLATES_OF_DRAWS = {DRAWS, "num_particles_vectorized"}  # the second is Pyro's


@dataclass(frozen=True)
class GuideRun:
    """One run of an :class:`AttentionGuide`.

    Attributes:
        output: Return value of the model.
        trace: Pyro's trace of the sites. At a latent site ``fn`` is the posterior, ``infer["prior"]`` the prior and
            ``infer["family"]`` the family, or None where the site keeps its prior.
    """

    output: Any  # of whatever type the model returns
    trace: PyroTrace


class AttentionGuide(AutoMessenger):  # type: ignore[metaclass]
    """Guide that runs its model and replaces the prior of every attention site by a posterior family.

    One run of the model gives the traces of model and guide, so Pyro's ELBOs need one forward pass. Handlers such as
    ``poutine.condition`` belong around the guide or inside the model, not around the ``model`` argument of an ELBO.

    Args:
        model: A Pyro model: any callable that calls LatentAttention. Sites of the layers of a module get the paths of
            these layers as names, unless they have a name (:func:`name_sites`).
        families: One family for all attention sites, or a dict from site-name patterns (as in ``fnmatch``:
            ``"encoder.*"``) to families; the first matching pattern counts. Other latent sites get a posterior by one
            of Pyro's messengers, such as ``AutoNormalMessenger(model)``, under their name.
        keep_prior: Names or patterns, or one of them, of latent sites that are meant to be drawn from their prior. The
            objectives warn of any other latent site without a posterior.

    Raises:
        TypeError: A family is no :class:`Family` and no messenger.
        ValueError: At a call: an attention site that no pattern matches, a family of another kind than the prior, or
            two calls of attention under one name.

    Example:
        >>> import pyro, torch
        >>> from pyro.infer.autoguide import AutoNormalMessenger
        >>> from pyro_attention import FixedGammaPrior, LatentAttention, LogNormal
        >>> attention = LatentAttention("attention", FixedGammaPrior())
        >>> def model(scores, values):
        ...     shift = pyro.sample("shift", pyro.distributions.Normal(0.0, 1.0))
        ...     return attention(scores, values + shift).context
        >>> guide = AttentionGuide(model, {"attention": LogNormal(scale=0.5), "shift": AutoNormalMessenger(model)})
        >>> sorted(guide(torch.zeros(1, 2, 2), torch.ones(1, 2, 3)))
        ['attention', 'shift']
    """

    _output: object = None  # of the model, in the current run

    def __init__(
        self,
        model: Model,
        families: Family | Mapping[str, Family | AutoMessenger],
        *,
        keep_prior: Collection[str] = (),
    ) -> None:
        _check_is_model(model)
        super().__init__(model)
        patterns = dict(families) if isinstance(families, Mapping) else {"*": families}
        messengers = {pattern: family for pattern, family in patterns.items() if isinstance(family, AutoMessenger)}
        attention_families = {pattern: family for pattern, family in patterns.items() if pattern not in messengers}
        for pattern, family in attention_families.items():
            check_kind(f"families['{pattern}']", family, Family, "Weibull(concentration=10.0)")
        for messenger in messengers.values():
            messenger.trace = PyroTrace()  # without which Pyro's messengers cannot be pickled
        self.patterns, self.other_patterns = tuple(attention_families), tuple(messengers)
        # module names may not contain the dots that patterns do
        self.families, self.messengers = nn.ModuleList(attention_families.values()), PyroModuleList(messengers.values())
        self.keep_prior = (keep_prior,) if isinstance(keep_prior, str) else tuple(keep_prior)
        name_sites(model)

    @pyro_method
    def __call__(self, /, *args: object, **kwargs: object) -> dict[str, Tensor]:  # type: ignore[override]
        """Run the model once under the posterior, and return the value of every sample site of the model by name."""
        name_sites(self.model)
        self.args_kwargs, self._outer_plates = (args, kwargs), tuple(frame.name for frame in runtime.get_plates())
        self._chosen = self.attention_families  # once a run: Pyro registers the parameters at every access
        try:
            with self:
                self._output = self.model(*args, **kwargs)
        finally:
            del self.args_kwargs, self._outer_plates, self._chosen
        self._check_has_attention()
        nodes: Mapping[str, Message] = prune_subsample_sites(self.trace).nodes
        return {name: site["value"] for name, site in nodes.items() if site["type"] == "sample"}

    def run(self, *args: object, **kwargs: object) -> GuideRun:
        """Run the model once under the posterior.

        Args:
            args: Arguments of the model.
            kwargs: Keyword arguments of the model.

        Returns:
            Output and trace of the run; the guide itself keeps nothing of them.

        Raises:
            ValueError: As at a call.
        """
        return run_guide(self, *args, **kwargs)

    def family(self, name: str) -> Family:
        """Return the family of an attention site; raise ValueError when no pattern matches its name."""
        pattern = first_match(name, self.patterns)
        if pattern is None:
            patterns = ", ".join(map(repr, self.patterns))
            raise ValueError(f"attention site '{name}' matches none of the patterns {patterns}; add one")
        families: Sequence[Family] = vars(self).get("_chosen") or self.attention_families
        family: Family = families[self.patterns.index(pattern)]
        return family

    @property
    def attention_families(self) -> tuple[Family, ...]:
        """Posterior families of the attention sites, in the order of their patterns."""
        return tuple(family for family in self.families if isinstance(family, Family))

    def _check_has_attention(self) -> None:
        """Raise ValueError where a run of the model has reached no attention; handlers inside may have hidden it."""
        is_bare = poutine.unwrap(self.model) is self.model
        if self.patterns and is_bare and not any(map(is_attention_site, self.trace.nodes.values())):
            name = getattr(self.model, "__name__", type(self.model).__name__)
            raise ValueError(
                f"the model {name} has no attention site, so a posterior family has nothing to draw (no site matches "
                f"{', '.join(map(repr, self.patterns))}); route its attention through LatentAttention, or convert its "
                f"layers first, by bayesian() of pyro_attention.integrations.torch_nn or .huggingface"
            )

    def keeps_prior(self, name: str) -> bool:
        """Return whether a latent site is meant to be drawn from its prior."""
        return first_match(name, self.keep_prior) is not None

    def attention_posterior(self, name: str, call: AttentionCall, prior: AttentionDistribution) -> TorchDistribution:
        """Return the posterior that the family of an attention site makes for a call.

        Args:
            name: Name of the site.
            call: Record of the call of the layer.
            prior: Prior of the site.

        Raises:
            ValueError: The family does not fit the prior, or no pattern matches the name.
        """
        family = self.family(name)
        family.check_fits(prior, site=name)
        args, kwargs = self.args_kwargs
        call = replace(call, site=name, args=args, kwargs=kwargs)
        posterior = call.posterior(family, prior)
        if not isinstance(posterior, AttentionDistribution | Delta):
            family.prior(prior).check_posterior(posterior, call.scores, site=name)
        # a plate around the guide (vectorized particles) gives the prior a larger batch than the call has
        return posterior if posterior.batch_shape == prior.batch_shape else posterior.expand(prior.batch_shape)

    def get_posterior(self, name: str, prior: TorchDistributionMixin) -> TorchDistributionMixin | Tensor:
        """Return the posterior that its messenger gives a latent site other than attention, else the prior itself."""
        pattern = first_match(name, self.other_patterns)
        if pattern is None:
            return prior
        # the messenger reads these in a run of its own, which this run replaces
        other = self.messengers[self.other_patterns.index(pattern)]
        assert isinstance(other, AutoMessenger)
        other.trace, other.args_kwargs, other._outer_plates = self.trace, self.args_kwargs, self._outer_plates
        try:
            return other.get_posterior(name, prior)
        finally:
            other.trace = PyroTrace()
            del other.args_kwargs, other._outer_plates

    def get_traces(self) -> tuple[PyroTrace, PyroTrace]:
        """Return the traces of model and guide after a call; sites that are summed out are in the model's alone."""
        model_trace, guide_trace = super().get_traces()
        for name, site in list(guide_trace.nodes.items()):
            infer: Mapping[str, object] = {**(site["infer"] or {})}
            family = infer.get("family", site)
            if getattr(family, "is_marginal", False) or (family is None and "_enumerate_dim" in infer):
                del guide_trace.nodes[name]
        return model_trace, guide_trace

    def _pyro_sample(self, msg: Message) -> None:
        # poutine.replay around the guide puts the infer of another run in its place
        cast("dict[str, object]", msg)["_infer"] = msg["infer"]
        if msg["is_observed"] and not set(self._outer_plates) - _PLATES_OF_DRAWS:
            check_observation(msg)
        if msg["is_observed"] or site_is_subsample(msg):
            return
        if "prior" in msg["infer"]:
            raise ValueError(
                f"site '{msg['name']}' passes the guide twice, as below poutine.do around the guide, so that its "
                f"posterior would be taken for its prior; put that handler inside: "
                f"AttentionGuide(poutine.do(model, data), families)"
            )
        if not isinstance(msg["fn"], AttentionDistribution):
            super()._pyro_sample(msg)
            if msg["fn"] is msg["infer"]["prior"]:
                # a plate outside the guide (vectorized particles) makes prior and posterior two objects
                msg["infer"]["family"] = None
            return
        if msg["name"] in self.trace:
            raise ValueError(
                f"attention site '{msg['name']}' is there twice in one run; give each layer its own name=, or call "
                f"name_sites(net); call a layer that is used again in `with pyro.contrib.autoname.scope(prefix=...):`"
            )
        if "call" not in msg["infer"]:
            problem = f"site '{msg['name']}' has a {type(msg['fn']).__name__}, but no scores"
            raise ValueError(
                f"{problem}; sample it through LatentAttention, or leave it out of the guide by poutine.block"
            )
        family, prior = self.family(msg["name"]), msg["fn"]
        msg["fn"] = self.attention_posterior(msg["name"], msg["infer"]["call"], prior)
        msg["infer"].update(family.infer, family=family, prior=prior)

    def _pyro_post_sample(self, msg: Message) -> None:
        msg["infer"] = infer = cast("dict[str, Any]", msg).pop("_infer")
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

    def __getstate__(self) -> dict[str, object]:
        # PyroModule's own leaves out weak references; a trace, of a whole autograd graph, cannot be pickled either
        state: dict[str, object] = PyroModule.__getstate__(self)
        return {name: value for name, value in state.items() if name not in ("trace", "_output")}


def _check_is_model(model: Model) -> None:
    """Raise TypeError unless a model is something to run."""
    if isinstance(model, type):
        raise TypeError(f"model is the class {model.__name__}, expected an instance, such as {model.__name__}(...)")
    if isinstance(poutine.unwrap(model), GuideMessenger):
        raise TypeError(f"model is a guide ({type(poutine.unwrap(model)).__name__}), expected its model, guide.model")
    if not callable(model):
        raise TypeError(f"model is a {type(model).__name__}, expected a Pyro model: a function or a module")


def run_guide(guide: Model, *args: object, **kwargs: object) -> GuideRun:
    """Call :meth:`AttentionGuide.run` of a guide that may have handlers around it, such as ``poutine.condition``."""
    messenger = check_guide(guide)
    try:
        guide(*args, **kwargs)
        return GuideRun(messenger._output, messenger.trace)
    finally:
        forget_run(messenger)


def forget_run(messenger: GuideMessenger) -> None:
    """Drop trace and output of a guide's last run, which would keep the step's autograd graph until the next run."""
    for name in ("trace", "_output"):
        vars(messenger).pop(name, None)


def check_guide(guide: Model) -> AttentionGuide:
    """Return the guide without the handlers around it; raise TypeError unless it is an AttentionGuide."""
    messenger: object = poutine.unwrap(guide)
    if not isinstance(messenger, AttentionGuide):
        raise TypeError(f"guide is a {type(messenger).__name__}, expected an AttentionGuide(model, family)")
    return messenger


def is_attention_site(site: Site) -> bool:
    """Return whether a node of a guide's trace, or a message that has passed the guide, is an attention site.

    Observed sites count, too.
    """
    return site["type"] == "sample" and isinstance(site["infer"].get("prior"), AttentionDistribution)


def is_deterministic(site: Site) -> bool:
    """Return whether a site is one of ``pyro.deterministic``: it counts as observed, but says nothing of the data."""
    return site["infer"].get("_deterministic") is not None


def attention_weights(site: Site) -> Tensor:
    """Return the normalized weights of the value of an attention site."""
    prior: AttentionDistribution = site["infer"].get("prior", site["fn"])
    return prior.weights(site["value"], site["infer"]["call"].normalizer)


def plates_of(site: Site) -> dict[str, PlateFrame]:
    """Return the vectorized plates of the model that a site lies in, by name."""
    return {
        name: PlateFrame(name, dim, size)
        for name, dim, size, *_ in site["cond_indep_stack"]
        if dim is not None and name != DRAWS
    }


def keeps_prior(site: Site) -> bool:
    """Return whether an AttentionGuide has left a latent site at its prior: ``infer["family"]`` is None then."""
    return site["infer"].get("family", site) is None


def first_match(name: str, patterns: tuple[str, ...]) -> str | None:
    """Return the first pattern that matches a name."""
    return next((pattern for pattern in patterns if fnmatchcase(name, pattern)), None)
