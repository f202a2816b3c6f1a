"""Do two clusters of points survive repeated attention? Softmax, doubly normalized, with sampled weights too."""

import sys

from experiments.cli import Command, run_commands

COMMAND = Command("experiments.mode_collapse.config:ModeCollapseConfig", "experiments.mode_collapse.report:run")

if __name__ == "__main__":
    sys.exit(run_commands(COMMAND, name="experiments.mode_collapse"))
