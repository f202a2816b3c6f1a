"""Times and memory of the library beside its peers: ``python -m experiments.benchmarks [gpu] [--name enumeration]``."""

import sys

from experiments.harness.cli import launch, run_script

if __name__ == "__main__":
    package = "experiments.benchmarks"
    if sys.argv[1:2] == ["gpu"]:
        options, command = f"{package}.gpu:GPUConfig", f"{package}.gpu:run"
        sys.exit(run_script(options, command, name=f"{package} gpu", arguments=sys.argv[2:]))
    launch(package, f"{package}.config:BenchmarkConfig", f"{package}.suite:run")
