"""Rows of the tables on graphs: the options of experiments.graph that make them, and how these were searched."""

from __future__ import annotations

from itertools import product
from typing import Any

__all__ = ["GRIDS", "LEGEND", "ROWS", "SEARCHED"]

Options = dict[str, Any]

ROWS: dict[str, Options] = {
    "soft": {"guide": "soft"},
    "no KL": {"guide": "weibull", "kl_weight": 0.0},
    "LF": {"guide": "lognormal", "prior": "fixed"},
    "LC": {"guide": "lognormal", "prior": "contextual"},
    "WF": {"guide": "weibull", "prior": "fixed"},
    "WC": {"guide": "weibull", "prior": "contextual"},
    "gamma": {"guide": "gamma", "prior": "contextual"},
}
LEGEND = (
    "L, W: LogNormal, Weibull posterior; F, C: fixed, contextual prior; no KL: Weibull without a prior term; gamma: "
    "Gamma posterior, contextual prior."
)


def _grid(**values: tuple[float, ...]) -> list[Options]:
    return [dict(zip(values, setting, strict=True)) for setting in product(*values.values())]


_KL_WEIGHTS = (1e-4, 1e-3, 1e-2)
_CONCENTRATIONS = (2.0, 10.0)
# The logarithm of a Weibull variable of concentration k has standard deviation 1.28 / k: .64 and .13.
_SCALES = (0.5, 0.1)

# Settings tried for each row, on Cora's validation nodes.
GRIDS: dict[str, list[Options]] = {
    "soft": [{}],
    "no KL": _grid(concentration=_CONCENTRATIONS),
    **{row: _grid(kl_weight=_KL_WEIGHTS, scale=_SCALES) for row in ("LF", "LC")},
    **{row: _grid(kl_weight=_KL_WEIGHTS, concentration=_CONCENTRATIONS) for row in ("WF", "WC", "gamma")},
}

# The best of them, by mean validation accuracy over three seeds (ties: by loss).
SEARCHED: dict[str, Options] = {
    "no KL": {"concentration": 2.0},
    "LF": {"kl_weight": 1e-4, "scale": 0.5},
    "LC": {"kl_weight": 1e-4, "scale": 0.5},
    "WF": {"kl_weight": 1e-3, "concentration": 2.0},
    "WC": {"kl_weight": 1e-4, "concentration": 2.0},
    "gamma": {"kl_weight": 1e-2, "concentration": 2.0},
}
