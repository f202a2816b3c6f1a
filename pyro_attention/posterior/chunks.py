"""Many posterior samples in one pass, by a plate at the left of those of the model.

What is ahead of the first attention site is computed once for all samples of a pass. The model must broadcast over the
plate, as for vectorised particles; one more pass checks this, at the first call of a guide with values of such shapes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import pyro
from pyro import poutine
from pyro.poutine.messenger import Messenger
from pyro.poutine.trace_struct import Trace
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_attention.guide import DRAWS, AttentionGuide, check_guide, is_attention_site
from pyro_attention.objectives.elbo import is_point_mass
from pyro_attention.objectives.evidence import Draws
from pyro_attention.posterior.sampling import SAMPLERS, Pass, Run, depth

__all__ = ["draw_chunks", "outputs"]

_LARGEST = 2**18  # weights of a site in a pass; with more, the tensors of a stack leave the cache of a processor
_CHECKED: WeakKeyDictionary[AttentionGuide, set[Any]] = WeakKeyDictionary()  # what each of them broadcasts


@SAMPLERS.register("chunks")
def draw_chunks(run: Run, num_samples: int, chunk_size: int) -> Iterator[Pass]:
    """Passes of at most as many samples as asked for, the first of one; ValueError where a model does not broadcast.

    Where the attention alone is wanted, passes after the first end when its sites have their values. On a CPU, samples
    of several sites are so few in a pass that they take no longer than one by one.
    """
    first = Pass(*run())
    sites = {name: is_point_mass(site["fn"]) for name, site in first.trace.nodes.items() if is_attention_site(site)}
    # what nothing is drawn for is repeated, as its samples would not show
    plate = pyro.plate if all(sites.values()) else Draws
    nesting = max((depth(site) for site in first.trace.nodes.values() if site["type"] == "sample"), default=0)
    drawn = [first.trace.nodes[name]["value"] for name, is_fixed in sites.items() if not is_fixed]
    if len(drawn) > 1 and drawn[0].device.type == "cpu":
        chunk_size = min(chunk_size, max(1, _LARGEST // max(value.numel() for value in drawn)))
    run = run if run.whole or not sites else _Early(run.guide, run.args, run.kwargs, sites=tuple(sites))
    yield first
    checked, stochastic = _CHECKED.setdefault(check_guide(run.guide), set()), first.trace.stochastic_nodes
    kind = type(run), *sites.items(), *((name, first.trace.nodes[name]["value"].shape) for name in stochastic)
    if num_samples > 1 and kind not in checked:
        _check_broadcasts(run, first, nesting, plate)
        checked.add(kind)
    del first, drawn  # the next pass needs the memory
    for start in range(1, num_samples, chunk_size):
        count = min(chunk_size, num_samples - start)
        with pyro.validation_enabled(False):
            found = run(plate(DRAWS, count, dim=-1 - nesting))
        yield Pass(*found, nesting, count)
        del found


@dataclass(frozen=True)
class _Early(Run):
    """Runs that end when all of some sites have their values, without an output."""

    sites: tuple[str, ...] = ()

    def __call__(self, around: AbstractContextManager[Any] = nullcontext()) -> tuple[Any, Any]:  # noqa: B008
        tracer = poutine.trace()  # a run that is stopped returns no trace of its own
        with _Stop(self.sites), around:
            super().__call__(tracer)
        return tracer.trace, None


class _Enough(BaseException):
    """Ends a pass; no Exception, which a model might catch."""


class _Stop(Messenger):
    """Ends what runs inside as soon as all of some sites have their values."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__()
        self.missing = set(names)

    def __exit__(self, kind: Any, *error: Any) -> bool:  # type: ignore[override]
        super().__exit__(kind, *error)
        return kind is _Enough

    def _pyro_sample(self, msg: Any) -> None:
        self.missing.discard(msg["name"])
        if not self.missing:
            # Pyro calls it after all handlers, so the guide's trace has this site, too
            msg["continuation"] = self._stop

    @staticmethod
    def _stop(_: Any) -> None:
        raise _Enough


def outputs(drawn: Pass) -> Tensor:
    """The model's return value in a pass, which must be a tensor, with a leading sample dimension."""
    if not isinstance(drawn.output, Tensor):
        raise TypeError(
            f"the model returned {type(drawn.output).__name__}, expected a tensor such as logits; return it from the "
            f"model, or make the guide of a function that picks it: AttentionGuide(lambda x: model(x)[0], ...)"
        )
    output = drawn.output.unsqueeze(0) if drawn.nesting is None else drawn.output
    if output.shape[:1] != (drawn.size,):
        raise ValueError(
            f"the model returned shape {tuple(output.shape)} for {drawn.size} samples in one pass, expected a leading "
            f"dimension of {drawn.size}; use chunk_size=1 unless the model broadcasts over it"
        )
    return output


def _check_broadcasts(run: Run, first: Pass, nesting: int, plate: type[pyro.plate]) -> None:
    """Raise unless each of two samples in a pass, with the values of the first pass, is what that is.

    The output is compared, or, where the attention alone is wanted, the mean weights of its sites.
    """
    names, sites = first.trace.stochastic_nodes, run.sites if isinstance(run, _Early) else ()
    if sites:  # it ends there
        names = names[: names.index(sites[-1]) + 1]
    latent = [site for site in map(first.trace.nodes.get, names) if not site_is_subsample(site)]
    if sites and all(is_point_mass(site["fn"]) for site in latent[:-1]):  # nothing is drawn ahead of the last one
        return
    twice = Trace()
    for site in latent:
        if not is_point_mass(site["fn"]):
            value = site["value"].expand(2, *[1] * (nesting - depth(site)), *site["value"].shape)
            twice.add_node(site["name"], **{**site, "value": value})
    try:
        with poutine.replay(trace=twice):
            pair = Pass(*run(plate(DRAWS, 2, dim=-1 - nesting)), nesting, 2)
        by_output = not sites and isinstance(first.output, Tensor)
        for site in (each.trace.nodes[name] for each in (pair, first) for name in twice.nodes):
            if is_attention_site(site):
                site["value"] = site["fn"].mean_value
        found, wanted = ({"output": outputs(each)} if by_output else dict(each.weights()) for each in (pair, first))
        for name, expected in wanted.items():
            atol = 0.01 * expected.nan_to_num(0, 0, 0).abs().max().item()  # as close as results in half precision are
            same = found[name].shape[1:] == expected.shape[1:]
            if not (same and found[name].isclose(expected, rtol=0, atol=atol, equal_nan=True).all()):
                raise ValueError(f"{name} is another one where two samples are in one pass than where one is")
    except Exception as error:
        error.add_note(
            "The model does not broadcast over a dimension of samples at the left: use chunk_size=1, or let the model "
            "count dimensions from the right, as in mean(-2) for mean(1), and draw no noise of its own."
        )
        raise
