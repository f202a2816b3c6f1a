"""Do intervals of attention weights hold the true weights? Two problems whose weights are known.

python -m experiments.coverage train --objective evidence
python -m experiments.coverage table coverage-noise
python -m experiments.coverage table coverage-ignorance
"""

import sys

from experiments.cli import run_commands

if __name__ == "__main__":
    sys.exit(run_commands("experiments.coverage.config:COMMANDS", name="experiments.coverage"))
