"""The value of a blocked attention site: log weights as posterior and seed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from pyro_attention.ops.counter_noise import CounterNoise

if TYPE_CHECKING:
    from pyro_attention.distributions.blocked import BlockedPosterior

__all__ = ["BlockedValue", "rows_of"]

_LARGEST = 2**27  # entries that are put together on request: half a gigabyte in float32


class BlockedValue(Tensor):
    """``log S`` of a site ``[..., H, M, N]`` as posterior and seed: a tensor without storage.

    It has a shape, a dtype and a device, and can be detached; every other operation raises. :meth:`window` gives the
    numbers of some queries.

    Args:
        posterior: Distribution it is drawn from.
        seed: Seed of the noise; None for none, which is the posterior mean.

    Example:
        >>> from pyro_attention import AttentionGuide, MultiheadAttention, Weibull
        >>> layer = MultiheadAttention(8, 2, implementation="blocked")
        >>> guide = AttentionGuide(lambda x: layer(x, x, x, need_weights=False).context, Weibull())
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
        """``log S`` of some queries, ``[..., H, R, N]``, with gradients."""
        posterior = self.posterior
        shape = posterior.full_shape
        kind, _ = posterior.noise()
        if kind is None or self.seed is None:
            return posterior.pairs.scores(rows).expand(*shape[:-2], -1, -1)
        table = CounterNoise(kind, self.seed, (shape[:-2].numel(), *shape[-2:]), device=self.device)
        noise = table.block(slice(None), rows, slice(None), dtype=self.dtype)
        value: Tensor = posterior.window(rows).from_noise(noise.unflatten(0, shape[:-2]))  # type: ignore[attr-defined]
        return value

    def dense(self) -> Tensor:
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

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if func is torch.ops.aten.detach.default:
            return cls(args[0].posterior.detach(), args[0].seed)
        value = next(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, cls))
        raise RuntimeError(
            f"{func} on the log weights of site '{value.posterior.site}', which blocked attention does not hold: "
            f"materialise first, some queries by value.window(rows), or draw weights by "
            f"pyro_attention.sample_posterior (in place of Pyro's Predictive); "
            f"MultiheadAttention(implementation='dense') holds them all"
        )


def rows_of(value: Tensor, rows: slice) -> Tensor:
    """Some queries of a value, blocked or in memory."""
    return value.window(rows) if isinstance(value, BlockedValue) else value[..., rows, :]
