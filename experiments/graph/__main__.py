"""Node classification by a graph attention network with latent attention weights.

python -m experiments.graph --dataset cora --guide weibull --prior contextual --data-root DIR --out DIR
"""

from __future__ import annotations

import sys

from experiments.harness.cli import run_script

if __name__ == "__main__":
    sys.exit(
        run_script(
            "experiments.graph.config:GraphConfig", "experiments.graph.train:run_and_show", name="experiments.graph"
        )
    )
