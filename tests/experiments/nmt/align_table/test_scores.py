"""Error rates of many sentences: every way of linking, what is chosen on other sentences, the bootstrap."""

import pytest
import torch

from experiments.nmt.align_table.scores import (
    COMBINATIONS,
    WAYS,
    Interval,
    bootstrap,
    chosen_links,
    link_all,
    scores_of,
)
from pyro_attention.analysis import GoldAlignment, alignment_error_rate, hard_alignment, symmetrise


def sentences(count, *, seed=0):
    """Random weights in both directions, and random gold links."""
    generator = torch.Generator().manual_seed(seed)
    weights, gold = [], []
    for number in range(count):
        m, n = 2 + number % 3, 3
        forward, backward = (torch.randn(shape, generator=generator).mul(2).softmax(-1) for shape in ((m, n), (n, m)))
        sure = {(i, j) for i in range(n) for j in range(m) if torch.rand((), generator=generator) < 0.4}
        weights.append((forward, backward))
        gold.append(GoldAlignment(frozenset(sure | {(0, 0)}), frozenset({(1, 0)})))
    return weights, gold


def test_counts_are_those_of_the_error_rate():
    weights, gold = sentences(6)
    for name, linker in COMBINATIONS.items():
        found = link_all(weights, linker, gold)
        expected = alignment_error_rate(found.links, gold)
        assert scores_of(found.counts) == expected, name
    forward = [hard_alignment(pair[0]) for pair in weights]
    backward = [hard_alignment(pair[1]).transposed() for pair in weights]
    grown = [symmetrise(*both, method="grow-diag-final-and") for both in zip(forward, backward, strict=True)]
    assert link_all(weights, COMBINATIONS["source to target"], gold).links == forward
    assert link_all(weights, COMBINATIONS["target to source"], gold).links == backward
    assert link_all(weights, COMBINATIONS["grow-diag-final-and"], gold).links == grown


def test_nothing_is_chosen_on_the_sentences_it_is_scored_on():
    """Other gold links of the even sentences change what the odd ones are linked by, and nothing else."""
    weights, gold = sentences(12)
    others = [one if place % 2 else GoldAlignment(frozenset({(2, 1)})) for place, one in enumerate(gold)]
    first, second = chosen_links(weights, gold), chosen_links(weights, others)
    assert first.ways[0] == second.ways[0]
    assert first.links[::2] == second.links[::2]
    assert first.ways[1] != second.ways[1]


def test_the_way_is_the_best_of_the_other_half():
    weights, gold = sentences(12)
    chosen = chosen_links(weights, gold)
    found = {name: link_all(weights, linker, gold) for name, linker in WAYS.items()}
    for half in (0, 1):
        rates = {name: scores_of(linked.counts[1 - half :: 2]).aer for name, linked in found.items()}
        assert rates[chosen.ways[half]] == min(rates.values())
        assert chosen.links[half::2] == found[chosen.ways[half]].links[half::2]
        assert chosen.counts[half::2].equal(found[chosen.ways[half]].counts[half::2])


def test_one_sentence_has_no_other_half():
    with pytest.raises(ValueError, match="1 gold sentences, expected 2 at least"):
        chosen_links(*sentences(1))


# the bootstrap

PERFECT, WRONG = [2, 2, 2, 2], [2, 2, 0, 0]  # predicted, sure, predicted sure, predicted possible


@pytest.mark.parametrize(
    ("counts", "baseline", "expected"),
    [
        ([[PERFECT] * 5], None, (0.0, 0.0, 0.0)),
        ([[WRONG] * 5], [[PERFECT] * 5], (1.0, 1.0, 1.0)),
        # hard for both: the difference is certain, though the rates are not
        ([[PERFECT, WRONG] * 20], [[PERFECT, WRONG] * 20], (0.0, 0.0, 0.0)),
        ([[PERFECT] * 4, [WRONG] * 4], None, (0.5, 0.5, 0.5)),  # two seeds
    ],
)
def test_intervals_without_spread(counts, baseline, expected):
    found = bootstrap(torch.tensor(counts), None if baseline is None else torch.tensor(baseline))
    assert (found.value, found.low, found.high) == pytest.approx(expected)


def test_the_interval_is_that_of_a_mean():
    """With as many links in every sentence the rate is a mean, and its interval that of the normal distribution."""
    wrong = torch.arange(200) % 4 == 0
    counts = torch.where(wrong[:, None], torch.tensor(WRONG), torch.tensor(PERFECT))[None]
    found = bootstrap(counts)
    error = (0.25 * 0.75 / 200) ** 0.5
    assert found.value == pytest.approx(0.25)
    # 5000 draws: an end's own standard error is about .03 of the deviation
    assert (found.high - found.low) / (2 * 1.96 * error) == pytest.approx(1.0, abs=0.1)
    assert found == bootstrap(counts)


def test_text():
    assert Interval(-0.012, -0.03, 0.004).text(sign=True) == "-1.2 [-3.0, +0.4]"
