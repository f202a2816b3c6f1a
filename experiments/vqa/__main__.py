"""Answer questions about photographs: train a network, ask it, make tables, search settings.

python -m experiments.vqa train --dataset digits --guide weibull --out RUN
python -m experiments.vqa ask RUN "what digit is left of the seven" --place 3
python -m experiments.vqa ask RUN "what is on the desk" --photo my.jpg
python -m experiments.vqa table vqa-digits
"""

from __future__ import annotations

import sys

from experiments.harness.cli import run_commands

if __name__ == "__main__":
    sys.exit(run_commands("experiments.vqa.config:COMMANDS", name="experiments.vqa"))
