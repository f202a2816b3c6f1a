"""Attentive neural processes with random attention, on functions of Gaussian processes."""

import sys

from experiments.cli import run_commands

if __name__ == "__main__":
    sys.exit(run_commands("experiments.neural_process.config:COMMANDS", name="experiments.neural_process"))
