"""Write the pages from experiments/results: where it helps, and the tables of every study.

python -m experiments.pages
"""

import sys
from dataclasses import dataclass

from experiments.cli import Command, run_commands


@dataclass(frozen=True)
class PageOptions:
    """Write the pages from experiments/results: where it helps, and the tables of every study."""


if __name__ == "__main__":
    sys.exit(run_commands(Command(PageOptions, "experiments.report.pages:run"), name="experiments.pages"))
