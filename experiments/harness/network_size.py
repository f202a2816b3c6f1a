"""A bound on the numbers of a network, which a configuration of a few bytes can make as large as it likes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from experiments.files import UserError

__all__ = ["MOST_NUMBERS", "MOST_TENSORS", "bounded_network"]

MOST_NUMBERS = 2**30  # of a network while it is built: 4 GiB in 32 bits
MOST_TENSORS = 100_000  # each takes some kilobytes, however small

_OPS = torch.ops.aten
# Which argument of an operation is the shape of what it makes.
_SHAPED = dict.fromkeys((_OPS.empty, _OPS.zeros, _OPS.ones, _OPS.full, _OPS.rand, _OPS.randn), 0)
_SHAPED |= dict.fromkeys((_OPS.new_empty, _OPS.new_zeros, _OPS.new_ones, _OPS.new_full), 1)
_COUNTED = {_OPS.arange}  # as many numbers as their largest argument


class bounded_network(TorchDispatchMode):  # noqa: N801 (a context, as torch.no_grad)
    """A context in which a network is built: UserError before it takes more than :data:`MOST_NUMBERS` numbers.

    Example:
        >>> with bounded_network():
        ...     torch.nn.Linear(2, 3)
        Linear(in_features=2, out_features=3, bias=True)
    """

    def __init__(self) -> None:
        super().__init__()
        self.numbers = self.tensors = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        operation = func.overloadpacket
        if operation in _SHAPED or operation in _COUNTED:
            shaped = operation in _SHAPED
            self.numbers += math.prod(args[_SHAPED[operation]]) if shaped else int(max(map(abs, args[:2])))
            self.tensors += 1
            if self.numbers > MOST_NUMBERS or self.tensors > MOST_TENSORS:
                raise UserError(
                    f"the network has more than {MOST_NUMBERS} numbers or {MOST_TENSORS} tensors (MOST_NUMBERS and "
                    f"MOST_TENSORS of experiments/harness/network_size.py); choose smaller sizes, or, where they are "
                    f"those of a config.yaml, look at it: it may be damaged"
                )
        return func(*args, **(kwargs or {}))
