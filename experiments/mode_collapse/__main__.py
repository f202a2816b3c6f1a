"""Do two clusters of points survive repeated attention? ``python -m experiments.mode_collapse``."""

from experiments.harness.cli import launch

if __name__ == "__main__":
    name = "experiments.mode_collapse"
    launch(name, f"{name}.config:ModeCollapseConfig", f"{name}.report:run")
