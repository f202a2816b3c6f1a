"""Alignments, and the choice of links from weights or samples."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyro_attention.analysis import Alignment, hard_alignment, link_probabilities, mbr_alignment
from tests.analysis.alignments.random_alignments import PROPERTY, TWO, aligned, weights_of

WEIGHTS = torch.tensor([[0.6, 0.3, 0.1], [0.1, 0.45, 0.45], [0.2, 0.3, 0.5]])
SEEDS = st.integers(0, 1000)


def f1(predicted, true):
    return 2 * len(predicted & true) / (len(predicted) + len(true))


def all_sets(links):
    return (frozenset(chosen) for size in range(len(links) + 1) for chosen in itertools.combinations(links, size))


# Alignment


def test_alignment():
    alignment = Alignment({(2, 0), (0, 1)}, num_source=3, num_target=2)
    assert str(alignment) == "0-1 2-0"
    assert alignment.to_matrix().tolist() == [[False, False, True], [True, False, False]]
    assert alignment.transposed() == Alignment(frozenset({(0, 2), (1, 0)}), 2, 3)
    assert len({alignment, Alignment([(0, 1), (2, 0)], 3, 2)}) == 1
    assert str(Alignment(frozenset(), 0, 0)) == ""


@PROPERTY
@given(TWO)
def test_matrix_and_back(two):
    alignment, _ = two
    assert Alignment.from_matrix(alignment.to_matrix()) == alignment
    assert alignment.transposed().transposed() == alignment
    assert alignment.transposed().to_matrix().equal(alignment.to_matrix().mT)


@pytest.mark.parametrize("link", [(3, 0), (0, 2), (-1, 0)])
def test_links_out_of_range(link):
    with pytest.raises(ValueError, match=r"link \(.*\) lies outside of 3 source and 2 target words"):
        Alignment(frozenset({link}), num_source=3, num_target=2)


@pytest.mark.parametrize("matrix", [torch.ones(2, 2), torch.ones(2, dtype=torch.bool)])
def test_wrong_matrix(matrix):
    with pytest.raises(ValueError, match=r"expected bool \[M, N\]"):
        Alignment.from_matrix(matrix)


# argmax and threshold


def test_by_hand():
    assert hard_alignment(WEIGHTS) == aligned("0-0 1-1 2-2", 3, 3)  # of equal ones the first
    assert hard_alignment(WEIGHTS, method="threshold") == aligned("0-0", 3, 3)
    assert hard_alignment(WEIGHTS, method="threshold", threshold=0.3) == aligned("0-0 1-1 2-1 2-2", 3, 3)


def test_samples_are_averaged():
    samples = torch.tensor([[[1.0, 0.0], [0.9, 0.1]], [[0.2, 0.8], [0.0, 1.0]]])
    assert hard_alignment(samples) == hard_alignment(samples.mean(0)) == aligned("0-0 1-1", 2, 2)


def test_dropped_weight_is_the_probability_of_no_link():
    weights = torch.tensor([[0.3, 0.2], [0.4, 0.3], [0.0, 0.0], [0.5, 0.0]])  # 0.5, 0.3, 1 and 0.5 are missing
    assert hard_alignment(weights) == aligned("0-1 0-3", 2, 4)


def test_many_equal_weights():
    assert hard_alignment(torch.full((3, 500), 1 / 500)).links == {(0, 0), (0, 1), (0, 2)}


def test_half_precision():
    weights = weights_of(30, 40, dtype=torch.float32)
    for dtype in (torch.float16, torch.bfloat16):
        for method in ("argmax", "threshold", "mbr"):
            assert hard_alignment(weights.to(dtype), method=method).num_source == 40


@PROPERTY
@given(SEEDS)
def test_order_of_samples_does_not_matter(seed):
    samples = weights_of(5, 3, 4, seed=seed)
    moved = samples[torch.randperm(5, generator=torch.Generator().manual_seed(seed))]
    torch.testing.assert_close(link_probabilities(moved), link_probabilities(samples))
    assert link_probabilities(moved, above=0.25).equal(link_probabilities(samples, above=0.25))
    for method in ("argmax", "threshold", "mbr"):
        assert hard_alignment(moved, method=method) == hard_alignment(samples, method=method)


# link probabilities


def test_link_probabilities():
    one_hot = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]], [[1.0, 0.0]], [[1.0, 0.0]]])
    assert link_probabilities(one_hot).tolist() == [[0.75, 0.25]]
    samples = torch.tensor([[[0.5, 0.5]], [[0.75, 0.25]]])
    assert link_probabilities(samples, above=0.25).tolist() == [[1.0, 0.5]]
    assert link_probabilities(samples[0]).tolist() == [[0.5, 0.5]]


# minimum Bayes risk


@PROPERTY
@given(SEEDS, st.sampled_from([0.3, 1.0, 3.0]))
def test_mbr_maximises_its_criterion(seed, spread):
    """Over all 64 link sets of 2 by 3 words, for probabilities of any row sums."""
    generator = torch.Generator().manual_seed(seed)
    probabilities = torch.rand(2, 3, generator=generator, dtype=torch.float64) ** spread
    links = list(itertools.product(range(3), range(2)))
    total = probabilities.sum().item()
    value = {
        chosen: 2 * sum(probabilities[t, s].item() for s, t in chosen) / (len(chosen) + total)
        for chosen in all_sets(links)
    }
    assert mbr_alignment(probabilities).links == max(value, key=value.get)


@PROPERTY
@given(SEEDS)
def test_mbr_is_exact_where_every_target_word_has_one_link(seed):
    """Expected F1 over all 9 alignments of 2 by 3 words, for all 64 predictions."""
    weights = weights_of(2, 3, seed=seed)
    expected = {}
    for chosen in all_sets(list(itertools.product(range(3), range(2)))):
        expected[chosen] = sum(
            weights[0, first].item() * weights[1, second].item() * f1(chosen, {(first, 0), (second, 1)})
            for first, second in itertools.product(range(3), repeat=2)
        )
    assert hard_alignment(weights, method="mbr").links == max(expected, key=expected.get)


@PROPERTY
@given(SEEDS)
def test_threshold_of_a_half_minimises_the_number_of_errors(seed):
    weights = weights_of(2, 3, seed=seed)
    errors = {
        chosen: sum(
            1 - weights[t, s].item() if (s, t) in chosen else weights[t, s].item()
            for s, t in itertools.product(range(3), range(2))
        )
        for chosen in all_sets(list(itertools.product(range(3), range(2))))
    }
    assert hard_alignment(weights, method="threshold").links == min(errors, key=errors.get)


def test_mbr_of_certain_and_impossible_links():
    certain = torch.eye(3)
    assert mbr_alignment(certain) == aligned("0-0 1-1 2-2", 3, 3)
    assert mbr_alignment(torch.zeros(2, 3)).links == frozenset()
    # both directions averaged: rows that sum to more than one
    assert mbr_alignment(torch.tensor([[1.0, 0.9], [0.0, 0.1]])) == aligned("0-0 1-0", 2, 2)


def test_mbr_treats_equal_links_alike():
    assert len(mbr_alignment(torch.full((2, 5), 0.2)).links) == 10
    # .4 is exactly half the best value, 2 * 1 / (1 + 1.5): it changes nothing and is left out
    neutral = torch.tensor([[1.0, 0.4, 0.1]], dtype=torch.float64)
    assert mbr_alignment(neutral) == aligned("0-0", 3, 1)


# bad input


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        ([[0.5, 0.5]], TypeError, "weights have type list, expected a floating-point tensor"),
        (torch.ones(1, 1, dtype=torch.int64), TypeError, "weights have dtype torch.int64"),
        (torch.ones(2, 2), ValueError, r"sum to 2 over the sources .* transpose \[N, M\] weights with .mT"),
        (torch.tensor([[1.5, -0.5]]), ValueError, r"weights run from -0.5 to 1.5, expected 0 to 1; apply .softmax"),
        (torch.tensor([[math.nan, 1.0]]), ValueError, "1 of 2 weights are NaN or infinite"),
        (torch.ones(1), ValueError, r"weights have shape \(1,\), expected \[M, N\] or \[S, M, N\]"),
        (torch.ones(2, 2, 2, 2), ValueError, "choose a sentence and a head"),
        (torch.ones(0, 3), ValueError, r"weights have shape \(0, 3\), .* with no dimension of zero"),
    ],
)  # fmt: skip
def test_wrong_weights(weights, error, message):
    with pytest.raises(error, match=message):
        hard_alignment(weights)


def test_wrong_options():
    with pytest.raises(ValueError, match="method is 'max', expected one of argmax, threshold, mbr"):
        hard_alignment(WEIGHTS, method="max")
    with pytest.raises(ValueError, match=r"threshold is 1.0, expected a weight in \[0, 1\)"):
        hard_alignment(WEIGHTS, method="threshold", threshold=1.0)
    with pytest.raises(ValueError, match=r"above is -0.1, expected a weight in \[0, 1\)"):
        link_probabilities(WEIGHTS, above=-0.1)
    with pytest.raises(ValueError, match="probabilities run from 0 to 2, expected 0 to 1"):
        mbr_alignment(torch.tensor([[0.0, 2.0]]))
