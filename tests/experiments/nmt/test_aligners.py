"""Aligners on worked examples: error rates by way of linking, the bootstrap, what certainty is worth, baselines."""

import pytest
import torch

from experiments.datasets.text.parallel_text import ParallelText
from experiments.nmt.align import PairAlignment
from experiments.nmt.aligners import (
    COMBINATIONS,
    WAYS,
    Aligned,
    bootstrap,
    certainty,
    chosen_links,
    classic_aligners,
    coverage_curve,
    link_all,
    linked_words,
    rate_at,
)
from experiments.nmt.em_aligners import train_em
from pyro_attention.analysis import Alignment, GoldAlignment, alignment_error_rate, hard_alignment


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
    for way in COMBINATIONS:
        found = link_all(weights, way, gold)
        assert found.scores == alignment_error_rate(found.links, gold), way
    forward = [hard_alignment(pair[0]) for pair in weights]
    backward = [hard_alignment(pair[1]).transposed() for pair in weights]
    assert link_all(weights, "source to target", gold).links == forward
    assert link_all(weights, "target to source", gold).links == backward


def test_the_way_is_the_best_of_the_other_half():
    weights, gold = sentences(12)
    chosen = chosen_links(weights, gold)
    found = {way: link_all(weights, way, gold) for way in WAYS}
    for half in (0, 1):
        other = range(1 - half, len(gold), 2)
        rates = {
            way: alignment_error_rate([linked.links[i] for i in other], [gold[i] for i in other]).aer
            for way, linked in found.items()
        }
        assert rates[chosen.ways[half]] == min(rates.values())
        assert chosen.links[half::2] == found[chosen.ways[half]].links[half::2]
        assert chosen.counts[half::2].equal(found[chosen.ways[half]].counts[half::2])


# the bootstrap

PERFECT, WRONG = [2, 2, 2, 2], [2, 2, 0, 0]  # predicted, sure, predicted sure, predicted possible


@pytest.mark.parametrize(
    ("counts", "baseline", "expected"),
    [
        ([[WRONG] * 5], [[PERFECT] * 5], (100.0, 100.0, 100.0)),
        # hard for both: the difference is certain, though the rates are not
        ([[PERFECT, WRONG] * 20], [[PERFECT, WRONG] * 20], (0.0, 0.0, 0.0)),
        ([[PERFECT] * 4, [WRONG] * 4], None, (50.0, 50.0, 50.0)),  # two seeds
    ],
)
def test_intervals_without_spread(counts, baseline, expected):
    found = bootstrap(torch.tensor(counts), None if baseline is None else torch.tensor(baseline))
    assert found == pytest.approx(expected)


def test_the_interval_is_that_of_a_mean():
    """With as many links in every sentence the rate is a mean, and its interval that of the normal distribution."""
    wrong = torch.arange(200) % 4 == 0
    counts = torch.where(wrong[:, None], torch.tensor(WRONG), torch.tensor(PERFECT))[None]
    rate, low, high = bootstrap(counts)
    error = 100 * (0.25 * 0.75 / 200) ** 0.5
    assert rate == pytest.approx(25)
    # 5000 draws: an end's own standard error is about .03 of the deviation
    assert (high - low) / (2 * 1.96 * error) == pytest.approx(1.0, abs=0.1)
    assert (rate, low, high) == bootstrap(counts)


# certainty

FORWARD = torch.tensor([[0.9, 0.1], [0.4, 0.6]])
BACKWARD = torch.tensor([[0.7, 0.3], [0.2, 0.8]])


def aligned(forward=FORWARD[None], backward=BACKWARD[None]):
    words = [f"w{i}" for i in range(2)]
    return Aligned([PairAlignment(words, words, None, forward)], [PairAlignment(words, words, None, backward)])


DIAGONAL = [Alignment(frozenset({(0, 0), (1, 1)}), 2, 2)]
HALF_RIGHT = [GoldAlignment(frozenset({(0, 0)}), frozenset({(0, 1)}))]


def test_probabilities_of_written_links():
    found = {name: values.tolist() for name, values in linked_words(aligned(), DIAGONAL, HALF_RIGHT).items()}
    expected = {
        "right": [1, 0], "mean": [0.8, 0.7], "product": [0.63, 0.48], "forward": [0.9, 0.6],
        "entropy": [0.3251, 0.6730],
    }  # fmt: skip
    assert found.keys() == expected.keys()  # a single posterior has no width
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, abs=1e-4), name
    possible = [GoldAlignment(frozenset(), frozenset({(1, 1)}))]
    found = linked_words(aligned(), DIAGONAL, possible, [torch.tensor([0.1, 0.2])])
    assert found["right"].tolist() == [0, 1]
    assert found["soft_entropy"].tolist() == pytest.approx([0.1, 0.2])


def test_widths_of_credible_intervals():
    draws = torch.linspace(0, 1, 21)
    forward = torch.stack([torch.stack([draws, 1 - draws], -1), torch.tensor([0.4, 0.6]).expand(21, 2)], 1)
    found = linked_words(aligned(forward), DIAGONAL, HALF_RIGHT)
    # the mean of a draw and of a single posterior: half the width of 90 %
    assert found["width"].tolist() == pytest.approx([0.45, 0.0], abs=1e-6)


def links(mean, right, **changes):
    mean, right = torch.tensor(mean, dtype=torch.float64), torch.tensor(right).double()
    return {"right": right, "mean": mean, "product": mean, "forward": mean, "entropy": 1 - mean} | changes


@pytest.mark.parametrize(
    ("mean", "right", "expected"),
    [
        ([0.95] * 4, [True] * 4, 0.05),
        ([0.9, 0.9, 0.3, 0.3], [True, False, False, False], 0.5 * 0.4 + 0.5 * 0.3),
    ],
)
def test_calibration_error(mean, right, expected):
    found = certainty(links(mean, right))
    assert found["ece_mean"] == found["ece_forward"] == pytest.approx(expected, abs=1e-6)
    assert ("auroc_probability" in found) == (not all(right))  # no area without a wrong link
    assert certainty(links([], [])) == {}


def test_areas():
    """Wrong links at .2 and .6, right ones at .4 and .8: of the four pairs three are in order."""
    width = torch.tensor([0.9, 0.8, 0.1, 0.2], dtype=torch.float64)
    alike = {"soft_entropy": torch.full((4,), 3.0)}
    found = certainty(links([0.2, 0.6, 0.4, 0.8], [False, False, True, True], width=width, **alike))
    assert found["auroc_probability"] == found["auroc_entropy"] == pytest.approx(0.75)
    assert found["auroc_width"] == pytest.approx(1.0)
    assert found["auroc_soft_entropy"] == pytest.approx(0.5)


def test_words_left_out_do_not_count():
    """Word 0 is the more certain one (.8 against .7) and right; word 1 has a wrong link and no gold link."""
    curve = coverage_curve(aligned(), DIAGONAL, HALF_RIGHT)
    assert rate_at(curve, 0.5) == 0.0
    assert rate_at(curve, 0.51) == rate_at(curve, 1.0) == pytest.approx(1 - 2 / 3)  # 1 - (1 + 1) / (2 + 1)


# baselines

TRAIN = ParallelText(["das haus", "das buch", "ein buch"], ["the house", "the book", "a book"], "train", ("de", "en"))
TEST = ParallelText(["ein haus", "das"], ["a new house", "the"], "test", ("de", "en"))


def test_baselines_are_trained_on_both_texts_in_both_directions_and_eflomal_where_there_is_one(tmp_path, monkeypatch):
    """Eflomal is given all sentences, and what it says of the last ones counts, in both directions source first."""
    program = tmp_path / "eflomal-align"
    program.write_text(
        "#!/bin/sh\nsed 's/.*/0-0/' source > forward; sed '1,3s/.*//; 4s/.*/1-2/; 5s/.*//' target > backward\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = dict(classic_aligners(TRAIN, TEST))
    assert list(found) == ["IBM Model 1", "IBM Model 2", "Model 2 with a diagonal prior (as fast_align)", "eflomal"]
    one = found["IBM Model 1"]
    assert [pair.posterior.shape for pair in one.backward] == [(1, 2, 3), (1, 1, 1)]
    text = zip([*TRAIN.source, *TEST.source], [*TRAIN.target, *TEST.target], strict=True)
    trained = train_em([(source.split(), target.split()) for source, target in text], model="ibm1")
    expected = trained.link_probabilities(["ein", "haus"], ["a", "new", "house"])
    torch.testing.assert_close(one.forward[0].posterior[0], expected)
    assert one.weights("prior") == []
    combined = (one.forward[0].posterior + one.backward[0].posterior.mT) / 2
    torch.testing.assert_close(one.combined[0].posterior, combined)
    eflomal = found["eflomal"]
    assert eflomal.forward[0].posterior.tolist() == [[[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]]
    assert eflomal.backward[0].posterior.tolist() == [[[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]]]
