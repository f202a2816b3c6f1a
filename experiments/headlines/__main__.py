"""Headlines by a Transformer with latent attention: train a network, compare normalisers, summarize one's own text.

python -m experiments.headlines train --normalizer hybrid --guide weibull --data-root DIR --out RUN
python -m experiments.headlines table headlines --data-root DIR
python -m experiments.headlines summarize RUN FILE.txt
"""

import sys

from experiments.harness.cli import run_commands

if __name__ == "__main__":
    sys.exit(run_commands("experiments.headlines.config:COMMANDS", name="experiments.headlines"))
