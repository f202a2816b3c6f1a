"""The second half of a run of a network that writes sentences: training, scores, and the files it leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from experiments.run import RunFolder
from experiments.sequence.evaluation import validation_perplexities
from experiments.sequence.model import Encoded, TrainedText, fit_sequences
from experiments.sequence.text_files import write_lines

Scores = tuple[dict[str, float], list[str]]


def train_and_score(
    run: RunFolder,
    trained: TrainedText[Any, Any],
    encoded: Encoded,
    score: Callable[[], Scores],
    *,
    file: str,
    patience: int,
) -> dict[str, float]:
    """Train a network, score it on the test data, and write its sentences and metrics into the folder of the run.

    Args:
        run: The folder of the run, which has begun.
        trained: The untrained network, which is trained in place.
        encoded: Training and validation data.
        score: Returns the test metrics of the trained network, and the sentences that it writes for the test data.
        file: Name of the file of these sentences.
        patience: Epochs without a better validation loss before the training stops.

    Returns:
        All metrics of the run.
    """
    fitted = fit_sequences(trained, encoded, run.path, patience=patience)
    metrics, sentences = score()
    write_lines(run.path / file, sentences)
    return run.finish(metrics | validation_perplexities(trained, encoded, fitted) | fitted.metrics)
