"""Speed of layers, networks and kernels: benchmarks on a CPU, and on one GPU with the word gpu."""

import sys

from experiments.cli import Command, run_commands

SUITE = Command("experiments.benchmarks.config:BenchmarkConfig", "experiments.benchmarks.suite:run")
GPU = Command("experiments.benchmarks.gpu:GPUConfig", "experiments.benchmarks.gpu:run")

if __name__ == "__main__":
    gpu = sys.argv[1:2] == ["gpu"]
    name = f"experiments.benchmarks{' gpu' * gpu}"
    sys.exit(run_commands(GPU if gpu else SUITE, name=name, arguments=sys.argv[1 + gpu :]))
