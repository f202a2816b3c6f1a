"""Uncertainty of predictions (scores, calibration, PAvPU, sources, what to keep), and word alignments.

Everything takes plain tensors, so it serves any model, but for :func:`check_coverage`, :func:`check_width` and
:func:`class_uncertainty`, which run a Pyro model; ``import pyro_attention`` does not load it. The expected calibration
error and PAvPU need
``pip install 'pyro-attention[analysis]'``.
"""

from pyro_attention.analysis.alignments.links import (
    AlignmentScores,
    GoldAlignment,
    alignment_error_rate,
    read_naacl,
    read_pharaoh,
    read_sentences,
    symmetrize,
)
from pyro_attention.analysis.alignments.weights import (
    Alignment,
    CredibleIntervals,
    credible_intervals,
    hard_alignment,
    k_max,
    mbr_alignment,
    merge_pieces,
    word_map,
)
from pyro_attention.analysis.classification import (
    ClassificationScores,
    SelectiveAccuracy,
    TemperatureScaling,
    UncertaintyDecomposition,
    classification_scores,
    decompose_uncertainty,
    fit_temperature,
    pavpu,
    selective_accuracy,
    split_variance,
    top_two_p_values,
)
from pyro_attention.analysis.coverage import Coverage, check_coverage
from pyro_attention.analysis.edge_intervals import EdgeIntervals, edge_intervals
from pyro_attention.analysis.key_mass import hybrid_weights, key_mass
from pyro_attention.analysis.rauq import rauq
from pyro_attention.analysis.selection import (
    ClassUncertainty,
    Interval,
    SelectionValue,
    Threshold,
    choose_threshold,
    class_uncertainty,
    selection_value,
    wrong_answer_auroc,
)
from pyro_attention.analysis.widths import WidthReport, check_width

__all__ = [
    "Alignment",
    "AlignmentScores",
    "ClassUncertainty",
    "ClassificationScores",
    "Coverage",
    "CredibleIntervals",
    "EdgeIntervals",
    "GoldAlignment",
    "Interval",
    "SelectionValue",
    "SelectiveAccuracy",
    "TemperatureScaling",
    "Threshold",
    "UncertaintyDecomposition",
    "WidthReport",
    "alignment_error_rate",
    "check_coverage",
    "check_width",
    "choose_threshold",
    "class_uncertainty",
    "classification_scores",
    "credible_intervals",
    "decompose_uncertainty",
    "edge_intervals",
    "fit_temperature",
    "hard_alignment",
    "hybrid_weights",
    "k_max",
    "key_mass",
    "mbr_alignment",
    "merge_pieces",
    "pavpu",
    "rauq",
    "read_naacl",
    "read_pharaoh",
    "read_sentences",
    "selection_value",
    "selective_accuracy",
    "split_variance",
    "symmetrize",
    "top_two_p_values",
    "word_map",
    "wrong_answer_auroc",
]
