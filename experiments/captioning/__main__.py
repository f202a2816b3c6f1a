"""Captioning of images with a latent attention to regions: train a network, evaluate it, show where it looks.

python -m experiments.captioning train --dataset digits --guide weibull --out RUN
python -m experiments.captioning train --dataset flickr8k --guide weibull --data-root DIR --out RUN
python -m experiments.captioning show RUN
python -m experiments.captioning show RUN --photo my.jpg
python -m experiments.captioning table --encoder-weights FILE
"""

import sys

from experiments.harness.cli import run_commands

if __name__ == "__main__":
    sys.exit(run_commands("experiments.captioning.config:COMMANDS", name="experiments.captioning"))
