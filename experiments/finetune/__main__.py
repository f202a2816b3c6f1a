"""Fine-tune a pretrained transformer to classify sentences, answer questions, or choose one of several options."""

import sys

from experiments.cli import run_commands

if __name__ == "__main__":
    sys.exit(run_commands("experiments.finetune.config:COMMANDS", name="experiments.finetune"))
