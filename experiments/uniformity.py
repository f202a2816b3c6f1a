"""How far learned graph attention is from uniform attention, and what it is worth.

python -m experiments.uniformity --data-root DIR
"""

from experiments.harness.cli import launch

if __name__ == "__main__":
    launch("experiments.uniformity", "experiments.graph.config:UniformityConfig", "experiments.graph.uniformity:run")
