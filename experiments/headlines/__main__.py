"""Headlines by a Transformer with latent attention: train, compare normalizers, summarize your own texts."""

import sys

from experiments.cli import run_commands

if __name__ == "__main__":
    sys.exit(run_commands("experiments.headlines.config:COMMANDS", name="experiments.headlines"))
