"""A small Transformer encoder as a masked language model: pretrain it, fine-tune it on SST-2, compare normalizers."""

import sys

from experiments.cli import run_commands

if __name__ == "__main__":
    sys.exit(run_commands("experiments.pretrain.config:COMMANDS", name="experiments.pretrain"))
