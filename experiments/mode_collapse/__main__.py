"""Do two clusters of points survive repeated attention? Softmax, doubly normalised, and both with sampled weights.

python -m experiments.mode_collapse
"""

from experiments.harness.cli import launch

if __name__ == "__main__":
    launch(
        "experiments.mode_collapse",
        "experiments.mode_collapse.config:ModeCollapseConfig",
        "experiments.mode_collapse.report:run",
    )
