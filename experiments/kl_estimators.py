"""Two ablations of Bayesian attention: a KL that is sampled, and attention weights that are plain Gaussians.

python -m experiments.kl_estimators
python -m experiments.kl_estimators --kl-weight 0.01 --results experiments/RESULTS.md
"""

from __future__ import annotations

import sys

from experiments.harness.cli import run_script

if __name__ == "__main__":
    sys.exit(
        run_script(
            "experiments.captioning.config:CompareEstimators",
            "experiments.captioning.kl_estimators:run",
            name="experiments.kl_estimators",
        )
    )
