"""Times and memory of the library beside its peers: ``python -m experiments.benchmarks [gpu] [--name enumeration]``."""

import sys

from experiments.harness.cli import launch, run_script

if __name__ == "__main__":
    package = "experiments.benchmarks"
    if sys.argv[1:2] == ["gpu"]:
        given = {"name": f"{package} gpu", "arguments": sys.argv[2:]}
        sys.exit(run_script(f"{package}.gpu:GPUConfig", f"{package}.gpu:run", **given))
    launch(package, f"{package}.config:BenchmarkConfig", f"{package}.suite:run")
