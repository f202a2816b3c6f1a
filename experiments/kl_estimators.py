"""Two ablations of Bayesian attention: a KL that is sampled, and attention weights that are plain Gaussians.

python -m experiments.kl_estimators
python -m experiments.kl_estimators --kl-weight 0.01 --results experiments/results
"""

from experiments.harness.cli import launch

if __name__ == "__main__":
    launch(
        "experiments.kl_estimators",
        "experiments.captioning.config:CompareEstimators",
        "experiments.captioning.kl_estimators:run",
    )
