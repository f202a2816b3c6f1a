"""Train every kind of attention on one task, and show what differs: a table, pictures and a report.

python -m experiments.compare                  translation of an embedded corpus
python -m experiments.compare --task graph     node classification
python -m experiments.compare --task captioning    captions of digit scenes
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise

from experiments import compare_captioning, compare_graph, compare_translation
from experiments.cli import Command, run_script

__all__ = ["TASKS", "main"]

TASKS = {
    "translation": Command(compare_translation.CompareTranslations, compare_translation.run),
    "graph": Command(compare_graph.CompareGraphs, compare_graph.run),
    "captioning": Command(compare_captioning.CompareCaptions, compare_captioning.run),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison of the task that ``--task`` names; its other options are that task's own."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    task = next((name for name in TASKS if f"--task={name}" in given or ("--task", name) in pairwise(given)), None)
    command = TASKS[task or "translation"]
    return run_script(command.config, command.run, name="experiments.compare", arguments=given)


if __name__ == "__main__":
    sys.exit(main())
