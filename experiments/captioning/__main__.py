"""Captioning of images with a latent attention to regions: train a network, evaluate it, show where it looks."""

import sys

from experiments.cli import run_commands

if __name__ == "__main__":
    sys.exit(run_commands("experiments.captioning.config:COMMANDS", name="experiments.captioning"))
