"""Train all rows of a table on all its data sets and seeds, and write the table and its picture.

python -m experiments.table bam1 --seeds 10 --data-root DIR
"""

from __future__ import annotations

import sys

from experiments.harness.cli import run_script

if __name__ == "__main__":
    sys.exit(
        run_script("experiments.graph.config:TableConfig", "experiments.graph.table:run", name="experiments.table")
    )
