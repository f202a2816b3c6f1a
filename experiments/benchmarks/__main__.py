"""Times and memory of the library beside its peers: ``python -m experiments.benchmarks [--name enumeration]``."""

import sys

from experiments.harness.cli import Command, run_commands

COMMAND = Command("experiments.benchmarks.config:BenchmarkConfig", "experiments.benchmarks.suite:run")

if __name__ == "__main__":
    sys.exit(run_commands(COMMAND, name="experiments.benchmarks"))
