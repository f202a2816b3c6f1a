"""Comparison of the word aligners IBM Model 1, eflomal and pyro-align on hand-made links."""

import sys

from experiments.cli import Command, run_commands

COMMAND = Command("experiments.aligners.config:AlignersConfig", "experiments.aligners.task:compare")

if __name__ == "__main__":
    sys.exit(run_commands(COMMAND, name="experiments.aligners"))
