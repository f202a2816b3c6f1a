"""Node classification with latent attention: train a network, make tables, search settings.

python -m experiments.graph train --dataset cora --guide weibull --prior contextual --data-root DIR --out DIR
python -m experiments.graph table bam1 --seeds 10
"""

import sys

from experiments.harness.cli import run_commands

if __name__ == "__main__":
    sys.exit(run_commands("experiments.graph.config:COMMANDS", name="experiments.graph"))
