"""Names of data sets, for those who only choose one."""

from typing import Literal

__all__ = ["GraphName"]


GraphName = Literal["digits", "cora", "citeseer", "pubmed", "dblp"]
