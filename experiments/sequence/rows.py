"""Rows of comparisons of networks that write sentences: inference schemes by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from guides.options import AMORTISED, WEIGHTS

__all__ = ["scheme_rows"]


def scheme_rows(
    schemes: Iterable[str], *, kl_weight: float = 0.01, warm_start: int = 0, going_on: bool = False, **options: Any
) -> dict[str, Mapping[str, Any]]:
    """Options of some inference schemes.

    Args:
        schemes: Their names.
        kl_weight: Weight of the KL of unnormalised weights.
        warm_start: Epochs of dirichlet at first without its inference network, which then starts at q = p, as it is
            untrained.
        going_on: Whether they go on from another network: all inference networks then start at q = p.
        options: What all have.

    Example:
        >>> scheme_rows(["soft", "weibull", "dirichlet"], warm_start=2)["dirichlet"]
        {'guide': 'dirichlet', 'warm_start': 2, 'posterior_from_prior': True}
    """
    rows = dict[str, Mapping[str, Any]]()
    for scheme in schemes:
        row: dict[str, Any] = {"guide": scheme, **options}
        if scheme in WEIGHTS:
            row["kl_weight"] = kl_weight
        warm = scheme == "dirichlet" and warm_start > 0
        if warm:
            row["warm_start"] = warm_start
        if warm or (going_on and scheme in AMORTISED):
            row["posterior_from_prior"] = True
        rows[scheme] = row
    return rows
