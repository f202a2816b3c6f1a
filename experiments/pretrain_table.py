"""Normalisers of attention, deterministic and Bayesian: pretraining, then fine-tuning.

python -m experiments.pretrain_table --dataset english --data-root DIR
"""

from experiments.harness.cli import launch

if __name__ == "__main__":
    launch(
        "experiments.pretrain_table",
        "experiments.pretrain.config:PretrainTableConfig",
        "experiments.pretrain.table:run",
    )
