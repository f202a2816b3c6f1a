"""Posterior samples of attention weights for ArviZ."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from pyro_attention._typing import Message
from pyro_attention.edge_list import EdgeList
from pyro_attention.guide import AttentionGuide, is_attention_site
from pyro_attention.layout import Dense
from pyro_attention.posterior.passes import Run, seeded

__all__ = ["attention_dims", "to_arviz"]

_OF_ARVIZ = ("chain", "draw")  # dimensions that ArviZ puts ahead of those of a site


def to_arviz(
    samples: Mapping[str, Tensor],
    *,
    dims: Mapping[str, Sequence[str]] | None = None,
    coords: Mapping[str, Sequence[object]] | None = None,
) -> Any:  # InferenceData or DataTree, by the version of ArviZ
    """Hand samples to ArviZ as one chain of independent draws, the posterior group ``[1, S, ...]`` of each site.

    The draws of a guide are independent: an effective sample size of about S says nothing about the fit, and r-hat,
    which compares chains, has none to compare. The weights at padding are zero in all draws.

    Args:
        samples: ``[S, ...]`` of each site, as of ``sample_posterior``.
        dims: Names of the dimensions after S by site, such as ``{"attention": ["head", "target", "source"]}``;
            :func:`attention_dims` makes them for all sites, also those that are left out here. Numbered when omitted.
        coords: Labels by dimension, such as the words. ArviZ selects by label: make those that repeat unique.

    Returns:
        ``arviz.InferenceData``; of ArviZ 1, an ``xarray.DataTree``.

    Raises:
        ImportError: ArviZ is not installed.
        ValueError: No sites, a site without samples, sites with different numbers of them, dims that do not fit, one
            name for dimensions of different sizes, or a dimension called as ArviZ calls its own (``chain``, ``draw``)
            or as a site.

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
    named = {name: list(names) for name, names in (dims or {}).items() if name in samples}
    _check(samples, named)
    posterior = {name: tensor.detach().cpu().float().numpy()[None] for name, tensor in samples.items()}
    options = {  # None has ArviZ number the dimensions
        "dims": None if dims is None else named,
        "coords": None if coords is None else {name: list(labels) for name, labels in coords.items()},
    }
    # ArviZ 1 takes the groups as a mapping
    if int(arviz.__version__.partition(".")[0]) >= 1:
        return arviz.from_dict({"posterior": posterior}, **options)
    return arviz.from_dict(posterior=posterior, **options)


def attention_dims(guide: AttentionGuide, *args: object, **kwargs: object) -> dict[str, list[str]]:
    """Return names of the dimensions of all attention weights of a model, for :func:`to_arviz`; one pass of the model.

    Dimensions in a plate have its name, which sites share, with ``_plate`` behind it where ArviZ has a dimension of
    that name (``chain``, ``draw``). Heads, queries, keys and edges belong to one site each, as
    sites may have different numbers of them: ``layers.0_head``, ``layers.0_query``, ``layers.0_key``.

    Args:
        guide: The guide; its model is run.
        args: Arguments of the model.
        kwargs: Keyword arguments of the model.

    Returns:
        By site the names of the dimensions of its weights after S. Sites of a layout of one's own are left out.

    Raises:
        ValueError: The model has no attention site.

    Example:
        >>> import pyro
        >>> from pyro_attention import FixedGammaPrior, LatentAttention, Weibull
        >>> attention = LatentAttention("attention", FixedGammaPrior())
        >>> def model(scores, values):
        ...     with pyro.plate("sentences", len(scores)):
        ...         return attention(scores, values).context
        >>> guide = AttentionGuide(model, Weibull())
        >>> attention_dims(guide, torch.zeros(2, 1, 3, 4), torch.ones(2, 1, 4, 5))
        {'attention': ['sentences', 'attention_head', 'attention_query', 'attention_key']}
    """
    with torch.no_grad(), seeded(0):
        trace, _ = Run(guide, args, kwargs)()
    sites = {name: site for name, site in trace.nodes.items() if is_attention_site(site)}
    return {name: names for name, site in sites.items() if (names := _site_dims(name, site)) is not None}


def _site_dims(name: str, site: Message) -> list[str] | None:
    """Return the names of the dimensions of a site's weights; None where its layout is not known here."""
    prior = site["infer"]["prior"]
    if isinstance(prior.layout, EdgeList):
        event = ["edge", "head"]
    elif isinstance(prior.layout, Dense):
        event = ["head", "query", "key"] if prior.layout.event_dim == 3 else ["head", "key"]
    else:
        return None
    frames = site["cond_indep_stack"]
    plates = {frame.dim: f"{frame.name}_plate" if frame.name in _OF_ARVIZ else frame.name for frame in frames}
    batch = len(prior.full_shape) - len(event)
    outer = [plates.get(dim - batch, f"{name}_dim_{dim}") for dim in range(batch)]
    return outer + [f"{name}_{part}" for part in event]


def _check(samples: Mapping[str, Tensor], dims: Mapping[str, Sequence[str]]) -> None:
    """Raise ValueError where ArviZ would fill up with NaN, or mix up two dimensions of one name."""
    counts = {name: len(tensor) for name, tensor in samples.items()}
    if len(set(counts.values())) != 1 or 0 in counts.values():
        raise ValueError(f"samples have {counts or 'no sites'}, expected the same number of samples in every site")
    sizes: dict[str, int] = {}
    for site, names in dims.items():
        shape = tuple(samples[site].shape[1:])
        if len(names) != len(shape) or len(set(names)) < len(names):
            raise ValueError(
                f"dims of site '{site}' are {list(names)}, expected one name for each of the {len(shape)} dimensions "
                f"behind the samples, {shape}, and no name twice; attention_dims makes them"
            )
        for name, size in zip(names, shape, strict=True):
            _check_name(name, site, samples)
            if sizes.setdefault(name, size) != size:
                raise ValueError(
                    f"dimension '{name}' has size {size} in site '{site}' and {sizes[name]} before, expected one size "
                    f"a name; give them names of their own, as attention_dims does"
                )


def _check_name(name: str, site: str, sites: Collection[str]) -> None:
    """Raise ValueError where a dimension is called as ArviZ calls its own, or as a site."""
    if name in _OF_ARVIZ or name in sites:
        meaning = "a dimension" if name in _OF_ARVIZ else "a site"
        raise ValueError(
            f"dimension '{name}' of site '{site}' has the name of {meaning} in ArviZ, which would mix them up; give it "
            f"another name, such as '{name}_plate', as attention_dims does"
        )
