"""Node classification with latent attention: train a network, make tables, search settings."""

import sys

from experiments.cli import run_commands

if __name__ == "__main__":
    sys.exit(run_commands("experiments.graph.config:COMMANDS", name="experiments.graph"))
