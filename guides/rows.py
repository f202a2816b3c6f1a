"""Rows of the tables of the papers: their names and the options of their schemes."""

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
"""Options of the rows of Fan et al. (2020), Bayesian Attention Modules, of a Gamma posterior, and of the evidence."""

LEGEND = "L, W: LogNormal, Weibull posterior; F, C: fixed, contextual prior; no KL: Weibull without a prior term."
EVIDENCE = (
    "Evidence: LogNormal weights around the scores. Their width is a network of the keys that starts at .5, trained by "
    "the log evidence of an item, estimated by 4 draws."
)

NORMALIZERS: Mapping[str, Options] = {
    f"{normalizer}, {guide}": {"normalizer": normalizer, "guide": guide}
    for normalizer in ("softmax", "doubly_normalized", "hybrid")
    for guide in ("soft", "weibull")
}
"""Options of the rows of Ding et al. (2020), Attention that does not Explain Away, for soft and Weibull weights."""

UNDER_ITS_GUIDE = {row: f"softmax, {options['guide']}" for row, options in NORMALIZERS.items() if "softmax" not in row}
"""Baseline of each row with another normalizer: softmax under the same guide."""


def rows(names: Iterable[str], settings: Mapping[str, Options] | None = None, /, **shared: Any) -> dict[str, Options]:
    """Return the options of rows by name.

    Args:
        names: Names of the rows.
        settings: Further options of single rows, which replace all others.
        shared: Options of all rows, which the options of a row replace.

    Example:
        >>> rows(["soft", "WC"], {"WC": {"concentration": 2.0}})["WC"]
        {'guide': 'weibull', 'prior': 'contextual', 'concentration': 2.0}
    """
    return {name: {**shared, **ROWS[name], **(settings or {}).get(name, {})} for name in names}
