"""What runs of a guide leave: their traces, and what is to be said of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pyro import poutine
from pyro.poutine.trace_struct import Trace

from pyro_attention.families.distribution import AttentionDistribution

__all__ = [
    "TRACES",
    "GuideRun",
    "PriorWarning",
    "forget_traces",
    "is_attention_site",
    "run_messenger",
    "sites_at_prior",
    "warn_of_priors",
]


class PriorWarning(UserWarning):
    """A latent site is drawn from its prior, and nobody said that it should be."""


@dataclass(frozen=True)
class GuideRun:
    """One run of an :class:`AttentionGuide`.

    Attributes:
        output: What the model returned.
        trace: Pyro's trace of the model's sites. At a latent site ``fn`` is the posterior, and ``infer["prior"]`` the
            prior.
    """

    output: Any
    trace: Trace


# What a guide holds of its last run.
TRACES = ("trace", "_drawn")


def is_attention_site(site: Any) -> bool:
    """Whether a node of a guide's trace, or a message that has passed the guide, is an attention site.

    It may be observed: its ``fn`` in the guide's trace is the prior then.
    """
    return site["type"] == "sample" and isinstance(site["infer"].get("prior"), AttentionDistribution)


def forget_traces(messenger: Any) -> None:
    """Drop the traces of a messenger guide, which would keep this step's autograd graph alive until the next one."""
    for name in TRACES:
        vars(messenger).pop(name, None)


def run_messenger(guide: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Traces of model and guide of one run of a messenger guide, with the handlers around it; it keeps neither."""
    messenger: Any = poutine.unwrap(guide)
    try:
        guide(*args, **kwargs)
        model_trace, guide_trace = messenger.get_traces()
    finally:
        forget_traces(messenger)
    warn_of_priors(messenger, guide_trace)
    return model_trace, guide_trace


def warn_of_priors(messenger: Any, guide_trace: Any) -> None:
    """Warn of the latent sites that an AttentionGuide leaves at their prior without having been told to."""
    message = sites_at_prior(messenger, [site for site in guide_trace.nodes.values() if site["type"] == "sample"])
    if message is not None:
        warnings.warn(message, PriorWarning, stacklevel=2)


def sites_at_prior(messenger: Any, sites: Iterable[Any]) -> str | None:
    """What is to be said of latent sites that keep their prior without having been told to; None when none does."""
    # an AttentionGuide says so in "infer"; what is enumerated is summed out
    at_prior = [s["name"] for s in sites if s["infer"].get("keeps_prior") and "_enumerate_dim" not in s["infer"]]
    kept = [name for name in at_prior if not messenger.keeps_prior(name)]
    if not kept:
        return None
    return (
        f"latent sites without a posterior are drawn from their prior: {', '.join(map(repr, kept))}; give "
        f"AttentionGuide a guide for them (rest=AutoNormal), observe them, or say that they keep it (keep_prior={kept})"
    )
