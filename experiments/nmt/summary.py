"""What a comparison on translation found, in plain words."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.report.columns import Column, Runs, best_row

__all__ = ["summarised"]


def summarised(runs: Mapping[str, Runs], *, perplexity: Column, errors: Column) -> str:
    """Which schemes predict and align best, beside soft attention; says nothing of what no row has.

    Example:
        >>> runs = {"soft": [{"ppl": 2.0, "aer": 0.5}], "marginal": [{"ppl": 1.5, "aer": 0.25}]}
        >>> columns = {"perplexity": Column("perplexity", "ppl", 1, better="lower")}
        >>> print(summarised(runs, **columns, errors=Column("AER", "aer", 0, 100, better="lower")))
        Of 2 rows, marginal predicts translations best, with a perplexity of 1.5 (soft attention: 2.0). The alignment of
        marginal comes closest to the gold links, with an error rate of 25 % (soft attention: 50 %).
    """
    found = []
    if (best := best_row(runs, perplexity)) is not None:
        number = f"{perplexity.cell(runs[best])}{_beside(runs, best, perplexity)}"
        found.append(f"Of {len(runs)} rows, {best} predicts translations best, with a perplexity of {number}.")
    if (best := best_row(runs, errors)) is not None:
        number = f"{errors.cell(runs[best])} %{_beside(runs, best, errors, ' %')}"
        found.append(f"The alignment of {best} comes closest to the gold links, with an error rate of {number}.")
    return " ".join(found) if len(runs) > 1 else ""


def _beside(runs: Mapping[str, Runs], best: str, column: Column, unit: str = "") -> str:
    if best == "soft" or "soft" not in runs or not column.values(runs["soft"]):
        return ""
    return f" (soft attention: {column.cell(runs['soft'])}{unit})"
