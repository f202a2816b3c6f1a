"""Sample sites of Pyro with the types of their entries; :mod:`pyro_attention._typing` has messages of any kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict, cast

from pyro.poutine.util import site_is_subsample

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyro.distributions import TorchDistribution
    from pyro.poutine.indep_messenger import CondIndepStackFrame
    from torch import Tensor

    from pyro_attention._typing import Message, Trace
    from pyro_attention.alignments.base import AlignmentDistribution
    from pyro_attention.attention_call import AttentionCall
    from pyro_attention.families.base import Family

    Traces = tuple[Trace, Trace]  # of model and guide

__all__ = ["Infer", "Site", "as_site", "is_plate", "sample_sites", "site_of"]


class Infer(TypedDict, total=False):
    """Inference options of a site, with those that an ``AttentionGuide`` and Pyro's enumeration add."""

    prior: AlignmentDistribution  # of other sites another distribution
    family: Family | None
    call: AttentionCall
    enumerate: str
    _enumerate_dim: int
    _enumerate_symbol: str


class Site(TypedDict):
    """Message of a sample site, in a handler or a node of a trace, where it has log probabilities."""

    name: str
    type: str
    fn: TorchDistribution
    value: Tensor
    is_observed: bool
    done: bool
    scale: Tensor | float
    mask: Tensor | bool | None
    infer: Infer
    cond_indep_stack: tuple[CondIndepStackFrame, ...]
    log_prob: Tensor
    packed: dict[str, object]


def as_site(msg: Message) -> Site:
    """Return the message of a sample site, with types."""
    return cast("Site", msg)


def is_plate(site: Site) -> bool:
    """Return whether a site holds the indices of a plate."""
    return site_is_subsample(cast("Message", site))


def site_of(trace: Trace, name: str) -> Site:
    """Return a node of a trace that is a sample site."""
    return cast("Site", trace.nodes[name])


def sample_sites(trace: Trace) -> Iterator[Site]:
    """Yield the sample sites of a trace, those of plates too, in the order of the model."""
    yield from (cast("Site", node) for node in trace.nodes.values() if node["type"] == "sample")
