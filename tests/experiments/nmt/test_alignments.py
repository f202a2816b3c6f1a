"""Alignments between words: target words that translate none."""

from dataclasses import replace

import pytest

from experiments.datasets.text.vocabulary import Vocabulary
from experiments.nmt.align import aligned_pairs
from experiments.nmt.data import load_text
from experiments.nmt.model import build, read_config
from models.null_word import PROBABILITY


def test_null_has_no_link(translation_run):
    config = replace(read_config(translation_run, device="cpu"), guide="marginal", null_word=True, diagonal=True)
    trained = build(config, Vocabulary.load(translation_run / "vocabulary.json"))
    text = load_text(config, "test")
    for pair in aligned_pairs(trained, text, num_samples=1):
        # what fast_align gives to NULL is missing from every row of the prior
        assert pair.prior.sum(-1).tolist() == pytest.approx([1 - PROBABILITY] * len(pair.target), rel=1e-4)
        assert (pair.posterior.sum(-1) < 1).all()
        assert pair.posterior.shape == (1, len(pair.target), len(pair.source))
    trained.model.null_word.probability = 1 - 1e-9
    assert [str(pair.links) for pair in aligned_pairs(trained, text, num_samples=1)] == [""] * len(text)
