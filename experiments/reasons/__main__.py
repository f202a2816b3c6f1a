"""Which neighbor, which instance is the reason: attention, explainers and exact posteriors where the reason is known.

python -m experiments.reasons edges
python -m experiments.reasons graphs
python -m experiments.reasons bags
"""

import sys

from experiments.harness.cli import run_commands

if __name__ == "__main__":
    sys.exit(run_commands("experiments.reasons.config:COMMANDS", name="experiments.reasons"))
