"""Uncertainty of class predictions (scores, calibration, PAvPU, sources, selective prediction), and word alignments.

Everything takes plain tensors, so it serves any model; ``import pyro_attention`` does not load it. The expected
calibration error and PAvPU need ``pip install 'pyro-attention[analysis]'``.
"""

from pyro_attention.analysis.alignments.files import read_naacl, read_pharaoh, read_sentences, write_pharaoh
from pyro_attention.analysis.alignments.scores import AlignmentScores, GoldAlignment, agreement, alignment_error_rate
from pyro_attention.analysis.alignments.symmetrisation import symmetrise
from pyro_attention.analysis.alignments.uncertainty import (
    AlignmentUncertainty,
    AlignmentUpdate,
    CredibleIntervals,
    alignment_uncertainty,
    credible_intervals,
    k_max,
    prior_to_posterior,
)
from pyro_attention.analysis.alignments.weights import Alignment, hard_alignment, link_probabilities, mbr_alignment
from pyro_attention.analysis.alignments.word_pieces import merge_pieces, word_map
from pyro_attention.analysis.classification.calibration import TemperatureScaling, fit_temperature
from pyro_attention.analysis.classification.certainty import PAvPU, pavpu, top_two_p_values
from pyro_attention.analysis.classification.decomposition import (
    UncertaintyDecomposition,
    VarianceSplit,
    decompose_uncertainty,
    split_variance,
)
from pyro_attention.analysis.classification.scores import (
    ClassificationScores,
    brier_score,
    classification_scores,
    expected_calibration_error,
    negative_log_likelihood,
)
from pyro_attention.analysis.classification.selective import SelectiveAccuracy, max_probability, selective_accuracy
from pyro_attention.analysis.edge_intervals import EdgeIntervals, edge_intervals
from pyro_attention.analysis.explained_away import ExplainedAway, MassHistogram, explained_away, hybrid_weights

__all__ = [
    "Alignment",
    "AlignmentScores",
    "AlignmentUncertainty",
    "AlignmentUpdate",
    "ClassificationScores",
    "CredibleIntervals",
    "EdgeIntervals",
    "ExplainedAway",
    "GoldAlignment",
    "MassHistogram",
    "PAvPU",
    "SelectiveAccuracy",
    "TemperatureScaling",
    "UncertaintyDecomposition",
    "VarianceSplit",
    "agreement",
    "alignment_error_rate",
    "alignment_uncertainty",
    "brier_score",
    "classification_scores",
    "credible_intervals",
    "decompose_uncertainty",
    "edge_intervals",
    "expected_calibration_error",
    "explained_away",
    "fit_temperature",
    "hard_alignment",
    "hybrid_weights",
    "k_max",
    "link_probabilities",
    "max_probability",
    "mbr_alignment",
    "merge_pieces",
    "negative_log_likelihood",
    "pavpu",
    "prior_to_posterior",
    "read_naacl",
    "read_pharaoh",
    "read_sentences",
    "selective_accuracy",
    "split_variance",
    "symmetrise",
    "top_two_p_values",
    "word_map",
    "write_pharaoh",
]
