"""Rows of the table on pretraining."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.report.attention_rows import compared_rows
from experiments.report.columns import Column, Row, Runs

__all__ = ["ACCURACY", "COLUMNS", "COMPARED", "CONTROL", "PERPLEXITY", "score_rows"]

PERPLEXITY = Column("perplexity", "test_ppl", 2)
ACCURACY = Column("SST-2 %", "sst2_accuracy", 2, 100)
CONTROL = Column("SST-2 %, not pretrained", "scratch_accuracy", 2, 100)
COMPARED = (PERPLEXITY, Column("hidden pieces %", "test_accuracy", 2, 100), ACCURACY)
COLUMNS = (
    *COMPARED,
    CONTROL,
    Column("explained away %", "explained_away", 3, 100),
    Column("mass, 1st percentile", "key_mass_1_percent"),
)


def score_rows(runs: Mapping[str, Runs]) -> list[Row]:
    """See :func:`compared_rows`."""
    return compared_rows(runs, COLUMNS, COMPARED)
