"""Uncertainty that finds wrong answers of a language model: one pass, heads of attention, draws of the weights."""

import sys

from experiments.cli import run_commands

if __name__ == "__main__":
    sys.exit(run_commands("experiments.uncertainty.config:COMMANDS", name="experiments.uncertainty"))
