"""How kinds of attention fare with fewer labels, noisy features or noisy edges.

python -m experiments.studies label_rate --data-root DIR
"""

from experiments.harness.cli import launch

if __name__ == "__main__":
    launch("experiments.studies", "experiments.graph.config:StudyConfig", "experiments.graph.studies:run")
