"""Rows of the tables on fine-tuning: the options that make them, and the paper's numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.datasets.text.squad import SquadName
from experiments.files import UserError
from experiments.finetune.config import GlueName
from experiments.harness.words import expected_one_of

__all__ = [
    "BASELINE", "DROPOUT", "GRIDS", "LEGEND", "PAPER", "PAPER_ANSWERS", "ROWS", "SEARCHED", "check_rows", "kind_of",
    "settings_text", "shown_rows", "trained_row",
]  # fmt: skip

Options = dict[str, Any]

BASELINE = "soft"
"""The row that the others are compared with."""
DROPOUT = "MC dropout"
"""The row that is no training: that of soft attention, with dropout at test time."""

ROWS: Mapping[str, Options] = {
    BASELINE: {"guide": "soft"},
    "WF": {"guide": "weibull", "prior": "fixed"},
    "WC": {"guide": "weibull", "prior": "contextual"},
    "LF": {"guide": "lognormal", "prior": "fixed"},
    "LC": {"guide": "lognormal", "prior": "contextual"},
}
LEGEND = (
    "L, W: LogNormal, Weibull posterior; F, C: fixed, contextual prior; their probabilities are means over posterior "
    f"samples. {DROPOUT}: the networks of {BASELINE}, with means over dropout masks."
)

# Settings tried for each row, on validation parts; see experiments.finetune search.
GRIDS: Mapping[str, Sequence[Options]] = {
    **{row: [{"kl_weight": weight, "concentration": k} for weight in (0.01, 0.1) for k in (2.0, 10.0)]
       for row in ("WF", "WC")},
    **{row: [{"kl_weight": weight, "scale": scale} for weight in (0.01, 0.1) for scale in (0.5, 0.1)]
       for row in ("LF", "LC")},
}  # fmt: skip

# The spreads are the better ones on the validation part of STS-B with MiniLM, those of WC and LC, which WF and LF take
# too. The KL weight is small enough for the labels to count most: the KL of a weight begins at some five nats.
SEARCHED: Mapping[str, Options] = {
    **{row: {"kl_weight": 0.01, "concentration": 10.0} for row in ("WF", "WC")},
    **{row: {"kl_weight": 0.01, "scale": 0.1} for row in ("LF", "LC")},
}

PAPER: Mapping[str, Mapping[GlueName, float]] = {
    "ALBERT-base": {"mrpc": 86.5, "cola": 54.5, "rte": 75.8, "sst2": 92.4, "stsb": 90.3},
    "ALBERT-base, WC": {"mrpc": 88.5, "cola": 55.8, "rte": 76.2, "sst2": 92.7, "stsb": 91.1},
}
"""Fan et al. (2020), Bayesian Attention Modules, Table 5."""

PAPER_ANSWERS: Mapping[str, Mapping[SquadName, tuple[float, float]]] = {
    "ALBERT-base": {"v1": (80.86, 88.70), "v2": (78.80, 82.07)},
    "ALBERT-base, WC": {"v1": (81.40, 88.82), "v2": (78.97, 82.23)},
}
"""Exact match and F1 of the same table."""


def kind_of(row: str) -> str:
    """Kind of prediction that a row of the table shows."""
    return {BASELINE: "mean", DROPOUT: "mc_dropout"}.get(row, "attention")


def shown_rows(rows: Sequence[str]) -> list[str]:
    """The rows of a table, that of dropout masks after the baseline's.

    Example:
        >>> shown_rows(["soft", "WC"])
        ['soft', 'MC dropout', 'WC']
    """
    return [row for one in rows for row in ((one, DROPOUT) if one == BASELINE else (one,))]


def trained_row(row: str) -> str:
    """The row whose trainings a row shows."""
    return BASELINE if row == DROPOUT else row


def settings_text(rows: Sequence[str]) -> str:
    """The settings of these rows and where they come from, empty where there are none.

    Example:
        >>> settings_text(["soft", "LC"])[:40]
        'Settings: LC: kl weight 0.01, scale 0.1.'
    """
    settings = "; ".join(
        f"{row}: " + ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in SEARCHED[row].items())
        for row in rows
        if row in SEARCHED
    )
    if not settings:
        return ""
    return (
        f"Settings: {settings}. Scale and concentration of LC and WC are the better of two on the validation part of "
        f"STS-B (one seed, under an earlier weighting of the KL), and LF and WF have the same; the KL weight, of the "
        f"mean KL of an attention weight, was not searched."
    )


def check_rows(rows: Sequence[str]) -> None:
    """Check that all rows are known, and the baseline is among them.

    Raises:
        UserError: One is unknown, or the baseline is missing.
    """
    unknown = next((row for row in rows if row not in ROWS), None)
    if unknown is not None:
        raise UserError(f"rows '{unknown}': {expected_one_of(ROWS, unknown)}")
    if BASELINE not in rows:
        raise UserError(
            f"rows are {', '.join(rows) or 'none'}, expected {BASELINE} too, which others are compared with"
        )
