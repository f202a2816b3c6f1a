"""Fine-tune a pretrained transformer to classify sentences, or pairs of them."""

import sys

from experiments.cli import run_commands

if __name__ == "__main__":
    sys.exit(run_commands("experiments.finetune.config:COMMANDS", name="experiments.finetune"))
