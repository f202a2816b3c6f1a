"""Posterior samples of attention weights for ArviZ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from torch import Tensor

__all__ = ["to_arviz"]


def to_arviz(
    samples: Mapping[str, Tensor],
    *,
    dims: Mapping[str, Sequence[str]] | None = None,
    coords: Mapping[str, Sequence[Any]] | None = None,
) -> Any:
    """Hand samples to ArviZ as one chain of independent draws, the posterior group ``[1, S, ...]`` of each site.

    The draws of a guide are independent: an effective sample size of about S says nothing about the fit, and r-hat,
    which compares chains, has none to compare.

    Args:
        samples: ``[S, ...]`` of each site, as of ``sample_posterior``.
        dims: Names of the dimensions after S by site, such as ``{"attention": ["head", "target", "source"]}``.
        coords: Labels by dimension, such as the words. ArviZ selects by label: make those that repeat unique.

    Returns:
        ``arviz.InferenceData``; of ArviZ 1, an ``xarray.DataTree``.

    Raises:
        ImportError: ArviZ is not installed.
        TypeError: A site has no tensor.
        ValueError: No sites, a site without samples, sites with different numbers of them, NaN, or dims or coords that
            do not fit.

    Example:
        >>> import torch
        >>> samples = {"attention": torch.rand(100, 5, 7)}
        >>> data = to_arviz(samples, dims={"attention": ["target", "source"]})  # doctest: +SKIP
        >>> data.posterior.sizes  # doctest: +SKIP
        Frozen({'chain': 1, 'draw': 100, 'target': 5, 'source': 7})
    """
    try:
        arviz = import_module("arviz")
    except ImportError as error:
        raise ImportError("to_arviz needs ArviZ: pip install arviz") from error
    _check(samples, dims or {}, coords or {})
    posterior = {name: tensor.detach().cpu().float().numpy()[None] for name, tensor in samples.items()}
    options = {
        "dims": None if dims is None else {name: list(names) for name, names in dims.items()},
        "coords": None if coords is None else {name: list(labels) for name, labels in coords.items()},
    }
    # ArviZ 1 takes the groups as a mapping
    if int(arviz.__version__.partition(".")[0]) >= 1:
        return arviz.from_dict({"posterior": posterior}, **options)
    return arviz.from_dict(posterior=posterior, **options)


def _check(
    samples: Mapping[str, Tensor], dims: Mapping[str, Sequence[str]], coords: Mapping[str, Sequence[Any]]
) -> None:
    """Raise TypeError or ValueError unless samples, dims and coords fit each other."""
    for name, tensor in samples.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"site '{name}' has a {type(tensor).__name__}, expected a tensor [S, ...]")
        if tensor.isnan().any():
            raise ValueError(f"site '{name}' has {int(tensor.isnan().sum())} of {tensor.numel()} samples NaN")
        names = dims.get(name)
        if names is not None and len(names) != tensor.dim() - 1:
            raise ValueError(
                f"site '{name}' has shape {tuple(tensor.shape)} and dims {list(names)}, expected a name for each "
                f"dimension after the first, which holds the samples"
            )
    counts = {name: len(tensor) if tensor.dim() else 0 for name, tensor in samples.items()}
    if len(set(counts.values())) != 1 or 0 in counts.values():
        raise ValueError(f"samples have {counts or 'no sites'}, expected the same number of samples in every site")
    if unknown := sorted(dims.keys() - samples.keys()):
        raise ValueError(f"dims name {unknown}, expected sites among {list(samples)}")
    # ArviZ has names of its own for dimensions without one, and leaves out labels of those that it does not know
    own = {f"{name}_dim_{place}" for name, tensor in samples.items() for place in range(tensor.dim() - 1)}
    named = {name for names in dims.values() for name in names}
    if unknown := sorted(coords.keys() - own - named - {"chain", "draw"}):
        raise ValueError(f"coords label {unknown}, expected dimensions that dims name, {sorted(named)}")
