"""Answer questions about photographs.

python -m experiments.vqa train --dataset digits --guide weibull --out RUN
python -m experiments.vqa ask RUN "what digit is left of the seven" --place 3
python -m experiments.vqa ask RUN "what is on the desk" --photo my.jpg
python -m experiments.vqa table
python -m experiments.vqa studies
"""

from __future__ import annotations

import sys

from experiments.harness.cli import run_commands

if __name__ == "__main__":
    sys.exit(run_commands("experiments.vqa.config:COMMANDS", name="experiments.vqa"))
