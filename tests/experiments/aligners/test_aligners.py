"""Aligners: error rates and certainty by hand, IBM Model 1 against NLTK, the table, and drawn text."""

import random

import pytest
import torch
from nltk.translate import AlignedSent, IBMModel1

from experiments.aligners import drawn, task
from experiments.aligners.config import AlignersConfig
from experiments.aligners.drawn import drawn_text
from experiments.aligners.ibm import train_ibm1
from experiments.aligners.scores import (
    Aligned,
    bootstrap,
    calibration_error,
    chance_error,
    coverage_curve,
    link_counts,
    rarer_counts,
    rate_at,
    total_scores,
    written_links,
)
from experiments.aligners.task import aligners, compare, pyro_align
from experiments.data.text.parallel_text import ParallelText
from experiments.files import UserError
from pyro_attention.analysis import Alignment, GoldAlignment, alignment_error_rate


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
    links = Aligned(*zip(*weights, strict=True)).links
    assert total_scores(link_counts(links, gold)) == alignment_error_rate(links, gold)


# the bootstrap

PERFECT, WRONG = [2, 2, 2, 2], [2, 2, 0, 0]  # predicted, sure, predicted sure, predicted possible


@pytest.mark.parametrize(
    ("counts", "baseline", "expected"),
    [
        ([WRONG] * 5, [PERFECT] * 5, (100.0, 100.0, 100.0)),
        # hard for both: the difference is certain, though the rates are not
        ([PERFECT, WRONG] * 20, [PERFECT, WRONG] * 20, (0.0, 0.0, 0.0)),
        ([WRONG] * 4, None, (100.0, 100.0, 100.0)),
    ],
)
def test_intervals_without_spread(counts, baseline, expected):
    found = bootstrap(torch.tensor(counts), None if baseline is None else torch.tensor(baseline))
    assert found == pytest.approx(expected)


def test_the_interval_is_that_of_a_mean():
    """With as many links in every sentence the rate is a mean, and its interval that of the normal distribution."""
    wrong = torch.arange(200) % 4 == 0
    counts = torch.where(wrong[:, None], torch.tensor(WRONG), torch.tensor(PERFECT))
    rate, low, high = bootstrap(counts)
    error = 100 * (0.25 * 0.75 / 200) ** 0.5
    assert rate == pytest.approx(25)
    # 5000 draws: an end's test_pairs standard error is about .03 of the deviation
    assert (high - low) / (2 * 1.96 * error) == pytest.approx(1.0, abs=0.1)
    assert (rate, low, high) == bootstrap(counts)


# certainty

FORWARD = torch.tensor([[0.9, 0.1], [0.4, 0.6]])
BACKWARD = torch.tensor([[0.7, 0.3], [0.2, 0.8]])
ALIGNED = Aligned([FORWARD], [BACKWARD])
DIAGONAL = [Alignment(frozenset({(0, 0), (1, 1)}), 2, 2)]
HALF_RIGHT = [GoldAlignment(frozenset({(0, 0)}), frozenset({(0, 1)}))]


def test_links_are_of_minimum_bayes_risk_by_the_geometric_mean():
    """By hand: sqrt(.9 .7) = .79, sqrt(.1 .2) = .14, sqrt(.4 .3) = .35, sqrt(.6 .8) = .69; two links are best."""
    assert [str(links) for links in ALIGNED.links] == ["0-0 1-1"]


def test_probabilities_of_written_links():
    probabilities, right = written_links(ALIGNED, DIAGONAL, HALF_RIGHT)
    assert probabilities.tolist() == pytest.approx([0.8, 0.7])
    assert right.tolist() == [1, 0]
    possible = [GoldAlignment(frozenset(), frozenset({(1, 1)}))]
    assert written_links(ALIGNED, DIAGONAL, possible)[1].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("probabilities", "right", "expected"),
    [
        ([0.95] * 4, [1, 1, 1, 1], 0.05),
        ([0.9, 0.9, 0.3, 0.3], [1, 0, 0, 0], 0.5 * 0.4 + 0.5 * 0.3),
    ],
)
def test_calibration_error(probabilities, right, expected):
    assert calibration_error(torch.tensor(probabilities), torch.tensor(right)) == pytest.approx(expected, abs=1e-6)


def test_the_error_that_right_probabilities_have_by_chance():
    """Of one bin it is the mean deviation of a binomial share; of certain events it is 0."""
    mean, most = chance_error(torch.full((100,), 0.9, dtype=torch.float64))
    assert mean == pytest.approx(0.0239, abs=0.001)  # 0.0237, by de Moivre
    assert 0.055 < most < 0.075  # six or seven links
    assert chance_error(torch.ones(10, dtype=torch.float64)) == (0.0, 0.0)


def test_how_often_the_rarer_word_of_a_link_stands_in_the_text():
    text = [(["a", "b", "a"], ["x", "y"]), (["a", "c"], ["x", "x"])]
    links = [Alignment(frozenset({(0, 0), (1, 1)}), 3, 2), Alignment(frozenset({(1, 0)}), 2, 2)]
    assert rarer_counts(links, text, text).tolist() == [3, 1, 1]


@pytest.mark.parametrize(("certainty", "half"), [(None, 0.0), ([torch.tensor([0.1, 0.2])], 1.0)])
def test_words_left_out_do_not_count(certainty, half):
    """Word 0 is the more certain one (.8 against .7) and right; word 1 has a wrong link and no gold link."""
    curve = coverage_curve(Aligned([FORWARD], [BACKWARD], certainty), DIAGONAL, HALF_RIGHT)
    assert rate_at(curve, 0.5) == half
    assert rate_at(curve, 0.51) == rate_at(curve, 1.0) == pytest.approx(1 - 2 / 3)  # 1 - (1 + 1) / (2 + 1)


# aligners

TRAIN = ParallelText(["das haus", "das buch", "ein buch"], ["the house", "the book", "a book"], "train", ("de", "en"))
TEST = ParallelText(["ein haus", "das"], ["a new house", "the"], "test", ("de", "en"))


def test_eflomal_is_given_all_sentences_and_its_last_links_count(tmp_path, monkeypatch):
    program = tmp_path / "eflomal-align"
    program.write_text(
        "#!/bin/sh\nsed 's/.*/0-0/' source > forward; sed '1,3s/.*//; 4s/.*/1-2/; 5s/.*//' target > backward\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    pairs, text = TEST.word_pairs(), [*TRAIN.word_pairs(), *TEST.word_pairs()]
    known = aligners()
    assert list(known)[:3] == ["IBM Model 1", "eflomal", "eflomal, votes of 6 runs"]
    for name in ("eflomal", "eflomal, votes of 6 runs"):
        aligned = known[name](text, pairs)
        assert aligned.forward[0].tolist() == [[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
        assert aligned.backward[0].tolist() == [[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    one = known["IBM Model 1"](text, pairs)
    assert [tuple(matrix.shape) for matrix in one.backward] == [(2, 3), (1, 1)]
    expected = train_ibm1(text).link_probabilities(["ein", "haus"], ["a", "new", "house"])
    torch.testing.assert_close(one.forward[0], expected)


RANDOM = random.Random(0)
# no sentence repeats a word: NLTK counts one that does as if it stood there once
PAIRS = [
    tuple(RANDOM.sample([f"{side}{i}" for i in range(12)], RANDOM.randint(2, 4)) for side in "st") for _ in range(40)
]


def test_the_model_of_nltk():
    """The posterior by its table, on pairs of words that are in the text."""
    theirs = IBMModel1([AlignedSent(target, source) for source, target in PAIRS], 5)
    ours = train_ibm1(PAIRS)
    for source, target in PAIRS:
        joint = torch.tensor(
            [[theirs.translation_table[word][other] for other in (None, *source)] for word in target],
            dtype=torch.float64,
        )
        expected = (joint / joint.sum(-1, keepdim=True))[:, 1:]
        torch.testing.assert_close(ours.link_probabilities(source, target), expected, atol=1e-6, rtol=1e-5)
    assert ours.link_probabilities(["s0"], ["new"]).tolist() == [[0.0]]


def test_cross_fitting_is_a_row_that_one_asks_for(tmp_path, monkeypatch):
    def alike(align, text, pairs):
        weights = [torch.full((len(target), len(source)), 0.5) for source, target in pairs]
        return Aligned(weights, [one.mT for one in weights]), {}

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(drawn, "_TEST", 4)
    monkeypatch.setattr(task, "_run_measured", alike)
    names = [row["aligner"] for row in compare(AlignersConfig(dataset="drawn-order", pairs=4))]
    assert {"IBM Model 1", "pyro-align"} <= {*names}
    assert not {"pyro-align, cross-fitted", "pyro-align, one model"} & {*names}
    with pytest.raises(UserError, match="'nosuch', expected some of IBM Model 1"):
        compare(AlignersConfig(dataset="drawn-order", pairs=4, aligners=("nosuch",)))


def test_pairs_are_joined_with_their_links():
    _, test = drawn_text("drawn-order", 1)
    texts = test.first(5).joined(2)
    pairs, joined, links = test.first(5).word_pairs(), texts.word_pairs(), list(texts.gold)
    assert joined == [(a + c, b + d) for (a, b), (c, d) in zip(pairs[:4:2], pairs[1::2], strict=True)] + pairs[4:]
    shift = len(pairs[0][0]), len(pairs[0][1])
    moved = {(s + shift[0], t + shift[1]) for s, t in test.gold[1].sure}
    assert links[0].sure == test.gold[0].sure | moved
    assert links[2].sure == test.gold[4].sure


@pytest.mark.slow
@pytest.mark.parametrize("name", ["drawn-order", "drawn-jumps"])
def test_cross_fitting_has_the_errors_of_text_that_was_not_trained_on(name):
    train, test = drawn_text(name, 5000)
    pairs, gold = test.word_pairs()[:500], test.gold[:500]
    text = [*train.word_pairs(), *pairs]
    rates = {
        options: total_scores(link_counts(pyro_align(text, pairs, **dict(options)).links, gold)).aer
        for options in ((("parts", 5),), (("held_out", True),), (("held_out", True), ("members", 1)))
    }
    crossed, held_out, one_model = rates.values()
    assert crossed == pytest.approx(held_out, abs=0.01)
    assert one_model > held_out + 0.01  # what the halves are for


@pytest.mark.slow
@pytest.mark.parametrize(("name", "most"), [("drawn-order", 0.02), ("drawn-jumps", 0.05)])
def test_probabilities_of_links_that_the_text_tells_are_right(name, most):
    train, test = drawn_text(name, 20000)
    test_pairs = test.word_pairs()
    aligned = pyro_align([*train.word_pairs(), *test_pairs], test_pairs)
    assert calibration_error(*written_links(aligned, aligned.links, test.gold)) < most
