"""Commands of the studies of uncertainty: classifiers, and answers of a language model."""

import sys

from experiments.cli import run_commands

if __name__ == "__main__":
    sys.exit(run_commands("experiments.uncertainty.config:COMMANDS", name="experiments.uncertainty"))
