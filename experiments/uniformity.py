"""How far learned graph attention is from uniform attention, and what it is worth.

python -m experiments.uniformity --data-root DIR
"""

from __future__ import annotations

import sys

from experiments.harness.cli import run_script

if __name__ == "__main__":
    sys.exit(
        run_script(
            "experiments.graph.config:UniformityConfig",
            "experiments.graph.uniformity:run",
            name="experiments.uniformity",
        )
    )
