"""Types that several modules share: messages and traces of Pyro, models, and contexts of autograd functions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypedDict

from pyro.poutine.indep_messenger import CondIndepStackFrame
from torch import Tensor

if TYPE_CHECKING:
    from pyro.distributions.score_parts import ScoreParts

Model: TypeAlias = Callable[..., object]
"""Pyro model or guide: a function or module, with or without effect handlers around it."""

Args: TypeAlias = Sequence[object]
"""Positional arguments of a model, which are only passed on."""

Kwargs: TypeAlias = Mapping[str, object]
"""Keyword arguments of a model, which are only passed on."""


Site: TypeAlias = Mapping[str, Any]
"""Message or node of a trace that is only read, of whatever type it is declared."""


class Message(TypedDict, total=False):
    """Message that Pyro passes to effect handlers, and node of a trace.

    It has the keys of ``pyro.poutine.runtime.Message``, so that either type is accepted for the other. Entries are of
    type ``Any`` where their type depends on the site: ``fn`` is a distribution, a plate or a function, ``value`` a
    tensor or the output of a model, and ``infer`` has keys of this library beside those of Pyro.
    """

    type: str
    name: Any  # a str at every site; Pyro declares it optional
    fn: Any
    is_observed: bool
    args: Any
    kwargs: Any
    value: Any
    scale: Any
    mask: bool | Tensor | None
    cond_indep_stack: tuple[CondIndepStackFrame, ...]
    done: bool
    stop: bool
    continuation: Any
    infer: Any
    obs: Tensor | None
    log_prob: Tensor
    log_prob_sum: Tensor
    unscaled_log_prob: Tensor
    score_parts: ScoreParts
    packed: Any
    _intervener_id: str | None


class PlateFrame(NamedTuple):
    """Vectorized plate that a site lies in.

    Attributes:
        name: Name of the plate.
        dim: Its batch dimension, negative.
        size: Number of its items in this run.
    """

    name: str
    dim: int
    size: int


class Trace(Protocol):
    """Trace of a run, of which Pyro's own class is an instance, with nodes of the type :class:`Message`."""

    nodes: OrderedDict[str, Message]

    def __contains__(self, name: str) -> bool: ...

    @property
    def observation_nodes(self) -> list[str]: ...

    @property
    def param_nodes(self) -> list[str]: ...

    @property
    def stochastic_nodes(self) -> list[str]: ...

    def iter_stochastic_nodes(self) -> Iterator[tuple[str, Message]]: ...

    def copy(self) -> Trace: ...

    def compute_log_prob(self, site_filter: Callable[[str, Message], bool] = ...) -> None: ...


class Context(Protocol):
    """Context of an autograd function, with attributes that ``forward`` sets for ``backward``."""

    saved_tensors: tuple[Any, ...]  # Tensor, or None where None was saved
    needs_input_grad: tuple[bool, ...]

    def save_for_backward(self, *tensors: Tensor | None) -> None: ...

    def mark_non_differentiable(self, *tensors: Tensor) -> None: ...

    def set_materialize_grads(self, value: bool) -> None: ...

    def __getattr__(self, name: str) -> Any: ...

    def __setattr__(self, name: str, value: object) -> None: ...
