"""Uncertainty analysis of class predictions: scores, calibration, PAvPU, sources of uncertainty, selective prediction.

Everything takes plain tensors, so it serves any model; ``import pyro_attention`` does not load it. The expected
calibration error and PAvPU need ``pip install 'pyro-attention[analysis]'``.
"""

from pyro_attention.analysis.calibration import TemperatureScaling, fit_temperature
from pyro_attention.analysis.certainty import PAvPU, pavpu, top_two_p_values
from pyro_attention.analysis.decomposition import (
    UncertaintyDecomposition,
    VarianceSplit,
    decompose_uncertainty,
    split_variance,
)
from pyro_attention.analysis.scores import (
    ClassificationScores,
    brier_score,
    classification_scores,
    expected_calibration_error,
    negative_log_likelihood,
)
from pyro_attention.analysis.selective import SelectiveAccuracy, max_probability, selective_accuracy

__all__ = [
    "ClassificationScores",
    "PAvPU",
    "SelectiveAccuracy",
    "TemperatureScaling",
    "UncertaintyDecomposition",
    "VarianceSplit",
    "brier_score",
    "classification_scores",
    "decompose_uncertainty",
    "expected_calibration_error",
    "fit_temperature",
    "max_probability",
    "negative_log_likelihood",
    "pavpu",
    "selective_accuracy",
    "split_variance",
    "top_two_p_values",
]
