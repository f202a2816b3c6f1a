"""Captioning of images with latent attention to regions: train a network, show its attention, make tables."""

import sys

from experiments.cli import run_commands

if __name__ == "__main__":
    sys.exit(run_commands("experiments.captioning.config:COMMANDS", name="experiments.captioning"))
