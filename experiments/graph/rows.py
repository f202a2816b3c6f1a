"""Rows of the tables on graphs: the options of experiments.graph that make them, and how these were searched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from experiments.files import UserError
from experiments.harness.words import expected_one_of

__all__ = [
    "GRIDS", "LEGEND", "ROWS", "SEARCHED", "SEARCHED_CHAMELEON", "SEARCHED_TEXAS", "SUMMED_KL", "settings",
]  # fmt: skip

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
LEGEND = "L, W: LogNormal, Weibull posterior; F, C: fixed, contextual prior; no KL: Weibull without a prior term."


def _grid(**values: tuple[float, ...]) -> list[Options]:
    return [dict(zip(values, setting, strict=True)) for setting in product(*values.values())]


_CONCENTRATIONS = (2.0, 10.0)
# The logarithm of a Weibull variable of concentration k has standard deviation 1.28 / k: .64 and .13.
_SCALES = (0.5, 0.1)

# Settings tried for each row of the paper. The KL weight of the citation graphs is that chosen on digits:
SUMMED_KL: Options = {"kl_scale": "total", "kl_weight": 1e-3}

GRIDS: dict[str, list[Options]] = {
    "soft": [{}],
    **{row: _grid(scale=_SCALES) for row in ("LF", "LC")},
    **{row: _grid(concentration=_CONCENTRATIONS) for row in ("no KL", "WF", "WC")},
}

# The best of them, by mean validation accuracy over three seeds (ties: by loss): on Cora,
SEARCHED: dict[str, Options] = {
    **{row: {"scale": 0.5} for row in ("LF", "LC")},
    **{row: {"concentration": 2.0} for row in ("no KL", "WF", "WC")},
}
# on Chameleon (filtered),
SEARCHED_CHAMELEON: dict[str, Options] = {
    "LF": {"scale": 0.5},
    "LC": {"scale": 0.1},
    **{row: {"concentration": 10.0} for row in ("WF", "WC")},
}
# and on Texas.
SEARCHED_TEXAS: dict[str, Options] = SEARCHED_CHAMELEON | {"WC": {"concentration": 2.0}}


def settings(rows: Sequence[str], searched: Mapping[str, Options] = SEARCHED) -> dict[str, Options]:
    """Options of some rows, with what was searched; UserError where one is unknown or there are none."""
    unknown = next((row for row in rows if row not in ROWS), "")
    if unknown or not rows:
        raise UserError(f"rows '{unknown}': {expected_one_of(ROWS, unknown)}")
    return {row: ROWS[row] | searched.get(row, {}) for row in rows}
