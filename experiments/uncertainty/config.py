"""Options of the studies of uncertainty."""

from dataclasses import dataclass
from pathlib import Path

from jsonargparse.typing import PositiveFloat, PositiveInt

from experiments.cli import Command
from experiments.options import RunOptions


@dataclass(frozen=True, kw_only=True)
class SmolLM2Config(RunOptions):
    """Find the wrong answers of a language model to the questions of SQuAD, with the paragraph and without it.

    The widths of the drawn weights, and what is read off the draws, are chosen on questions of the training file; the
    questions that count are those of the development file. Every answer is written as it comes, and --resume goes on.

    Args:
        model: Folder of a decoder with a chat template, such as SmolLM2-135M-Instruct.
        questions: Questions that count.
        tuning: Questions of other articles, on which the widths are chosen.
        scales: Widths of LogNormal weights to choose from.
        concentrations: Concentrations of Weibull weights to choose from; the smaller, the wider.
        num_samples: Draws of the weights.
        max_new_tokens: Longest answer in tokens.
        resamples: Of the bootstrap over the questions.
        results: Folder for the published numbers, experiments/results when omitted.
    """

    model: Path
    questions: PositiveInt = 100
    tuning: PositiveInt = 40
    scales: tuple[PositiveFloat, ...] = (0.2, 0.5, 1.0)
    concentrations: tuple[PositiveFloat, ...] = (1.0, 3.0, 10.0)
    num_samples: PositiveInt = 10
    max_new_tokens: PositiveInt = 12
    resamples: PositiveInt = 1000
    results: Path | None = None


COMMANDS = {"smollm2": Command(SmolLM2Config, "experiments.uncertainty.smollm2:run")}
