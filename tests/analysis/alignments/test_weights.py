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


SAMPLES = torch.tensor([[[1.0, 0.0], [0.9, 0.1]], [[0.2, 0.8], [0.0, 1.0]]])
METHODS = ("argmax", "threshold", "mbr")


@pytest.mark.parametrize(
    ("weights", "options", "expected"),
    [
        (WEIGHTS, {}, aligned("0-0 1-1 2-2", 3, 3)),  # of equal ones the first
        (WEIGHTS, {"method": "threshold"}, aligned("0-0", 3, 3)),
        (WEIGHTS, {"method": "threshold", "threshold": 0.3}, aligned("0-0 1-1 2-1 2-2", 3, 3)),
        (SAMPLES, {}, aligned("0-0 1-1", 2, 2)),
        (SAMPLES.mean(0), {}, aligned("0-0 1-1", 2, 2)),
        # what is missing is the probability of no link: .5, .3, 1 and .5
        (torch.tensor([[0.3, 0.2], [0.4, 0.3], [0.0, 0.0], [0.5, 0.0]]), {}, aligned("0-1 0-3", 2, 4)),
        (torch.full((3, 500), 1 / 500), {}, aligned("0-0 0-1 0-2", 500, 3)),
    ],
    ids=["argmax", "half", "threshold", "samples", "mean of samples", "no link", "many equal"],
)
def test_by_hand(weights, options, expected):
    assert hard_alignment(weights, **options) == expected


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision(dtype, method):
    assert hard_alignment(weights_of(30, 40, dtype=torch.float32).to(dtype), method=method).num_source == 40


@PROPERTY
@given(SEEDS)
def test_order_of_samples_does_not_matter(seed):
    samples = weights_of(5, 3, 4, seed=seed)
    moved = samples[torch.randperm(5, generator=torch.Generator().manual_seed(seed))]
    torch.testing.assert_close(link_probabilities(moved), link_probabilities(samples))
    assert link_probabilities(moved, above=0.25).equal(link_probabilities(samples, above=0.25))
    for method in METHODS:
        assert hard_alignment(moved, method=method) == hard_alignment(samples, method=method)


# link probabilities


@pytest.mark.parametrize(
    ("samples", "options", "expected"),
    [
        ([[[1.0, 0.0]], [[0.0, 1.0]], [[1.0, 0.0]], [[1.0, 0.0]]], {}, [0.75, 0.25]),
        ([[[0.5, 0.5]], [[0.75, 0.25]]], {"above": 0.25}, [1.0, 0.5]),
        ([[0.5, 0.5]], {}, [0.5, 0.5]),
    ],
    ids=["one hot", "above", "weights"],
)
def test_link_probabilities(samples, options, expected):
    assert link_probabilities(torch.tensor(samples), **options).tolist() == [expected]


# link probabilities


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


@pytest.mark.parametrize(
    ("probabilities", "expected"),
    [
        (torch.eye(3), aligned("0-0 1-1 2-2", 3, 3)),
        (torch.zeros(2, 3), aligned("", 3, 2)),
        # both directions averaged: rows that sum to more than one
        (torch.tensor([[1.0, 0.9], [0.0, 0.1]]), aligned("0-0 1-0", 2, 2)),
        (torch.full((1, 5), 0.2), aligned("0-0 1-0 2-0 3-0 4-0", 5, 1)),
        (torch.full((2, 5), 0.2), aligned(" ".join(f"{s}-{t}" for s in range(5) for t in range(2)), 5, 2)),
        # .4 is exactly half the best value, 2 * 1 / (1 + 1.5): it changes nothing and is left out
        (torch.tensor([[1.0, 0.4, 0.1]], dtype=torch.float64), aligned("0-0", 3, 1)),
    ],
    ids=["certain", "impossible", "both directions", "a row of equal ones", "equal ones", "neutral"],
)
def test_mbr_by_hand(probabilities, expected):
    assert mbr_alignment(probabilities) == expected


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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: hard_alignment(WEIGHTS, method="max"), "method is 'max', expected one of argmax, threshold, mbr"),
        (lambda: hard_alignment(WEIGHTS, method="threshold", threshold=1.0), r"threshold is 1.0, expected .* \[0, 1\)"),
        (lambda: link_probabilities(WEIGHTS, above=-0.1), r"above is -0.1, expected a weight in \[0, 1\)"),
        (lambda: mbr_alignment(torch.tensor([[0.0, 2.0]])), "probabilities run from 0 to 2, expected 0 to 1"),
    ],
    ids=["method", "threshold", "above", "probabilities"],
)
def test_wrong_options(call, message):
    with pytest.raises(ValueError, match=message):
        call()
