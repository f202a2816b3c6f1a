"""Replays that compare a run with enumerated alignments, at the left of the plates, with runs of single alignments."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyro
import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_attention.alignments._messages import as_site, is_plate, sample_sites
from pyro_attention.alignments.base import AlignmentDistribution
from pyro_attention.draws import LatentValues, Minibatch, first_line, is_point_mass
from pyro_attention.replayed_runs import WithoutNoise, untouched

if TYPE_CHECKING:
    from pyro_attention._typing import Message
    from pyro_attention.alignments._messages import Site, Traces

    Run = Callable[[], Traces]

__all__ = ["replay_enumeration"]

Term = tuple[int, str]  # log probability of a site: 0 of the model or 1 of the guide, and the name of the site
_ERRORS = RuntimeError, IndexError, TypeError, AssertionError, ValueError


def replay_enumeration(enumerated: Run, single: Callable[[Messenger], Run], nesting: int) -> str | None:
    """Compare the log probabilities of enumerated values with those of single ones, drawn among the possible ones.

    Noise and state are as in :func:`pyro_attention.draws.replay`.

    Args:
        enumerated: One run that enumerates.
        single: Function from a handler that sets values, put around the guide, to one run that does not enumerate.
        nesting: Number of nested plates of the model.

    Returns:
        The difference, worded as the end of a sentence; None where there is none, or nothing is enumerated.
    """
    noise, minibatch = WithoutNoise(), Minibatch()
    with untouched(), torch.no_grad(), pyro.validation_enabled(False):
        latent = LatentValues(noise)
        try:
            with noise, minibatch, latent:
                traces = enumerated()
        except _ERRORS as error:
            with noise, minibatch:
                is_right_alone = _runs(single(_Fixed({})))
            if not is_right_alone:
                return None  # the run that counts says what is wrong
            return f"a run of enumerated alignments raised {type(error).__name__} ({first_line(error)})"
        if not any("_enumerate_dim" in site["infer"] for site in sample_sites(traces[0])):
            return None
        for _ in range(2):
            with noise.paused():
                values, picked = _pick(traces, latent.drawn, nesting)
            try:
                with noise, minibatch:
                    alone = _log_probs(single(_Fixed(values))())
            except _ERRORS:
                return None
            differences = (_difference(term, picked[term], alone.get(term), nesting, noise) for term in picked)
            difference = next(filter(None, differences), None)
            if difference is not None:
                return difference
    return None


def _runs(run: Run) -> bool:
    """Return whether a run raises none of the errors that wrong dimensions raise."""
    try:
        run()
    except _ERRORS:
        return False
    return True


class _Fixed(Messenger):
    """Handler around a guide that sets latent sites, which nothing enumerates then."""

    def __init__(self, values: dict[str, Tensor]) -> None:
        super().__init__()
        self.values = values

    def _pyro_sample(self, msg: Message) -> None:
        site = as_site(msg)
        if not site["is_observed"] and site["name"] in self.values:
            site["value"], site["done"] = self.values[site["name"]], True


def _log_probs(traces: Traces) -> dict[Term, Tensor]:
    """Return log probabilities of the sites of model and guide."""
    return {
        (index, site["name"]): site["log_prob"]
        for index, trace in enumerate(traces)
        for site in sample_sites(trace)
        if not is_plate(site)
    }


def _pick(traces: Traces, drawn: dict[str, Tensor], nesting: int) -> tuple[dict[str, Tensor], dict[Term, Tensor]]:
    """Return values of latent sites, drawn uniformly where enumerated, and the log probabilities of all sites there."""
    model_trace, guide_trace = traces
    guide_sites = {site["name"]: site for site in sample_sites(guide_trace)}
    indices: dict[int, Tensor] = {}  # by dimension; in a Markov chain steps take turns in using one
    values: dict[str, Tensor] = {}
    picked: dict[Term, Tensor] = {}
    for site in sample_sites(model_trace):
        if is_plate(site):
            continue
        name, dim = site["name"], site["infer"].get("_enumerate_dim")
        guide_site = guide_sites.get(name, site)
        if dim is not None:
            indices.pop(dim, None)
            indices[dim] = _drawn_index(_at(_possible(site, guide_site), indices, 0), dim, nesting)
        if not site["is_observed"] and not is_point_mass(guide_site["fn"]):
            value = drawn.get(name, site["value"])
            values[name] = _right(_at(value, indices, site["fn"].event_dim), nesting + site["fn"].event_dim)
        picked[0, name] = _at(site["log_prob"], indices, 0)
        if name in guide_sites:
            picked[1, name] = _at(guide_site["log_prob"], indices, 0)
    return values, picked


def _possible(site: Site, guide_site: Site) -> Tensor:
    """Return which of its enumerated values a site may have."""
    fn = guide_site["fn"]
    if isinstance(fn, AlignmentDistribution):  # whose log probabilities are finite everywhere
        return fn.is_possible(site["value"])
    return torch.as_tensor(site["log_prob"]).isfinite()


def _drawn_index(possible: Tensor, dim: int, nesting: int) -> Tensor:
    """Return the index of a possible value of an enumerated dimension, for each entry of the plates."""
    values_last = possible.movedim(dim, -1)
    values_last = values_last.reshape(*[1] * (nesting + 1 - values_last.dim()), *values_last.shape)
    probabilities = _right(values_last, nesting + 1).float()
    # of a query without a possible value, such as padding, any
    probabilities = probabilities + (probabilities.sum(-1, keepdim=True) == 0)
    index: Tensor = torch.distributions.Categorical(probabilities).sample()
    return index


def _at(values: Tensor, indices: dict[int, Tensor], event_dim: int) -> Tensor:
    """Return values ``[*enumerated, *plates, *event]`` at one index of each enumerated dimension, then of size one."""
    for dim, index in indices.items():
        axis = dim - event_dim
        if values.dim() >= -axis and values.size(axis) > 1:
            index = index.reshape(*index.shape, *[1] * event_dim)
            index = index.reshape(*[1] * (values.dim() - index.dim()), *index.shape)
            values = values.take_along_dim(index, axis)
    return values


def _right(values: Tensor, dims: int) -> Tensor:
    """Return values without dimensions of size one at the left of those that plates and event take."""
    while values.dim() > dims and values.size(0) == 1:
        values = values.squeeze(0)
    return values


def _difference(term: Term, picked: Tensor, alone: Tensor | None, nesting: int, noise: WithoutNoise) -> str | None:
    """Describe how a log probability below enumerated alignments differs from that below single ones; None if equal."""
    is_of_guide, name = term
    what = f"the {'posterior ' if is_of_guide else ''}log probability of site '{name}'"
    if alone is None:
        return f"site '{name}' is there only where alignments are enumerated"
    picked, alone = (_right(value, 0 if value.numel() == 1 else 1) for value in (picked, alone))
    if picked.shape != alone.shape:
        problem = f"has shape {tuple(picked.shape)} of enumerated alignments, expected {tuple(alone.shape)}"
        return f"{what} {problem} as of single ones, in {nesting} nested plates"
    if not noise.is_close(picked, alone):
        index = (picked - alone).abs().nan_to_num(torch.inf).argmax()
        values = picked.flatten()[index].item(), alone.flatten()[index].item()
        return f"{what} is {values[0]:.5g} where alignments are enumerated and {values[1]:.5g} for the same alone"
    return None
