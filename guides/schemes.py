"""Schemes and normalizers by the names of the commands, from the options of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal, get_args

from guides.names import AblationSchemeName, NormalizerName, ObjectiveName, PriorName, SchemeName
from pyro_attention import Hybrid, scheme
from pyro_attention.normalizers import NORMALIZERS, Normalizer
from pyro_attention.over_queries import Sinkhorn
from pyro_attention.schemes import Scheme

__all__ = ["Scheme", "build_normalizer", "build_scheme"]

# commands and published tables name these schemes by the way their alignments are trained
_LIBRARY_NAMES = {"categorical_enum": "categorical", "hard_enum": "hard", "sparse_enum": "sparse_categorical"}


def build_scheme(
    name: SchemeName | AblationSchemeName,
    *,
    prior: PriorName = "contextual",
    kl_weight: float | Callable[[int], float] = 1.0,
    concentration: float = 10.0,
    scale: float = 0.1,
    prior_rate: float = 1.0,
    prior_scale: float = 1.0,
    learnable: bool = False,
    objective: ObjectiveName = "elbo",
    draws: int = 16,
    learned_width: bool = False,
    temperature: float = 0.5,
    particles: int = 5,
    top_k: int | None = None,
    roulette: float = 0.0,
    plates: int = 2,
) -> Scheme:
    """Build a scheme of the library (:func:`pyro_attention.scheme`) from all options of a run.

    The options are those of :class:`guides.options.AlignmentSchemeOptions`; options that the scheme does not have are
    ignored. ``kl_weight`` may also be a schedule. ``plates`` is the number of nested plates, which the objective would
    otherwise find by another run of the model.

    Raises:
        ValueError: The name is unknown, or an option is out of range.

    Example:
        >>> build_scheme("weibull", concentration=5.0).family
        Weibull(concentration=5.0)
        >>> build_scheme("categorical_enum").amortized
        True
    """
    names: tuple[str, ...] = get_args(SchemeName) + get_args(AblationSchemeName)
    if name not in names:
        raise ValueError(f"unknown inference scheme '{name}'; expected one of {', '.join(names)}")
    options: dict[str, Any]
    library_name = _LIBRARY_NAMES.get(name, name)
    if name in ("weibull", "lognormal", "gamma") and objective == "evidence":
        width: Literal["network", "number", "fixed"] = "fixed"
        if learned_width or learnable:
            width = "network" if learned_width else "number"
        initial = scale if name == "lognormal" else concentration
        library_name, options = "evidence", {"family": name, "width": width, "initial": initial, "draws": draws}
    elif name in ("weibull", "gamma"):
        options = {"concentration": concentration, "prior_rate": prior_rate}
    elif name in ("lognormal", "gaussian"):
        options = {"scale": scale, "prior_scale": prior_scale}
    elif name in ("marginal", "hard_enum", "categorical_enum"):
        options = {"roulette": roulette}
    elif name in ("sparse_marginal", "sparse_enum"):
        options = {"roulette": roulette, "top_k": top_k}
    elif name in ("wake_sleep", "iwae"):
        options = {"particles": particles}
    elif name == "gumbel":
        options = {"temperature": temperature, "kl_weight": kl_weight}
    elif name in ("categorical_sample", "dirichlet"):
        options = {"kl_weight": kl_weight}
    else:
        options = {}
    if "prior_rate" in options or "prior_scale" in options:
        options |= {"prior": prior, "learnable": learnable, "kl_weight": kl_weight}
    built = scheme(library_name, **options)  # type: ignore[arg-type]
    return replace(built, objective=partial(built.objective, max_plate_nesting=plates))


def build_normalizer(name: NormalizerName, heads: int, *, initial: float = 0.5, sweeps: int = 5) -> Normalizer:
    """Build a normalizer by its name.

    Args:
        name: The name.
        heads: Number of heads of the attention.
        initial: Initial share of doubly normalized attention in hybrid attention.
        sweeps: How many times sinkhorn normalizes over the queries and over the keys; doubly_normalized does so once.

    Example:
        >>> build_normalizer("sinkhorn", 2, sweeps=3)
        Sinkhorn(3)
    """
    if name == "hybrid":
        return Hybrid(heads, initial=initial)
    return Sinkhorn(sweeps) if name == "sinkhorn" else NORMALIZERS[name]()
