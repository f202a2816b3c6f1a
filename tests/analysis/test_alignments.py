"""Attention between the words of a sentence pair: links, uncertainty, word pieces."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyro_attention.analysis import (
    Alignment,
    credible_intervals,
    hard_alignment,
    k_max,
    mbr_alignment,
    merge_pieces,
    word_map,
)
from tests.analysis.random_inputs import PROPERTY, SIZES, aligned, weights_of

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


SAMPLES = torch.tensor([[[1.0, 0.0], [0.9, 0.1]], [[0.2, 0.8], [0.0, 1.0]]])


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        (WEIGHTS, aligned("0-0 1-1 2-2", 3, 3)),  # of equal ones the first
        (SAMPLES, aligned("0-0 1-1", 2, 2)),
        (SAMPLES.mean(0), aligned("0-0 1-1", 2, 2)),
        # what is missing is the probability of no link: .5, .3, 1 and .5
        (torch.tensor([[0.3, 0.2], [0.4, 0.3], [0.0, 0.0], [0.5, 0.0]]), aligned("0-1 0-3", 2, 4)),
        (torch.full((3, 500), 1 / 500), aligned("0-0 0-1 0-2", 500, 3)),
    ],
    ids=["argmax", "samples", "mean of samples", "no link", "many equal"],
)
def test_links_by_hand(weights, expected):
    assert hard_alignment(weights) == expected


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
    assert mbr_alignment(weights).links == max(expected, key=expected.get)


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
    assert Alignment.from_matrix(weights > 0.5).links == min(errors, key=errors.get)


def test_mbr_of_equal_and_neutral_links():
    assert mbr_alignment(torch.full((1, 5), 0.2)) == aligned("0-0 1-0 2-0 3-0 4-0", 5, 1)
    assert mbr_alignment(torch.zeros(2, 3)) == aligned("", 3, 2)
    # .4 is exactly half the best value, 2 * 1 / (1 + 1.5): it changes nothing and is left out
    assert mbr_alignment(torch.tensor([[1.0, 0.4, 0.1]], dtype=torch.float64)) == aligned("0-0", 3, 1)


HALVES = torch.tensor([[0.5, 0.5]])


@PROPERTY
@given(SIZES, SEEDS, st.sampled_from([0.5, 0.9]))
def test_intervals(size, seed, level):
    samples = weights_of(20, *size, seed=seed)
    intervals = credible_intervals(samples, level=level)
    expected = samples.quantile(torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=samples.dtype), dim=0)
    torch.testing.assert_close(torch.stack([intervals.low, intervals.high]), expected)
    torch.testing.assert_close(intervals.mean, samples.mean(0))
    assert ((intervals.width >= 0) & (intervals.width <= 1)).all()
    wider = credible_intervals(samples, level=0.95)
    assert (wider.low <= intervals.low).all()
    assert (wider.high >= intervals.high).all()


def test_more_numbers_than_quantile_takes():
    samples = torch.full((200, 300, 300), 1 / 300)
    assert samples.numel() > 2**24
    assert credible_intervals(samples).width.eq(0).all()


@pytest.mark.parametrize(
    ("weights", "k", "expected"),
    [
        ([[0.1, 0.4, 0.2, 0.3], [0.0, 1.0, 0.0, 0.0]], 2, [[0.0, 4 / 7, 0.0, 3 / 7], [0.0, 1.0, 0.0, 0.0]]),
        ([[0.0] * 4, [0.25] * 4], 2, [[0.0] * 4, [0.5, 0.5, 0.0, 0.0]]),
        ([[1e-3] * 1000] * 3, 5, [[0.2] * 5 + [0.0] * 995] * 3),
    ],
    ids=["by hand", "none and ties", "many ties"],
)
def test_k_max(weights, k, expected):
    torch.testing.assert_close(k_max(torch.tensor(weights), k), torch.tensor(expected))


@PROPERTY
@given(SIZES, SEEDS, st.integers(1, 6))
def test_k_max_properties(size, seed, k):
    weights = weights_of(2, *size, seed=seed) * (weights_of(2, *size, seed=seed + 1) > 0.05)
    kept = k_max(weights, k)
    assert ((kept > 0).sum(-1) == (weights > 0).sum(-1).clamp(max=k)).all()
    assert kept[weights == 0].eq(0).all()
    torch.testing.assert_close(kept.sum(-1), (weights.sum(-1) > 0).double())
    dropped = weights.masked_fill(kept > 0, 0).amax(-1)
    smallest = weights.masked_fill(kept == 0, math.inf).amin(-1)
    assert (dropped <= smallest).all()
    torch.testing.assert_close(k_max(kept, k), kept)


def test_k_max_gradients_and_half_precision():
    weights = weights_of(2, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: k_max(x, 2), weights)
    assert k_max(weights_of(2, 4).half(), 2).dtype == torch.float32
    rows_of_zeros = torch.zeros(1, 3, requires_grad=True)
    k_max(rows_of_zeros, 2).sum().backward()
    assert rows_of_zeros.grad.isfinite().all()


MAPS = st.lists(st.integers(0, 2) | st.none(), min_size=1, max_size=6).filter(
    lambda words: any(w is not None for w in words)
)


@pytest.mark.parametrize(
    ("pieces", "style", "words"),
    [
        ("re@@ vier@@ verhalten .", "@@", [0, 0, 0, 1]),
        ("das re@@", "@@", [0, 1]),  # cut off
        ("re@@ </s> vier", "@@", [0, None, 1]),  # a word ends before a special token
        ("<s> un ##aff ##able . </s>", "##", [None, 0, 0, 0, 1, None]),
        ("##able un", "##", [0, 1]),  # cut off in front
        ("▁Tür en ▁auf", "▁", [0, 0, 1]),
        ("▁ Tür <s> en", "▁", [0, 0, None, 1]),
        ("The Ġcat s", "Ġ", [0, 1, 1]),
        ("", "@@", []),
    ],
)
def test_word_map(pieces, style, words):
    assert word_map(pieces.split(), style=style, special={"<s>", "</s>"}) == words


PIECES = [[0.1, 0.2, 0.3, 0.4], [0.4, 0.2, 0.2, 0.2], [0.0, 0.5, 0.5, 0.0]]


@pytest.mark.parametrize(
    ("weights", "source", "target", "options", "expected"),
    [
        (PIECES, [0, 1, 1, None], [0, 0, 1], {}, [[0.25, 0.45], [0.0, 1.0]]),
        (PIECES, [0, 1, 1, None], [0, 0, 1], {"renormalize": True}, [[0.25 / 0.7, 0.45 / 0.7], [0.0, 1.0]]),
        (PIECES, [None, 0, 0, 0], [None, 0, 1], {}, [[0.6], [1.0]]),
        # a word that lost its pieces
        ([[1.0]], [1], [0], {"renormalize": True}, [[0.0, 1.0]]),
    ],
)
def test_merge_by_hand(weights, source, target, options, expected):
    merged = merge_pieces(torch.tensor(weights), source=source, target=target, **options)
    torch.testing.assert_close(merged, torch.tensor(expected))


@PROPERTY
@given(MAPS, MAPS, st.integers(0, 1000))
def test_rows_stay_a_simplex_and_samples_are_merged_one_by_one(source, target, seed):
    samples = weights_of(4, len(target), len(source), seed=seed)
    merged = merge_pieces(samples, source=source, target=target, renormalize=True)
    present = torch.tensor([word in target for word in range(merged.size(1))])
    torch.testing.assert_close(merged.sum(-1), present.double().expand(4, -1))
    one_by_one = [merge_pieces(sample, source=source, target=target, renormalize=True) for sample in samples]
    torch.testing.assert_close(merged, torch.stack(one_by_one))
    if None not in source:
        torch.testing.assert_close(merge_pieces(samples, source=source, target=target), merged)


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        (torch.ones(2, 2), ValueError, r"sum to 2 over the sources .* transpose \[N, M\] weights with .mT"),
        (torch.tensor([[1.5, -0.5]]), ValueError, r"weights run from -0.5 to 1.5, expected 0 to 1; apply .softmax"),
        (torch.tensor([[math.nan, 1.0]]), ValueError, "weights run from nan to nan"),
    ],
)
def test_wrong_weights(weights, error, message):
    with pytest.raises(error, match=message):
        hard_alignment(weights)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Alignment(frozenset({(3, 0)}), 3, 2), r"link \(3, 0\) lies outside of 3 source and 2 target words"),
        (lambda: credible_intervals(HALVES[None]), r"samples have shape .* with at least 2 samples"),
        (lambda: k_max(HALVES * math.nan, 1), "an entry that is below 0, infinite or NaN"),
        (lambda: merge_pieces(HALVES, source=[0], target=[0]), "source maps 1 pieces, 1 of them to words; expected 2"),
    ],
)
def test_wrong_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("balance", [0.3, 1.0, 2.5])
def test_minimum_risk_with_a_balance_is_the_best_of_all_sets(balance):
    """By trying every set of links of a small pair."""
    torch.manual_seed(0)
    for _ in range(5):
        probabilities = torch.rand(2, 3, dtype=torch.float64)
        values, weight = probabilities.flatten(), balance**2
        sets = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * 6)[1:]
        risk = (1 + weight) * (sets @ values) / (sets.sum(1) + weight * values.sum())
        best = sets[risk.argmax()].reshape(2, 3) > 0
        assert mbr_alignment(probabilities, balance=balance).links == Alignment.from_matrix(best).links
    for wrong in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="balance is"):
            mbr_alignment(probabilities, balance=wrong)
