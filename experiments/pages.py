"""Write the pages that are made of experiments/results: where it helps, and the tables of every study.

python -m experiments.pages
"""

from experiments.harness.cli import launch

if __name__ == "__main__":
    launch("experiments.pages", "experiments.report.pages:PageOptions", "experiments.report.pages:run")
