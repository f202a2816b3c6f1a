"""Private parts of PyTorch and Pyro that the library needs, for which there is no public equivalent.

A release that changes one of them breaks this module and its tests
(``tests/test_compat.py``), and no other. Tested with torch 2.7 to 2.15 and Pyro 1.9.1 and 1.9.2.

Besides these, objectives override methods of Pyro's ELBOs whose names begin with an underscore (``_get_trace``,
``_get_traces``, ``_guess_max_plate_nesting``), which Pyro documents for authors of ELBOs.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from pyro.infer import trace_mean_field_elbo, traceenum_elbo
from pyro.poutine import messenger, runtime
from pyro.poutine.trace_messenger import TraceMessenger
from torch import Tensor, nn
from torch.utils import _pytree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyro.poutine.messenger import Messenger

check_mean_field_requirement = trace_mean_field_elbo._check_mean_field_requirement
"""Raises unless a guide samples its sites in the order of the model, as TraceMeanField_ELBO needs."""

compute_dice_elbo = traceenum_elbo._compute_dice_elbo
"""The ELBO of TraceEnum_ELBO from the traces of one particle."""

tree_leaves = _pytree.tree_leaves
"""The tensors and other leaves in nested lists, tuples and mappings."""

DROPOUT = nn.modules.dropout._DropoutNd
"""The base of all dropout modules of torch, which has no public name."""

ordinary_torch_function = torch._C._disabled_torch_function_impl
"""What a tensor subclass assigns to ``__torch_function__`` to keep its type out of the results of operations."""


def active_handlers() -> list[Messenger]:
    """Return Pyro's effect handlers that are active, the outermost first."""
    return runtime._PYRO_STACK


def handlers_but_tracers() -> list[Messenger]:
    """Return the effect handlers that are active, but ``poutine.trace``, which would hold sites of two runs twice."""
    return [handler for handler in active_handlers() if type(handler) is not TraceMessenger]


@contextmanager
def below(handlers: Sequence[Messenger]) -> Iterator[None]:
    """Run what is inside below these handlers, the outermost first, and below no others."""
    before = list(runtime._PYRO_STACK)
    runtime._PYRO_STACK[:] = handlers
    try:
        yield
    finally:
        runtime._PYRO_STACK[:] = before


def handlers_around(wrapped: Callable[..., Any]) -> list[Any]:
    """Return what stands around a function, as ``poutine.unwrap`` takes it off, the outermost first."""
    if isinstance(wrapped, messenger._bound_partial):
        return handlers_around(wrapped.func)
    if isinstance(wrapped, partial) and len(wrapped.args) >= 2:
        return [wrapped.args[0], *handlers_around(wrapped.args[1])]
    return []


def with_handlers_of(wrapped: Callable[..., Any], inner: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function inside the handlers that stand around another one, as ``poutine.unwrap`` takes them off.

    Args:
        wrapped: A function, such as ``poutine.condition(guide, data)``.
        inner: The function that takes the place of the innermost one.
    """
    for handler in reversed(handlers_around(wrapped)):
        inner = handler(inner)
    return inner


def validates_distributions() -> bool:
    """Return whether torch validates the arguments of distributions (``Distribution.set_default_validate_args``)."""
    return bool(torch.distributions.Distribution._validate_args)


def is_in_backward_pass() -> bool:
    """Return whether this code runs inside a backward pass, as it does where a checkpoint computes anew."""
    return torch._C._current_graph_task_id() != -1


def is_mapped(tensor: Tensor) -> bool:
    """Return whether a tensor belongs to a transform of ``torch.func``, inside which it has no numbers."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def in_functorch() -> bool:
    """Return whether a transform of ``torch.func`` is active; ``vmap`` does not map over in-place random functions."""
    return torch._C._functorch.maybe_current_level() is not None


def standard_gamma(concentration: Tensor) -> Tensor:
    """Draw from Gamma(concentration, 1), with a pathwise gradient and without the clamp of ``torch.distributions``."""
    return torch._standard_gamma(concentration)


def wrapper_tensor(cls: type[Any], shape: torch.Size, *, dtype: torch.dtype, device: torch.device) -> Any:
    """Make a tensor of a subclass that has a shape, a dtype and a device, and no storage."""
    return Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
