"""Do two clusters of points survive repeated attention? Softmax, doubly normalised, and both with sampled weights."""

from experiments.harness.cli import launch

if __name__ == "__main__":
    name = "experiments.mode_collapse"
    launch(name, f"{name}.config:ModeCollapseConfig", f"{name}.report:run")
