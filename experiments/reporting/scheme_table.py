"""Rows of a comparison of inference schemes: means and spread over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.reporting.statistics import summarise

__all__ = ["Runs", "mean_metrics", "scheme_rows"]

Runs = Mapping[str, Sequence[Mapping[str, float]]]


def scheme_rows(runs: Runs, columns: Mapping[str, tuple[str, int, float]]) -> list[dict[str, str]]:
    """One row a scheme: mean +- standard deviation over seeds; columns that no scheme has are left out.

    Args:
        runs: Metrics of every seed, by scheme.
        columns: Metric, digits after the point and factor of every column.
    """
    known = {name for found in runs.values() for name in found[0]}
    shown = {column: rule for column, rule in columns.items() if rule[0] in known}
    return [
        {"scheme": row} | {column: _cell(found, *rule) for column, rule in shown.items()} for row, found in runs.items()
    ]


def _cell(found: Sequence[Mapping[str, float]], metric: str, digits: int, factor: float) -> str:
    if metric not in found[0]:
        return "-"
    summary = summarise([factor * metrics[metric] for metrics in found])
    # a standard deviation of zero, as of the number of parameters, says nothing
    spread = f" +- {summary.spread:.{digits}f}" if summary.count > 1 and summary.spread else ""
    return f"{summary.mean:.{digits}f}{spread}"


def mean_metrics(runs: Runs) -> dict[str, float]:
    """``"<scheme>/<metric>"`` to its mean over seeds."""
    return {
        f"{scheme}/{name}": sum(metrics[name] for metrics in found) / len(found)
        for scheme, found in runs.items()
        for name in found[0]
    }
