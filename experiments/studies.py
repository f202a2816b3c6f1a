"""How kinds of attention fare with fewer labels, noisy features or noisy edges.

python -m experiments.studies label_rate --data-root DIR
"""

from __future__ import annotations

import sys

from experiments.harness.cli import run_script

if __name__ == "__main__":
    sys.exit(
        run_script("experiments.graph.config:StudyConfig", "experiments.graph.studies:run", name="experiments.studies")
    )
