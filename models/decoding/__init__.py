"""Decoding of translation, captioning and headlines: beam search, samples, and log probabilities of sentences."""

from models.decoding.next_word import (
    Inference,
    next_word_log_probs,
    next_word_mixture,
    target_alignments,
    target_log_probs,
    word_alignment,
)
from models.decoding.search import Hypothesis, beam_search, sample, search_words

__all__ = [
    "Hypothesis",
    "Inference",
    "beam_search",
    "next_word_log_probs",
    "next_word_mixture",
    "sample",
    "search_words",
    "target_alignments",
    "target_log_probs",
    "word_alignment",
]
