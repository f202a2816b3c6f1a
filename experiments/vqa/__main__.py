"""Answer questions about photographs: train a network, ask it, make tables, search settings."""

import sys

from experiments.cli import run_commands

if __name__ == "__main__":
    sys.exit(run_commands("experiments.vqa.config:COMMANDS", name="experiments.vqa"))
