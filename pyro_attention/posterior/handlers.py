"""What stands around the passes of posterior sampling: modes, seeds and an early end."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from pyro_attention.families.distribution import AttentionDistribution

__all__ = ["AtMean", "dropout_mode", "seeded", "stop_after"]


class AtMean(Messenger):
    """Sets every attention weight to its posterior mean, and other sites to given values; stands outside the guide."""

    def __init__(self, values: Mapping[str, Tensor] | None = None) -> None:
        super().__init__()
        self.values = {} if values is None else values

    def _pyro_sample(self, msg: Any) -> None:
        if not msg["is_observed"] and isinstance(msg["fn"], AttentionDistribution):
            msg["value"] = msg["fn"].mean_value
        elif msg["name"] in self.values:
            msg["value"] = self.values[msg["name"]]


class _Enough(BaseException):
    """Ends a pass; no Exception, which a model might catch."""


class _Last(Messenger):
    def __init__(self, names: Collection[str]) -> None:
        super().__init__()
        self.missing = set(names)

    def _pyro_sample(self, msg: Any) -> None:
        self.missing.discard(msg["name"])
        if not self.missing:
            # Pyro calls it after all handlers, so the guide's trace has this site, too
            msg["continuation"] = self._stop

    @staticmethod
    def _stop(_: Any) -> None:
        raise _Enough


@contextmanager
def stop_after(names: Collection[str]) -> Iterator[None]:
    """End what runs inside as soon as all of these sites have their values; what follows them is not computed."""
    with suppress(_Enough), _Last(names):
        yield


@contextmanager
def dropout_mode(active: bool) -> Iterator[None]:
    """Evaluation mode for every module that runs, except dropout when it is to be sampled.

    A hook on all modules also reaches those that a plain model function holds in its closure. The first call of a
    module sets what is inside it, too, as a layer may read the mode of a dropout that it does not call.
    """
    before: dict[nn.Module, bool] = {}

    def set_mode(module: nn.Module, _: Any) -> None:
        for part in [module] if module in before else module.modules():
            before.setdefault(part, part.training)
            is_dropout = isinstance(part, nn.modules.dropout._DropoutNd)
            part.training = active and (is_dropout or isinstance(getattr(part, "dropout", None), float))

    handle = register_module_forward_pre_hook(set_mode)
    try:
        yield
    finally:
        handle.remove()
        for module, training in before.items():
            module.training = training


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Seed torch's generators inside the context and restore them after it; nothing when the seed is None.

    Example:
        >>> with seeded(0):
        ...     first = torch.rand(1)
        >>> with seeded(0):
        ...     bool(first == torch.rand(1))
        True
    """
    if seed is None:
        yield
        return
    # every other device's generator too would draw a warning where there are many
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield
