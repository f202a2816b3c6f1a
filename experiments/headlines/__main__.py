"""Headlines by a Transformer with latent attention: train, compare normalisers, summarize one's own text."""

import sys

from experiments.cli import run_commands

if __name__ == "__main__":
    sys.exit(run_commands("experiments.headlines.config:COMMANDS", name="experiments.headlines"))
