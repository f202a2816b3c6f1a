"""Options of the page on where Bayesian attention helps."""

from dataclasses import dataclass
from pathlib import Path

from experiments.reporting.page import RESULTS

__all__ = ["WhereItHelps"]


@dataclass(frozen=True, kw_only=True)
class WhereItHelps:
    """Write the page that says where Bayesian attention helps, out of the page of results.

    Args:
        results: The page of results.
        out: The page that is written.
        check: Write nothing, and fail where the page is not the one that the results give.
    """

    results: Path = RESULTS
    out: Path = RESULTS.parents[1] / "docs" / "where_it_helps.md"
    check: bool = False
