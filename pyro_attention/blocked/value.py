"""The value of a blocked attention site: log weights as posterior and seed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from pyro_attention.blocked.ops.counter_noise import CounterNoise

if TYPE_CHECKING:
    from pyro_attention.blocked.distributions import BlockedPosterior

__all__ = ["BlockedValue", "rows_of"]

_LARGEST = 2**27  # entries that are put together on request: half a gigabyte in float32

# What torch does without asking __torch_dispatch__; "__set__" is that of requires_grad, data and grad.
_UNDISPATCHED = frozenset(
    (
        "__array__", "__bool__", "__complex__", "__dlpack__", "__float__", "__index__", "__int__", "__set__", "apply_",
        "backward", "data_ptr", "detach_", "is_nonzero", "item", "map_", "numpy", "requires_grad_", "storage", "tolist",
        "untyped_storage",
    )
)  # fmt: skip


class BlockedValue(Tensor):
    """``log S`` of a site ``[..., H, M, N]`` as posterior and seed: a tensor without storage.

    It has a shape, a dtype and a device, and can be detached; whatever would need or change its numbers raises.
    :meth:`window` gives the numbers of some queries, :meth:`to_dense` all of them.

    Args:
        posterior: Distribution it is drawn from.
        seed: Seed of the noise; None for none, which is the posterior mean.

    Example:
        >>> from pyro_attention import AttentionGuide, Weibull
        >>> from pyro_attention.blocked import BlockedMultiheadAttention
        >>> layer = BlockedMultiheadAttention(8, 2)
        >>> guide = AttentionGuide(lambda x: layer(x, x, x, need_weights=False)[0], Weibull())
        >>> value = guide(torch.randn(5, 8))["attention"]
        >>> value.shape, value.window(slice(1, 3)).shape
        (torch.Size([2, 5, 5]), torch.Size([2, 2, 5]))
    """

    posterior: BlockedPosterior
    seed: int | None

    @staticmethod
    def __new__(cls, posterior: BlockedPosterior, seed: int | None) -> BlockedValue:
        queries = posterior.pairs.queries
        dtype = torch.float64 if queries.dtype == torch.float64 else torch.float32
        value: BlockedValue = Tensor._make_wrapper_subclass(
            cls, posterior.full_shape, dtype=dtype, device=queries.device
        )
        value.posterior, value.seed = posterior, seed
        return value

    def window(self, rows: slice) -> Tensor:
        """``log S`` of some queries in a row, ``[..., H, R, N]``, with gradients.

        Raises:
            TypeError: ``rows`` is no slice.
            ValueError: It has a step other than 1.
        """
        posterior = self.posterior
        _check_rows(rows, posterior.site)
        shape = posterior.full_shape
        kind, _ = posterior.noise()
        if kind is None or self.seed is None:
            return posterior.pairs.scores(rows).expand(*shape[:-2], -1, -1)
        table = CounterNoise(kind, self.seed, (shape[:-2].numel(), *shape[-2:]), device=self.device)
        noise = table.block(slice(None), rows, slice(None), dtype=self.dtype)
        return posterior.draw_rows(rows, noise.unflatten(0, shape[:-2]))

    def to_dense(self) -> Tensor:  # type: ignore[override]
        """``log S`` of all queries.

        Raises:
            ValueError: It would take too much memory.
        """
        if self.numel() > _LARGEST:
            raise ValueError(
                f"site '{self.posterior.site}': weights of shape {tuple(self.shape)} would take "
                f"{4e-9 * self.numel():.1f} GB; read the log weights of some queries by value.window(rows)"
            )
        return self.window(slice(None))

    def attend(self, values: Tensor) -> Tensor:
        """Context ``[..., H, M, D]`` of the values ``[..., H, N, D]``."""
        return self.posterior.attend(self.seed, values)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"BlockedValue(shape={tuple(self.shape)}, seed={self.seed})"

    def __format__(self, spec: str) -> str:
        if spec:
            raise _not_held("__format__", self)
        return repr(self)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name in _UNDISPATCHED:
            raise _not_held(name, args, kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if func is torch.ops.aten.detach.default:
            return cls(args[0].posterior.detach(), args[0].seed)
        if all(value.seed is None for value in args if isinstance(value, cls)):  # a point mass, without noise
            if func is torch.ops.aten.expand.default:
                return cls(args[0].posterior.expand(args[1][:-3]), None)
            if func is torch.ops.aten.eq.Tensor:
                return torch.ones((), dtype=torch.bool, device=args[0].device).expand(args[0].shape)
        raise _not_held(func, args, kwargs)


def _not_held(operation: Any, *arguments: Any) -> RuntimeError:
    """The error of an operation that needs the numbers."""
    value = next(leaf for leaf in tree_leaves(arguments) if isinstance(leaf, BlockedValue))
    return RuntimeError(
        f"{operation} on the log weights of site '{value.posterior.site}', which blocked attention does not hold: "
        f"materialise first, some queries by value.window(rows), or draw weights by "
        f"pyro_attention.sample_posterior (in place of Pyro's Predictive); "
        f"MultiheadAttention holds them all"
    )


def _check_rows(rows: object, site: str) -> None:
    if not isinstance(rows, slice) or rows.step not in (None, 1):
        error = ValueError if isinstance(rows, slice) else TypeError
        raise error(
            f"site '{site}': rows are {rows!r}, expected a slice of queries with a step of 1 or None, such as "
            f"slice(3, 4) for one of them; index the result for any others, value.window(rows)[..., ::2, :]"
        )


def rows_of(value: Tensor, rows: slice) -> Tensor:
    """Some queries of a value, blocked or in memory."""
    return value.window(rows) if isinstance(value, BlockedValue) else value[..., rows, :]
