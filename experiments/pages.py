"""Write the pages that are made of experiments/results: where it helps, and the tables of every study.

python -m experiments.pages
"""

from dataclasses import dataclass

from experiments.harness.cli import launch


@dataclass(frozen=True)
class PageOptions:
    """Write the pages that are made of experiments/results: where it helps, and the tables of every study."""


if __name__ == "__main__":
    launch("experiments.pages", "experiments.pages:PageOptions", "experiments.report.pages:run")
