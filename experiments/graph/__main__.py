"""Node classification by a graph attention network with latent attention weights.

python -m experiments.graph --dataset cora --guide weibull --prior contextual --data-root DIR --out DIR
"""

from experiments.harness.cli import launch

if __name__ == "__main__":
    launch("experiments.graph", "experiments.graph.config:GraphConfig", "experiments.graph.train:run_and_show")
