"""Normalisers of attention, deterministic and Bayesian: pretraining, then fine-tuning, as a section of RESULTS.md.

python -m experiments.pretrain_table --dataset english --data-root DIR
"""

from __future__ import annotations

import sys

from experiments.harness.cli import run_script

if __name__ == "__main__":
    sys.exit(
        run_script(
            "experiments.pretrain.config:PretrainTableConfig",
            "experiments.pretrain.table:run",
            name="experiments.pretrain_table",
        )
    )
