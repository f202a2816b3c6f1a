"""Scores of predictions with intervals over test items: calibration, selection, sentences out of domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

Array = NDArray[np.float64]
METRICS = ("accuracy", "NLL", "ECE", "risk-coverage area", "AUROC, entropy", "AUROC, mutual information")
HIGHER = ("accuracy", "AUROC, entropy", "AUROC, mutual information")
"""Metrics of which more is better."""
_BINS = 15


@dataclass(frozen=True)
class Prediction:
    """Answers and uncertainties of one network, or one ensemble, on test items and items out of domain.

    Attributes:
        confidence: Probability of the answer to each test item ``[items]``.
        right: Whether that answer is right, bool ``[items]``.
        log_prob: Log probability of the true answer ``[items]``, in nats.
        entropy: Entropy of the mean, of the test items, in nats.
        domain_entropy: Entropy of the mean, of the items out of domain.
        information: Mutual information of the test items; None where nothing is drawn.
        domain_information: Mutual information of the items out of domain.
    """

    confidence: Array
    right: NDArray[np.bool_]
    log_prob: Array
    entropy: Array
    domain_entropy: Array
    information: Array | None = None
    domain_information: Array | None = None


def predict_from(test: Array, domain: Array, labels: NDArray[np.int64]) -> Prediction:
    """Return the prediction of probabilities ``[S, items, classes]`` of the test items and of those out of domain."""
    mean = test.mean(0)
    right = mean.argmax(-1) == labels
    log_prob = np.log(np.maximum(mean[np.arange(len(labels)), labels], 1e-12))
    entropies = [_entropy(samples.mean(0)) for samples in (test, domain)]
    if len(test) == 1:
        return Prediction(mean.max(-1), right, log_prob, *entropies)
    information = [
        entropy - _entropy(samples).mean(0) for entropy, samples in zip(entropies, (test, domain), strict=True)
    ]
    return Prediction(mean.max(-1), right, log_prob, *entropies, *information)


def _entropy(probabilities: Array) -> Array:
    return np.asarray(-(probabilities * np.log(np.maximum(probabilities, 1e-12))).sum(-1), dtype=np.float64)


def score_items(prediction: Prediction, items: NDArray[np.int64], domain: NDArray[np.int64]) -> dict[str, float]:
    """Score a prediction on some test items and some out of domain, which may be repeated.

    Args:
        prediction: Of all items.
        items: Places of the test items that count.
        domain: Places of the items out of domain that count.
    """
    # Calibration error and area are not those of pyro_attention.analysis, whose numbers would be others: torchmetrics
    # rounds confidences to float32, and selective_accuracy takes the mean over the orders of equally sure items.
    confidence, right = prediction.confidence[items], prediction.right[items]
    order = np.argsort(-confidence, kind="stable")
    wrong = ~right[order]
    scores = {
        "accuracy": float(right.mean()),
        "NLL": float(-prediction.log_prob[items].mean()),
        "ECE": calibration_error(confidence, right),
        "risk-coverage area": float((wrong.cumsum() / np.arange(1, len(wrong) + 1)).mean()),
        "AUROC, entropy": auroc(prediction.entropy[items], prediction.domain_entropy[domain]),
    }
    if prediction.information is not None and prediction.domain_information is not None:
        scores["AUROC, mutual information"] = auroc(
            prediction.information[items], prediction.domain_information[domain]
        )
    return scores


def calibration_error(confidence: Array, right: NDArray[np.bool_]) -> float:
    """Return the expected calibration error of the top class, with 15 bins of equal width.

    Example:
        >>> calibration_error(np.array([0.75, 0.75]), np.array([True, False]))
        0.25
    """
    bins = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    gaps = np.bincount(bins, weights=confidence - right, minlength=_BINS)
    return float(np.abs(gaps).sum() / len(confidence))


def auroc(familiar: Array, foreign: Array) -> float:
    """Return how often an item out of domain is less sure than a test item; of equal ones half count.

    Example:
        >>> auroc(np.array([0.1, 0.5]), np.array([0.5, 0.9]))
        0.875
    """
    # not wrong_answer_auroc of the library, which takes four times as long; resamples ask for some thirty thousand
    ranks = rankdata(np.concatenate([familiar, foreign]))[len(familiar) :]
    above = ranks.sum() - len(foreign) * (len(foreign) + 1) / 2
    return float(above / (len(familiar) * len(foreign)))


@dataclass(frozen=True)
class Scores:
    """Scores of a row by metric.

    Attributes:
        by_seed: Of every network on all items, ``[seeds]``.
        resampled: Mean over the networks on every resample of the items, ``[resamples]``.
    """

    by_seed: Mapping[str, Array]
    resampled: Mapping[str, Array]


def resampled_scores(predictions: Mapping[str, Sequence[Prediction]], *, resamples: int) -> dict[str, Scores]:
    """Score rows of predictions on all items, and on bootstrap resamples of them that all rows share.

    Args:
        predictions: By row, one a seed.
        resamples: Resamples of the test items and of those out of domain.
    """
    generator = np.random.default_rng(0)
    some = next(iter(predictions.values()))[0]
    sizes = len(some.right), len(some.domain_entropy)
    draws = [[generator.integers(size, size=size) for size in sizes] for _ in range(resamples)]
    whole = [np.arange(size) for size in sizes]
    scores = dict[str, Scores]()
    for name, row in predictions.items():
        of_seeds = [score_items(prediction, *whole) for prediction in row]
        of_draws = [[score_items(prediction, *places) for prediction in row] for places in draws]
        scores[name] = Scores(
            {metric: np.array([values[metric] for values in of_seeds]) for metric in of_seeds[0]},
            {
                metric: np.array([np.mean([values[metric] for values in of_draw]) for of_draw in of_draws])
                for metric in of_seeds[0]
            },
        )
    return scores
