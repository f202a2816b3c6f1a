"""Say where Bayesian attention helps, where it does not, and where nothing can be told, out of RESULTS.md.

python -m experiments.where_it_helps            writes docs/where_it_helps.md
python -m experiments.where_it_helps --check    fails where that page is older than RESULTS.md
"""

from experiments.harness.cli import launch

if __name__ == "__main__":
    launch(
        "experiments.where_it_helps",
        "experiments.reporting.config:WhereItHelps",
        "experiments.reporting.where_it_helps:run",
    )
