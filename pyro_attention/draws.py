"""Several draws of one model, in one pass or one by one.

One pass has a plate of draws at the left, where a replay allows it.

A plate of draws is right only for a model that counts its dimensions from the right: ``x[0]``, ``mean(1)`` and
``reshape(len(x), -1)`` take the draws for something else, often without an error. Therefore :func:`broadcasts` compares
two different draws of one pass with the same draws in single runs, and :func:`runs` draws one by one where they differ.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from inspect import getclosurevars
from types import FunctionType, MethodType
from typing import TypeVar
from weakref import WeakKeyDictionary

import pyro
import torch
from pyro import poutine
from pyro.distributions import Delta
from pyro.distributions.util import scale_and_mask
from pyro.poutine.messenger import Messenger
from pyro.poutine.subsample_messenger import SubsampleMessenger
from pyro.poutine.trace_messenger import TraceMessenger
from pyro.poutine.trace_struct import Trace as PyroTrace
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn

from pyro_attention._checks import broadcasts_to
from pyro_attention._compat import active_handlers, handlers_around
from pyro_attention._typing import Message, Model, Trace
from pyro_attention.alignments.base import AlignmentDistribution
from pyro_attention.families.distribution import LogWeights
from pyro_attention.guide import DRAWS, is_deterministic
from pyro_attention.replayed_runs import WithoutNoise, untouched

__all__ = [
    "REMEDY",
    "AllDraws",
    "BroadcastWarning",
    "LatentValues",
    "Minibatch",
    "Replayed",
    "SharedDraws",
    "broadcast_notes",
    "broadcasts",
    "first_line",
    "forget_replays",
    "is_due",
    "is_point_mass",
    "kind_of_handlers",
    "look_when_due",
    "modes",
    "replay",
    "runs",
]

Result = TypeVar("Result")
REMEDY = (
    "count dimensions from the right ([..., 0, :] for [0], mean(-2) for mean(1), flatten(-2) for flatten(1)) and keep "
    "the attention inside the plates of its observations"
)


class BroadcastWarning(UserWarning):
    """Warning that a model does not broadcast over draws at the left, so that its draws are made one by one."""


# Several draws


class SharedDraws(pyro.plate):
    """Plate of the draws; a point mass, such as soft attention, is equal in all of them and not repeated."""

    def _process_message(self, msg: Message) -> None:
        if msg["type"] == "sample" and not msg["is_observed"] and is_point_mass(msg["fn"]):
            SubsampleMessenger._process_message(self, msg)  # which does not broadcast
        else:
            super()._process_message(msg)


class AllDraws(pyro.plate):
    """Plate of the draws of a plain guide, which also holds replayed sites, which Pyro's plate leaves alone."""

    def _process_message(self, msg: Message) -> None:
        done, msg["done"] = msg["done"], False
        super()._process_message(msg)
        msg["done"] = done


class Minibatch(Messenger):
    """Handler that repeats in all later runs the indices that subsampled plates drew in the first run.

    Example:
        >>> def model():
        ...     with pyro.plate("data", 100, subsample_size=3) as indices:
        ...         return indices.tolist()
        >>> same = Minibatch()
        >>> with same:
        ...     first = model()
        >>> with same:
        ...     model() == first
        True
    """

    def __init__(self) -> None:
        super().__init__()
        self.indices: dict[str, Tensor] = {}

    def _pyro_sample(self, msg: Message) -> None:
        if msg["value"] is None and msg["name"] in self.indices:
            msg["value"] = self.indices[msg["name"]]

    def _pyro_post_sample(self, msg: Message) -> None:
        if site_is_subsample(msg) and msg["value"] is not None and len(msg["value"]) < msg["fn"].size:
            self.indices.setdefault(msg["name"], msg["value"])


def runs(
    run: Callable[[], Result],
    count: int,
    *,
    together: bool,
    nesting: int,
    minibatch: Minibatch,
    plate: type[pyro.plate] = SharedDraws,
) -> Iterator[tuple[Result, int | None]]:
    """Run a model for several draws, all of one minibatch.

    Args:
        run: One run of the model and its guide.
        count: Number of draws.
        together: Make them in one pass, as :func:`broadcasts` allows; a single draw has no plate.
        nesting: Number of nested plates of the model, to the left of which the draws are.
        minibatch: Handler of the indices of subsampled plates.
        plate: Class of the plate of the draws.

    Yields:
        The result of a run, and the number of its draws, None for a single draw without a plate.
    """
    if together and count > 1:
        try:
            with minibatch, plate(DRAWS, count, dim=-1 - nesting):
                result = run()
        except Exception as error:
            error.add_note(f"This pass has {count} draws at the left of the plates. If single draws work, {REMEDY}.")
            raise
        yield result, count
        return
    for _ in range(count):
        with minibatch:
            result = run()
        yield result, None


# Whether a model broadcasts


@dataclass
class _Record:
    """Number of calls of one kind, and the reason why their draws go one by one, or None."""

    calls: int = 0
    reason: str | None = None


_RECORDS: WeakKeyDictionary[object, dict[Hashable, _Record]] = WeakKeyDictionary()  # of guides, by the kind of call


@dataclass(frozen=True)
class Replayed:
    """Record of a run that a replay compares.

    Attributes:
        traces: Traces of model and guide, with every observed and latent site.
        output: Return value of the model; None if it is not compared.
    """

    traces: Sequence[Trace]
    output: object = None


def broadcasts(
    guide: Model,
    model: Model,
    kind: Hashable,
    run: Callable[[], Replayed],
    *,
    nesting: int,
    plate: type[pyro.plate] = SharedDraws,
) -> bool:
    """Return whether draws of a model may share a pass; warn, once, where they may not.

    The first, 10th, 100th, ... call of a kind makes one more pass to compare them (:func:`replay`). Draws that have
    differed once go one by one from then on. Calls below other handlers, or below handlers that name other sites, are
    of another kind (:func:`kind_of_handlers`).

    Args:
        guide: The guide, with or without handlers around it.
        model: Its model.
        kind: Kind of the call: a model may broadcast in some and not in others, as with statistics of a batch.
        run: One run of guide and model.
        nesting: Number of nested plates of the model.
        plate: Class of the plate of the draws.
    """
    kind = kind, plate, modes(model), kind_of_handlers(guide)
    reason, is_new = look_when_due(guide, kind, partial(replay, run, nesting, plate))
    if reason is not None and is_new:
        warnings.warn(_note(reason), BroadcastWarning, stacklevel=2)
    return reason is None


def look_when_due(owner: Model, kind: Hashable, look: Callable[[], str | None]) -> tuple[str | None, bool]:
    """Return why calls of a kind may not share a pass, or None, and whether this call has found it.

    Args:
        owner: Guide or model of the calls.
        kind: Kind of the calls.
        look: Function that returns the reason or None; called in the first, 10th, 100th, ... call, until it returns
            one.
    """
    record = _RECORDS.setdefault(_owner(owner), {}).setdefault(kind, _Record())
    record.calls += 1
    if record.reason is not None or not is_due(record.calls):
        return record.reason, False
    record.reason = look()
    return record.reason, True


def kind_of_handlers(guide: Model) -> Hashable:
    """Return the types of the handlers around a guide and around the call, with the names of sites in their settings.

    Handlers decide which sites are drawn (``poutine.condition``), and which of them the plate of the draws reaches
    (``poutine.block``). Handlers of the same kind that are made anew for every call compare equal.
    """
    # tracers only record, more from call to call
    handlers = [
        handler for handler in [*active_handlers(), *handlers_around(guide)] if type(handler) is not TraceMessenger
    ]
    return tuple((type(handler), _names_in([*getattr(handler, "__dict__", {}).values()])) for handler in handlers)


def _names_in(setting: object, depth: int = 3) -> Hashable:
    """Return the names of sites in a setting of a handler, and the code of its functions, but no numbers.

    Args:
        setting: Attribute of a handler, such as the ``data`` of ``poutine.condition`` or a ``hide_fn``.
        depth: Number of functions within functions that are looked into, as one may hold itself.
    """
    if isinstance(setting, str | bool):
        return setting
    if isinstance(setting, PyroTrace):
        return tuple(setting.nodes)
    if isinstance(setting, Mapping | list | tuple | set | frozenset):  # of a mapping, its keys
        return tuple(_names_in(entry, depth) for entry in setting)
    if isinstance(setting, partial) and depth:
        return _names_in([setting.func, setting.args, [*setting.keywords.values()]], depth - 1)
    if isinstance(setting, FunctionType) and depth:
        variables = [*getclosurevars(setting).nonlocals.values(), *(setting.__defaults__ or ())]
        return setting.__code__, _names_in(variables, depth - 1)
    return str(type(setting))


def is_due(calls: int) -> bool:
    """Return whether a call is one of those that are replayed: the first, 10th, 100th and so on."""
    return str(calls).rstrip("0") == "1"


def broadcast_notes(guide: Model) -> list[str]:
    """Return the warnings about draws of a guide that go one by one."""
    records = _RECORDS.get(_owner(guide), {}).values()
    return list(dict.fromkeys(_note(record.reason) for record in records if record.reason is not None))


def _note(reason: str) -> str:
    return (
        f"the model does not broadcast over draws at the left of its plates: {reason}; draws go one by one, with the "
        f"numbers of single runs; for draws in one pass, {REMEDY}"
    )


def forget_replays(owner: Model) -> None:
    """Forget earlier replays, so that the next calls with a guide or a model are replayed again."""
    _RECORDS.pop(_owner(owner), None)


def _owner(function: object) -> object:
    """Return the object behind a guide or model, which lives as long; a bound method is a new object every time."""
    inner = poutine.unwrap(function) if callable(function) else function
    function = inner if callable(inner) else function  # a partial function that is no handler
    return function.__self__ if isinstance(function, MethodType) else function


def modes(model: Model) -> int:
    """Return the number of modules of a model in training mode, where they may read the statistics of their batch."""
    return sum(module.training for root in _modules(_owner(model)) for module in root.modules())


def _modules(model: object) -> Iterator[nn.Module]:
    """Yield a model that is a module, or the modules among arguments, closure and globals of a function."""
    if isinstance(model, nn.Module):
        yield model
    elif isinstance(model, partial):
        for part in (model.func, *model.args, *model.keywords.values()):
            yield from _modules(_owner(part))
    elif isinstance(model, FunctionType):
        names = model.__code__.co_names
        variables = [*getclosurevars(model).nonlocals.values(), *map(model.__globals__.get, names)]
        yield from (variable for variable in variables if isinstance(variable, nn.Module))


def replay(run: Callable[[], Replayed], nesting: int, plate: type[pyro.plate] = SharedDraws) -> str | None:
    """Compare two different draws in one pass with the same draws in single runs.

    Compared are the log probabilities of all observed and latent sites, the values of point masses, and the output, up
    to 0.001 nats and one part in a thousand (0.03 where anything is computed in half precision, as under autocast).
    Dropout and other noise of the model, which a pass shares, are switched off, and the buffers of modules, such as
    running statistics, and the state of the random generators are as before.

    Args:
        run: One run of the guide, or of guide and model.
        nesting: Number of nested plates of the model.
        plate: Class of the plate of the draws.

    Returns:
        The difference, as a clause of a message; None without a difference.
    """
    noise, minibatch = WithoutNoise(), Minibatch()

    def look(values: dict[str, Tensor] | None, around: AbstractContextManager[object]) -> tuple[Replayed, LatentValues]:
        at = LatentValues(noise, values)
        with noise, minibatch, at, around:
            return run(), at

    with untouched(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the run that counts says it
        (first_run, first_draw), (second_run, second_draw) = (look(None, nullcontext()) for _ in range(2))
        for name, value in first_draw.drawn.items():
            if type(value) is not Tensor:
                return f"site '{name}' holds no numbers that could be compared (MultiheadAttention does)"
        try:
            first, second = _quantities(first_run), _quantities(second_run)
            count = _unused_size([*first.values(), *second.values()])
            values = {
                name: _in_turn(value, second_draw.drawn[name], nesting - first_draw.dims[name], count)
                for name, value in first_draw.drawn.items()
                if name in second_draw.drawn
            }
            with pyro.validation_enabled(False):
                together = _quantities(look(values, plate(DRAWS, count, dim=-1 - nesting))[0])
        except Exception as error:
            return f"a pass of several draws raised {type(error).__name__} ({first_line(error)})"
        return _first_difference(first, second, together, nesting, count, noise)


def first_line(error: Exception) -> str:
    """Return the first line of the message of an error."""
    return next(iter(str(error).strip().splitlines()), "no message")


def _unused_size(quantities: Sequence[_Quantity]) -> int:
    """Return the least number of draws that no dimension has by chance."""
    sizes = {size for quantity in quantities for size in quantity.value.shape}
    return next(count for count in range(2, len(sizes) + 3) if count not in sizes)


def _in_turn(first: Tensor, second: Tensor, missing: int, count: int) -> Tensor:
    """Return two draws in turn, ``[count, ...]``, with dimensions of size one for plates that they are not in."""
    stacked = torch.stack([second if index % 2 else first for index in range(count)])
    return stacked.reshape(count, *[1] * missing, *first.shape)


@dataclass(frozen=True)
class _Quantity:
    """Quantity of a run that is compared.

    Attributes:
        what: Its name, for a message.
        value: Its values, ``[*plates, *event]``.
        event_dim: Number of dimensions at the right that are no plates.
        repeated: Whether a pass of several draws has it for each of them, even where it is the same.
    """

    what: str
    value: Tensor
    event_dim: int = 0
    repeated: bool = True


def _quantities(replayed: Replayed) -> dict[Hashable, _Quantity]:
    """Return the quantities of a run that are compared, by site."""
    compared: dict[Hashable, _Quantity] = {}
    point_masses = {
        name
        for trace in replayed.traces
        for name, site in trace.nodes.items()
        if site["type"] == "sample" and not site["is_observed"] and is_point_mass(site["fn"])
    }
    for index, trace in enumerate(replayed.traces):
        for name, site in trace.nodes.items():
            if site["type"] != "sample" or site_is_subsample(site) or is_deterministic(site):
                continue
            if name not in point_masses:
                compared |= {(index, name, kind): log_prob for kind, log_prob in _log_probs(site).items()}
            elif is_point_mass(site["fn"]):  # else it is the prior of a point mass, in the trace of the model
                event_dim = site["value"].dim() - len(site["fn"].batch_shape)
                what = f"the value of site '{name}'"
                compared[index, name] = _Quantity(what, site["value"], event_dim, repeated=False)
    if isinstance(replayed.output, Tensor):
        compared["output"] = _Quantity("the output", replayed.output, replayed.output.dim())
    return compared


def _log_probs(site: Message) -> dict[str, _Quantity]:
    """Return the log probability of a site, and that under its prior, by the word that tells them apart."""
    densities = {"": site["fn"], "prior ": site["infer"].get("prior")}
    log_probs = {}
    for kind, density in densities.items():
        if density is not None and not is_point_mass(density):
            log_prob = torch.as_tensor(scale_and_mask(density.log_prob(site["value"]), mask=site["mask"]))
            log_probs[kind] = _Quantity(f"the {kind}log probability of site '{site['name']}'", log_prob)
    return log_probs


def _first_difference(
    first: dict[Hashable, _Quantity],
    second: dict[Hashable, _Quantity],
    together: dict[Hashable, _Quantity],
    nesting: int,
    count: int,
    noise: WithoutNoise,
) -> str | None:
    """Describe the first difference between a pass of several draws and single runs; None where they agree.

    Args:
        first: Quantities of a single run.
        second: Those of another one.
        together: Those of a pass of both draws in turn.
        nesting: Number of nested plates of the model.
        count: Number of draws of the pass.
        noise: Mode of all these runs.
    """
    if not first.keys() == second.keys() == together.keys():
        return "its sites are others with another draw, or in a pass of several draws"
    for key, quantity in first.items():
        plates = 0 if key == "output" else nesting
        outer_dims = quantity.value.dim() - quantity.event_dim
        if quantity.value.shape != second[key].value.shape or outer_dims > plates:
            shape = tuple(quantity.value.shape)
            return f"{quantity.what} has shape {shape} in a single run, with dimensions left of its {nesting} plates"
        expected = _in_turn(quantity.value, second[key].value, plates - outer_dims, count)
        difference = _difference(quantity, together[key].value, expected, plates, noise)
        if difference is not None:
            return difference
    return None


def _difference(single: _Quantity, together: Tensor, expected: Tensor, plates: int, noise: WithoutNoise) -> str | None:
    """Describe how a quantity of a pass of several draws differs from that of single runs; None where it does not.

    Args:
        single: Quantity of a single run.
        together: Its values in the pass.
        expected: Values of single runs of the same draws, ``[count, *plates, *event]``.
        plates: Number of plates that the quantity may lie in.
        noise: Mode of all these runs.
    """
    shape = tuple(single.value.shape)
    is_shared = not single.repeated and together.dim() - single.event_dim <= plates
    if is_shared and broadcasts_to(together.shape, expected.shape):
        together = together.expand_as(expected)
    if together.shape != expected.shape:
        return (
            f"{single.what} has shape {tuple(together.shape)} for {len(expected)} draws in one pass, expected "
            f"{tuple(expected.shape)} as of single runs {shape}"
        )
    if noise.is_close(together, expected):
        return None
    worst = (together - expected).abs().nan_to_num(torch.inf).argmax()
    return (
        f"{single.what}, of shape {shape}, is {together.flatten()[worst].item():.5g} with several draws in one pass "
        f"and {expected.flatten()[worst].item():.5g} in a single run"
    )


class LatentValues(Messenger):
    """Handler around a guide that draws latent sites, with additional noise, or sets their values.

    Two draws differ however narrow the posterior is: positive weights have additional noise, and keys are drawn
    uniformly among the possible ones.
    """

    def __init__(self, noise: WithoutNoise, values: dict[str, Tensor] | None = None) -> None:
        super().__init__()
        self.noise, self.values = noise, values
        self.drawn: dict[str, Tensor] = {}
        self.dims: dict[str, int] = {}  # of the plates of each site

    def _pyro_sample(self, msg: Message) -> None:
        if msg["is_observed"] or msg["value"] is not None or site_is_subsample(msg):
            return
        fn = msg["fn"]
        if self.values is not None:
            msg["value"] = self.values.get(msg["name"])
            return
        with self.noise.paused():
            value = fn(*msg["args"], **msg["kwargs"])
            if isinstance(fn, LogWeights) and type(value) is Tensor:  # a blocked value has no storage
                value = value + torch.randn_like(value)
            elif isinstance(fn, AlignmentDistribution):
                value = fn.uniform().sample()
        msg["value"] = value
        if not is_point_mass(fn):
            self.drawn[msg["name"]], self.dims[msg["name"]] = value, len(fn.batch_shape)


def is_point_mass(q: object) -> bool:
    """Return whether a distribution is a Delta, transformed or not."""
    while hasattr(q, "base_dist") and not isinstance(q, Delta):
        q = q.base_dist
    return isinstance(q, Delta)
