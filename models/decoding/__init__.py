"""Decoding of translation, captioning and headlines: beam search, samples, and the words of given sentences."""

from models.decoding.beam import beam_search, search_words
from models.decoding.hypotheses import Hypothesis
from models.decoding.inference import Inference
from models.decoding.next_word import (
    next_word_log_probs,
    next_word_mixture,
    target_alignments,
    target_log_probs,
    word_alignment,
)
from models.decoding.sampling import sample
from models.decoding.smoothing import smoothed_alignments

__all__ = [
    "Hypothesis",
    "Inference",
    "beam_search",
    "next_word_log_probs",
    "next_word_mixture",
    "sample",
    "search_words",
    "smoothed_alignments",
    "target_alignments",
    "target_log_probs",
    "word_alignment",
]
