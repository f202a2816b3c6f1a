"""Attention, explainers and exact posteriors, tested where the neighbor or instance that is the reason is known."""

import sys

from experiments.cli import run_commands

if __name__ == "__main__":
    sys.exit(run_commands("experiments.reasons.config:COMMANDS", name="experiments.reasons"))
