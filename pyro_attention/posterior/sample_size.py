"""How much memory one posterior sample takes, measured while a model runs."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pyro_attention.guide import is_attention_site

__all__ = ["SampleSize"]


class SampleSize(Messenger):
    """Measures the memory, ``bytes``, that a pass needs from its first attention site on; stands outside the guide.

    That is what many samples of one pass need many times; nothing ahead of that site is repeated. Samples run through
    the ``whole`` model, or else end at the last attention site.
    """

    def __init__(self, *, whole: bool) -> None:
        super().__init__()
        self.whole, self.bytes, self._tensors = whole, 0, _NewTensors()

    def finish(self, output: Any) -> None:
        """Add what becomes of the output: about three copies, in a transform and in statistics."""
        if self.whole:
            copies = 3 * output.nbytes if isinstance(output, Tensor) else 0
            self.bytes = max(self._tensors.most, self._tensors.now + copies)

    def __enter__(self) -> SampleSize:
        super().__enter__()
        self._tensors.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._tensors.__exit__(*error)
        super().__exit__(*error)

    def _pyro_sample(self, msg: Any) -> None:
        self._tensors.counting = self._tensors.counting or is_attention_site(msg)

    def _pyro_post_sample(self, msg: Any) -> None:
        if is_attention_site(msg):
            # normalisation takes about three copies
            self.bytes = max(self._tensors.most, self._tensors.now + 3 * msg["value"].nbytes)


class _NewTensors(TorchDispatchMode):
    """Bytes of the tensors that operations make while ``counting``: there now, and the most at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.counting, self.now, self.most = False, 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if self.counting:
            seen = {storage._cdata for storage in _storages((args, kwargs))}
            for storage in _storages(output):
                # a view, or an operation in place, makes nothing new
                if storage._cdata not in seen:
                    seen.add(storage._cdata)
                    self._add(storage.nbytes())
                    weakref.finalize(storage, self._add, -storage.nbytes())
        return output

    def _add(self, size: int) -> None:
        self.now += size
        self.most = max(self.most, self.now)


def _storages(tree: Any) -> list[Any]:
    leaves = (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor) and leaf.layout == torch.strided)
    # a subclass that answers every operation itself need not have a storage
    return [leaf.untyped_storage() for leaf in leaves if type(leaf).__torch_dispatch__ is Tensor.__torch_dispatch__]
