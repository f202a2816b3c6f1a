"""Rows of the papers' tables: their names, and the options of the scheme that each one has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Options = Mapping[str, Any]

ROWS: Mapping[str, Options] = {
    "soft": {"guide": "soft"},
    "no KL": {"guide": "weibull", "kl_weight": 0.0},
    "LF": {"guide": "lognormal", "prior": "fixed"},
    "LC": {"guide": "lognormal", "prior": "contextual"},
    "WF": {"guide": "weibull", "prior": "fixed"},
    "WC": {"guide": "weibull", "prior": "contextual"},
    "gamma": {"guide": "gamma", "prior": "contextual"},
    "evidence": {"guide": "lognormal", "objective": "evidence", "learned_width": True, "draws": 4, "scale": 0.5},
}
"""Of Fan et al. (2020), Bayesian Attention Modules, a Gamma posterior, and a width that the evidence learns."""

LEGEND = "L, W: LogNormal, Weibull posterior; F, C: fixed, contextual prior; no KL: Weibull without a prior term."
EVIDENCE = (
    "Evidence: LogNormal weights around the scores, whose width is a network of the keys that begins at .5, trained by "
    "the log evidence of an item by 4 draws."
)

NORMALIZERS: Mapping[str, Options] = {
    f"{normalizer}, {guide}": {"normalizer": normalizer, "guide": guide}
    for normalizer in ("softmax", "doubly_normalized", "hybrid")
    for guide in ("soft", "weibull")
}
"""Of Ding et al. (2020), Attention that does not Explain Away, and the same under Weibull weights."""

UNDER_ITS_GUIDE = {row: f"softmax, {options['guide']}" for row, options in NORMALIZERS.items() if "softmax" not in row}
"""The row that a normaliser is compared with: softmax under the same guide."""


def rows(names: Iterable[str], settings: Mapping[str, Options] | None = None, /, **shared: Any) -> dict[str, Options]:
    """Some rows, each with its own settings and those that all share.

    Example:
        >>> rows(["soft", "WC"], {"WC": {"concentration": 2.0}})["WC"]
        {'guide': 'weibull', 'prior': 'contextual', 'concentration': 2.0}
    """
    return {name: {**shared, **ROWS[name], **(settings or {}).get(name, {})} for name in names}
