"""Pretrain a small Transformer encoder as a masked language model, with softmax, doubly normalised or hybrid attention.

python -m experiments.pretrain --dataset english --normalizer hybrid --guide weibull --data-root DIR --out RUN
"""

from __future__ import annotations

import sys

from experiments.harness.cli import run_script

if __name__ == "__main__":
    sys.exit(
        run_script(
            "experiments.pretrain.config:PretrainConfig",
            "experiments.pretrain.train:run_and_show",
            name="experiments.pretrain",
        )
    )
