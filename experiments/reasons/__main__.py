"""Which neighbor or instance is the reason: attention, explainers and exact posteriors where the reason is known."""

import sys

from experiments.cli import run_commands

if __name__ == "__main__":
    sys.exit(run_commands("experiments.reasons.config:COMMANDS", name="experiments.reasons"))
