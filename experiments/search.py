"""Choose the hyperparameters of the rows of a table, on validation data alone.

python -m experiments.search bam1 --data-root DIR
"""

from __future__ import annotations

import sys

from experiments.harness.cli import run_script

if __name__ == "__main__":
    sys.exit(
        run_script("experiments.graph.config:SearchConfig", "experiments.graph.search:run", name="experiments.search")
    )
