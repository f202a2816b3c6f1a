"""Fine-tune a pretrained encoder to classify sentences.

python -m experiments.finetune sst2 --init-from RUN --data-root DIR
"""

from experiments.harness.cli import launch

if __name__ == "__main__":
    launch(
        "experiments.finetune",
        "experiments.pretrain.config:FinetuneConfig",
        "experiments.pretrain.finetune:run_and_show",
    )
