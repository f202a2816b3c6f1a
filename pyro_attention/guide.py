"""AttentionGuide: the effect handler that replaces priors of attention sites by posteriors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from pyro.infer.autoguide.effect import AutoMessenger
from pyro.nn.module import PyroModule, pyro_method
from pyro.poutine.util import site_is_subsample
from torch import nn

from pyro_attention.distributions import BlockedPrior
from pyro_attention.distributions.attention import AttentionDistribution
from pyro_attention.families import Family

__all__ = ["AttentionGuide"]


class AttentionGuide(AutoMessenger):  # type: ignore[metaclass]
    """A guide over the same model: at each attention site it replaces the prior by a posterior family.

    The guide runs the model once and yields both traces, so Pyro's ELBOs need one forward pass. Other latent sites
    keep their prior. Handlers belong around the guide or inside the model; around the ``model`` argument of an
    ELBO they are ignored, as for every Pyro messenger guide.

    Args:
        model: A Pyro model: any callable that reaches LatentAttention.
        families: One family for all attention sites, or a dict from site-name patterns (as in ``fnmatch``:
            ``"encoder.*"``) to families; the first matching pattern counts.

    Raises:
        TypeError: A family is no :class:`Family`.
        ValueError: No patterns at all; at a call: a site no pattern matches, a pattern that matches no site, a family
            of another kind than the prior, or a model without attention sites.

    Example:
        >>> import torch
        >>> from pyro_attention import FixedGammaPrior, LatentAttention, LogNormal, Soft
        >>> attention = LatentAttention("attention", FixedGammaPrior())
        >>> model = lambda scores, values: attention(scores, values).context
        >>> guide = AttentionGuide(model, {"attention": LogNormal(scale=0.5)})
        >>> sorted(guide(torch.zeros(1, 2, 2), torch.ones(1, 2, 3)))
        ['attention']
    """

    def __init__(self, model: Callable[..., Any], families: Family | Mapping[str, Family]) -> None:
        super().__init__(model)
        patterns = dict(families) if isinstance(families, Mapping) else {"*": families}
        if not patterns:
            raise ValueError("families is empty, expected a family or a dict from site-name patterns to families")
        for pattern, family in patterns.items():
            if not isinstance(family, Family):
                raise TypeError(
                    f"families['{pattern}'] is {family!r}, expected a Family such as Weibull(concentration=10.0); "
                    f"FAMILIES['weibull'] finds one by name"
                )
        self.patterns = tuple(patterns)
        # module names may not contain the dots that patterns do
        self.families = nn.ModuleList(patterns.values())
        self._matched: dict[str, tuple[str, Family]] = {}

    @pyro_method  # type: ignore[untyped-decorator]
    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """Run the model once under the posterior; returns the value of every sample site."""
        self.run(*args, **kwargs)
        model_trace, _ = self.get_traces()
        return {name: site["value"] for name, site in model_trace.nodes.items() if site["type"] == "sample"}

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model once under the posterior; returns what the model returns and leaves its sites in ``trace``.

        Raises:
            ValueError: The model has no attention site, or a pattern matches none.
        """
        self._matched = {}
        self.args_kwargs = args, kwargs
        try:
            with self:
                output = self.model(*args, **kwargs)
        finally:
            del self.args_kwargs
        used = {pattern for pattern, _ in self._matched.values()}
        unused = [pattern for pattern in self.patterns if pattern not in used]
        if unused:
            sites = ", ".join(map(repr, self._matched)) or "none; route its attention through LatentAttention"
            raise ValueError(f"no attention site matches {', '.join(map(repr, unused))}; the model's sites: {sites}")
        return output

    def family(self, name: str) -> Family:
        """The family of an attention site; ValueError when no pattern matches its name."""
        for pattern, family in zip(self.patterns, self.families, strict=True):
            if fnmatchcase(name, pattern):
                self._matched[name] = (pattern, family)  # type: ignore[assignment]
                return family  # type: ignore[return-value]
        raise ValueError(
            f"attention site '{name}' matches none of the patterns {', '.join(map(repr, self.patterns))}; add one"
        )

    def get_posterior(self, name: str, prior: Any) -> Any:
        """Posterior of a site: its family's for attention sites, the prior itself elsewhere."""
        if not isinstance(prior, AttentionDistribution):
            return prior
        family = self.family(name)
        if family.kind != prior.kind:
            raise ValueError(
                f"site '{name}': {type(family).__name__} fits priors of kind '{family.kind}', but its prior "
                f"{type(prior).__name__} is of kind '{prior.kind}'"
            )
        if isinstance(prior, BlockedPrior):
            return prior.posterior(family)
        args, kwargs = self.args_kwargs
        return family.amortise(prior, *args, **kwargs)

    def get_traces(self) -> tuple[Any, Any]:
        """Traces of the model and of the guide after a run; sites that are summed out are in the model's alone."""
        model_trace, guide_trace = super().get_traces()
        for name, site in list(guide_trace.nodes.items()):
            if (site["infer"] or {}).get("marginal"):
                del guide_trace.nodes[name]
        return model_trace, guide_trace

    def _pyro_sample(self, msg: Any) -> None:
        super()._pyro_sample(msg)
        if msg["is_observed"] or site_is_subsample(msg):
            return
        if msg["name"] not in self._matched:
            # a plate outside the guide (vectorised particles) makes prior and posterior two objects
            msg["infer"]["keeps_prior"] = True
            return
        family = self._matched[msg["name"]][1]
        msg["infer"]["prior"] = family.prior(msg["infer"]["prior"])
        msg["infer"].update(family.infer)
        if not family.has_prior_term:
            # a point mass has no density: without this its "KL" would be -log p, MAP instead of soft attention
            msg["mask"] = False

    def __getstate__(self) -> dict[str, Any]:
        # PyroModule's own leaves out weak references; a trace, of a whole autograd graph, cannot be pickled either
        state: dict[str, Any] = PyroModule.__getstate__(self)
        return {name: value for name, value in state.items() if name != "trace"}
