"""Runs of a replay: without noise, and without anything left of them afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from pyro_attention._compat import DROPOUT, below, handlers_but_tracers

if TYPE_CHECKING:
    from torch._ops import OpOverload

__all__ = ["WithoutNoise", "untouched"]


class WithoutNoise(TorchDispatchMode):
    """Mode in which dropout keeps everything, and other noise is a constant, whatever the shape.

    It notes whether anything is computed in half precision.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_paused = self._in_half_precision = False

    def is_close(self, value: Tensor, expected: Tensor) -> bool:
        """Return whether numbers that were computed in the mode are the same, up to rounding.

        The tolerance, absolute and relative, is larger where anything was computed in half precision, as under
        autocast.
        """
        if value.is_meta:  # which has a shape alone
            return True
        if not value.is_floating_point():
            return torch.equal(value, expected)
        tolerance = 0.03 if self._in_half_precision else 1e-3
        return torch.allclose(value.double(), expected.double(), rtol=tolerance, atol=tolerance, equal_nan=True)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Draw as usual inside the context."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def __torch_dispatch__(
        self,
        func: OpOverload[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        result = self._without_noise(func, args, kwargs or {})
        # log probabilities are float32, whatever the products below them are
        self._in_half_precision |= isinstance(result, Tensor) and result.dtype in (torch.bfloat16, torch.float16)
        return result

    def _without_noise(self, func: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        if self._is_paused or torch.Tag.nondeterministic_seeded not in getattr(func, "tags", ()):
            return func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if name == "native_dropout":
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        args, kwargs = _without_dropout(func, args, kwargs)
        result = func(*args, **kwargs)
        if name == "bernoulli_":
            return result.copy_(args[1]) if isinstance(args[1], Tensor) else result.fill_(args[1])
        if name == "bernoulli":
            return args[0].clone() if len(args) == 1 else torch.full_like(args[0], args[1])
        if name in _NOISE:
            return result.fill_(0.5) if result.is_floating_point() else result
        return result


def _without_dropout(
    func: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a function with a dropout probability of zero, as attention of a device has one."""
    for index, argument in enumerate(func._schema.arguments):
        if argument.name in ("dropout", "dropout_p") and index < len(args):
            args = *args[:index], 0.0, *args[index + 1 :]
        elif argument.name in ("dropout", "dropout_p") and argument.name in kwargs:
            kwargs = {**kwargs, argument.name: 0.0}
    return args, kwargs


_NOISE = {"rand", "rand_like", "randn", "randn_like", "normal", "normal_", "uniform", "uniform_", "exponential_"}


@contextmanager
def untouched() -> Iterator[None]:
    """Keep random generators, buffers of modules, such as running statistics, and traces around it as they are.

    Dropout modules rest.
    """
    buffers: dict[int, tuple[Tensor, Tensor]] = {}
    resting: list[nn.Module] = []

    def keep(module: nn.Module, _: object) -> None:
        for buffer in module.buffers(recurse=False):
            if id(buffer) not in buffers and not buffer.is_inference() and not buffer.is_meta:
                buffers[id(buffer)] = buffer, buffer.detach().clone()
        if isinstance(module, DROPOUT) and module.training:
            module.training = False
            resting.append(module)

    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices), below(handlers_but_tracers()):
        handle = register_module_forward_pre_hook(keep)
        try:
            yield
        finally:
            handle.remove()
            for module in resting:
                module.training = True
            _restore(buffers.values())


@torch.no_grad()
def _restore(buffers: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Give buffers the values that they had before; those that have them still are left alone."""
    for buffer, before in buffers:
        if not torch.equal(buffer, before):  # not by its version: running statistics change without a new one
            buffer.copy_(before)
