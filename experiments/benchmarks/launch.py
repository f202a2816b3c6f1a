"""Starting a benchmark from the command line; this imports only what ``--help`` needs."""

from __future__ import annotations

import sys

from experiments.harness.cli import run_script

__all__ = ["launch"]


def launch(module: str, config: str) -> None:
    """Run the function ``run`` of a benchmark's module with options of :mod:`experiments.benchmarks.config`."""
    name = f"experiments.benchmarks.{module}"
    shown = name.removesuffix(".__main__")
    sys.exit(run_script(f"experiments.benchmarks.config:{config}", f"{name}:run", name=shown))
