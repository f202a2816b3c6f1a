"""Translation with a latent alignment: train a network, evaluate it, translate files, align files, make tables.

python -m experiments.nmt train --dataset multi30k --guide categorical_enum --data-root DIR --out RUN
python -m experiments.nmt translate RUN FILE.de
python -m experiments.nmt align RUN FILE.de FILE.en
python -m experiments.nmt table compare
python -m experiments.nmt evaluate RUN --source-file FILE.de --target-file FILE.en
"""

from __future__ import annotations

import sys

from experiments.harness.cli import run_commands

if __name__ == "__main__":
    sys.exit(run_commands("experiments.nmt.config:COMMANDS", name="experiments.nmt"))
