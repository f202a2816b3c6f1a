"""A small Transformer encoder as a masked language model: pretrain it, fine-tune it on SST-2, compare normalisers.

python -m experiments.pretrain train --dataset english --normalizer hybrid --guide weibull --data-root DIR --out RUN
python -m experiments.pretrain table pretraining-english --data-root DIR
"""

import sys

from experiments.harness.cli import run_commands

if __name__ == "__main__":
    sys.exit(run_commands("experiments.pretrain.config:COMMANDS", name="experiments.pretrain"))
