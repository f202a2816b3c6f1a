"""Translation with a latent alignment: train, evaluate, translate and align files, make tables."""

import sys

from experiments.cli import run_commands

if __name__ == "__main__":
    sys.exit(run_commands("experiments.nmt.config:COMMANDS", name="experiments.nmt"))
