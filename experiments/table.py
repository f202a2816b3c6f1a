"""Train all rows of a table on all its data sets and seeds, and write the table and its picture.

python -m experiments.table bam1 --seeds 10 --data-root DIR
"""

from experiments.harness.cli import launch

if __name__ == "__main__":
    launch("experiments.table", "experiments.graph.config:TableConfig", "experiments.graph.table:run")
