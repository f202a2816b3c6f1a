"""Times and memory of the library beside its peers; each module but config and measuring has benchmarks."""

from experiments.harness.cli import launch


def start(name: str, config: str) -> None:
    """Run the command of a module, whose options are a class of ``config``."""
    module = f"experiments.benchmarks.{name}"
    launch(module.removesuffix(".__main__"), f"experiments.benchmarks.config:{config}", f"{module}:run")
