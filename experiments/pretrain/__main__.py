"""Pretrain a small Transformer encoder as a masked language model, with softmax, doubly normalised or hybrid attention.

python -m experiments.pretrain --dataset english --normalizer hybrid --guide weibull --data-root DIR --out RUN
"""

from experiments.harness.cli import launch

if __name__ == "__main__":
    launch(
        "experiments.pretrain", "experiments.pretrain.config:PretrainConfig", "experiments.pretrain.train:run_and_show"
    )
