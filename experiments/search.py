"""Choose the hyperparameters of the rows of a table, on validation data alone.

python -m experiments.search bam1 --data-root DIR
"""

from experiments.harness.cli import launch

if __name__ == "__main__":
    launch("experiments.search", "experiments.graph.config:SearchConfig", "experiments.graph.search:run")
