"""Fine-tune a pretrained encoder to classify sentences.

python -m experiments.finetune sst2 --init-from RUN --data-root DIR
"""

from __future__ import annotations

import sys

from experiments.harness.cli import run_script

if __name__ == "__main__":
    sys.exit(
        run_script(
            "experiments.pretrain.config:FinetuneConfig",
            "experiments.pretrain.finetune:run_and_show",
            name="experiments.finetune",
        )
    )
