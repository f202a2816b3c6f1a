"""Alignments of a trained network, links out of both directions."""

import math
from dataclasses import replace

import pytest
import torch

from experiments.datasets.text.batches import Vocabulary
from experiments.nmt.align import (
    PairAlignment,
    aligned_pairs,
    alignment_summary,
    combine_pairs,
    link_both,
)
from experiments.nmt.evaluation import perplexity
from experiments.nmt.model import batches, build, load_text, load_trained, word_pairs
from experiments.sequence.alignments import align_batch, has_posterior_gap
from experiments.sequence.model import model_arguments
from models.score_terms import PROBABILITY
from tests.analysis.random_inputs import aligned


@pytest.fixture(scope="module")
def config(translation_run):
    return load_trained(translation_run, device="cpu").config


@pytest.fixture
def vocabulary(translation_run):
    return Vocabulary.load(translation_run / "vocabulary.json")


def test_null_has_no_link(config, vocabulary):
    config = replace(config, guide="marginal", null_word=True, diagonal=True)
    trained = build(config, vocabulary)
    text = load_text(config, "test")
    for pair in aligned_pairs(trained, text, num_samples=1):
        # what fast_align gives to NULL is missing from every row of the prior
        assert pair.prior.sum(-1).tolist() == pytest.approx([1 - PROBABILITY] * len(pair.target), rel=1e-4)
        assert (pair.posterior.sum(-1) < 1).all()
        assert pair.posterior.shape == (1, len(pair.target), len(pair.source))
    trained.model.null_word.probability = 1 - 1e-9
    assert [str(pair.links) for pair in aligned_pairs(trained, text, num_samples=1)] == [""] * len(text)


@pytest.mark.parametrize("scheme", ["categorical_enum", "marginal", "sparse_enum", "weibull"])
def test_the_posterior_gap_is_what_the_bound_leaves_of_the_evidence(config, vocabulary, scheme):
    trained = build(replace(config, guide=scheme), vocabulary)
    for parameter in trained.module.parameters():  # as far from the prior as from the posterior
        parameter.data.normal_(std=0.5)
    text = load_text(config, "test")
    gold = None
    if scheme in ("marginal", "weibull"):
        gold = [aligned("0-0", *map(len, words)) for words in word_pairs(text)]
    summary = alignment_summary(trained, replace(text, alignments=gold))
    # the prior of weibull sees the source alone
    assert ("test_prior_aer" in summary, "test_posterior_aer" in summary) == (scheme == "marginal", gold is not None)
    if gold is not None:
        assert "test_posterior_gap" not in summary
        return
    pairs = list(batches(trained, text))
    loss = sum(trained.module.objective(*model_arguments(batch)).item() for batch in pairs)
    words = sum(int(batch.target_mask.sum()) for batch in pairs)
    gap = loss / words - math.log(perplexity(trained, text))
    assert gap > 0.05
    assert summary["test_posterior_gap"] == pytest.approx(gap, rel=1e-3)


@pytest.mark.parametrize("jumps", [False, True])
def test_the_exact_posterior_is_that_of_a_network_without_inference_network(config, vocabulary, jumps):
    options = {"jumps": True, "input_feed": "none", "words_from": "context"} if jumps else {}
    config = replace(config, **options)
    inferring, summing = (build(replace(config, guide=guide), vocabulary) for guide in ("categorical_enum", "marginal"))
    summing.model.load_state_dict(inferring.model.state_dict())
    batch = next(batches(inferring, load_text(config, "test")))
    found, expected = (align_batch(trained, batch, num_samples=1, exact=True) for trained in (inferring, summing))
    torch.testing.assert_close(found.exact, expected.posterior[0])
    assert (found.exact - found.posterior[0]).abs().max() > 0.01
    assert expected.exact is None
    assert align_batch(inferring, batch, num_samples=1).exact is None  # only where it is asked for
    assert has_posterior_gap(inferring) != jumps
    assert not has_posterior_gap(summing)


@pytest.mark.parametrize("from_prior", [False, True])
def test_an_inference_network_may_start_at_the_prior(config, vocabulary, from_prior):
    trained = build(replace(config, posterior_from_prior=from_prior), vocabulary)
    batch = next(batches(trained, load_text(config, "test")))
    found = align_batch(trained, batch, num_samples=1)
    difference = (found.prior - found.posterior[0])[batch.target_mask].abs().max()
    assert (difference < 1e-6) == from_prior


# both directions

FORWARD = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.5, 0.3]])  # two target words, three source words
BACKWARD = torch.tensor([[0.8, 0.2], [0.1, 0.9], [0.6, 0.4]])


@pytest.mark.parametrize(
    ("combine", "options", "links"),
    [
        ("intersection", {}, "0-0 1-1"),
        ("grow-diag-final-and", {}, "0-0 1-1 2-0"),
        ("intersection", {"threshold": 0.25}, "0-0 1-1 2-1"),
        ("mean", {"threshold": 0.6}, "0-0 1-1"),
        ("geometric", {"threshold": 0.1**0.5}, "0-0 1-1 2-1"),
        ("product", {}, "0-0 1-1"),  # 2 (.72 + .45) / (2 + 1.34), and with .12: less
    ],
)
def test_links_of_both_directions(combine, options, links):
    assert str(link_both(FORWARD, BACKWARD, combine=combine, **options)) == links


def pair(samples, num_source, num_target):
    weights = torch.rand(samples, num_target, num_source).softmax(-1)
    return PairAlignment(["w"] * num_source, ["w"] * num_target, None, weights)


@pytest.mark.parametrize(("counts", "samples"), [((1, 1), 1), ((1, 3), 3), ((5, 2), 2)], ids=str)
def test_samples_of_both_directions_meet(counts, samples):
    forward, backward = pair(counts[0], 3, 2), pair(counts[1], 2, 3)
    found = combine_pairs(forward, backward, combine="product")
    assert found.posterior.shape == (samples, 2, 3)
    for number in range(samples):
        first, second = (part.posterior[min(number, len(part.posterior) - 1)] for part in (forward, backward))
        torch.testing.assert_close(found.posterior[number], first * second.mT)
