"""Times and memory of the library beside its peers: ``python -m experiments.benchmarks [--name enumeration]``."""

from experiments.harness.cli import launch

if __name__ == "__main__":
    package = "experiments.benchmarks"
    launch(package, f"{package}.config:BenchmarkConfig", f"{package}.suite:run")
