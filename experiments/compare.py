"""Train every kind of attention on one task, and show what differs: a table, pictures and a report.

python -m experiments.compare                  translation of an embedded corpus
python -m experiments.compare --task graph     node classification
python -m experiments.compare --task vqa       questions about digit scenes
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise

from experiments.harness.cli import Command, run_script, user_error
from experiments.harness.words import expected_one_of

__all__ = ["TASKS", "main"]

TASKS = {
    "translation": Command("experiments.nmt.config:CompareTranslations", "experiments.nmt.compare:run"),
    "graph": Command("experiments.graph.config:CompareGraphs", "experiments.graph.compare:run"),
    "vqa": Command("experiments.vqa.config:CompareQuestions", "experiments.vqa.compare:run"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison of the task that ``--task`` names; its other options are that task's own."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    words = [("--task", word.removeprefix("--task=")) for word in given if word.startswith("--task=")]
    task = next((word for option, word in [*pairwise(given), *words] if option == "--task"), "translation")
    if task not in TASKS:
        return user_error(f"--task {task}: {expected_one_of(TASKS, task)}", code=2)
    return run_script(TASKS[task].config, TASKS[task].run, name="experiments.compare", arguments=given)


if __name__ == "__main__":
    sys.exit(main())
