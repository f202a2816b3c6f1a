"""Do two clusters of points survive repeated attention? Softmax, doubly normalised, and both with sampled weights.

python -m experiments.mode_collapse
"""

from __future__ import annotations

import sys

from experiments.harness.cli import run_script

if __name__ == "__main__":
    sys.exit(
        run_script(
            "experiments.mode_collapse.config:ModeCollapseConfig",
            "experiments.mode_collapse.train:run",
            name="experiments.mode_collapse",
        )
    )
