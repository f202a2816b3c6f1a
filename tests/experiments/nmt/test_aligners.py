"""Aligners: error rates and certainty by hand, classic ones against NLTK, networks that agree, and drawn text."""

import random

import numpy as np
import pytest
import torch
from nltk.translate import AlignedSent, IBMModel1, IBMModel2

from experiments.datasets.text.batches import BucketSampler, train_tokenizer
from experiments.datasets.text.parallel_text import ParallelText
from experiments.files import UserError
from experiments.nmt import classics
from experiments.nmt.align import PairAlignment
from experiments.nmt.aligners import (
    COMBINATIONS,
    WAYS,
    Aligned,
    aligned_words,
    bootstrap,
    calibration_error,
    certainty,
    chosen_links,
    classic_aligners,
    coverage_curve,
    link_all,
    linked_words,
    pyro_align,
    rate_at,
)
from experiments.nmt.classics import BothTexts, agreement, compare, drawn_text, log_evidence, network_align
from experiments.nmt.config import ALIGNER, ClassicsConfig, TranslationConfig
from experiments.nmt.em_aligners import EMAligner, train_em
from experiments.nmt.model import build, word_pairs
from experiments.sequence.model import model_arguments
from pyro_attention.analysis import Alignment, GoldAlignment, alignment_error_rate, hard_alignment
from pyro_attention.ops.token_log_prob import token_log_prob


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


RANDOM = random.Random(0)
# no sentence repeats a word: NLTK counts one that does as if it stood there once
PAIRS = [
    tuple(RANDOM.sample([f"{side}{i}" for i in range(12)], RANDOM.randint(2, 4)) for side in "st") for _ in range(40)
]


def words(count, start=0):
    """A text that keeps the order: word i stands for word i, with neighbors by chance."""
    generator = random.Random(start)
    found = []
    for _ in range(count):
        numbers = [generator.randrange(30) for _ in range(generator.randint(3, 8))]
        found.append(([f"s{n}" for n in numbers], [f"t{n}" for n in numbers]))
    return found


@pytest.mark.parametrize(("model", "nltk"), [("ibm1", IBMModel1), ("ibm2", IBMModel2)])
def test_the_models_of_nltk(model, nltk):
    """The posterior by its tables, on pairs of words and of lengths that are in the text."""
    theirs = nltk([AlignedSent(target, source) for source, target in PAIRS], 5)
    ours = train_em(PAIRS, model=model)
    for source, target in PAIRS:
        joint = torch.tensor(
            [[theirs.translation_table[word][other] for other in (None, *source)] for word in target],
            dtype=torch.float64,
        )
        if model == "ibm2":
            n, m = len(source), len(target)
            table = theirs.alignment_table
            joint *= torch.tensor([[table[i][j][n][m] for i in range(n + 1)] for j in range(1, m + 1)])
        expected = (joint / joint.sum(-1, keepdim=True))[:, 1:]
        torch.testing.assert_close(ours.link_probabilities(source, target), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("num_source", "num_target"), [(3, 2), (1, 4), (5, 5)])
def test_the_diagonal_prior(num_source, num_target):
    prior = EMAligner("diagonal", {}, {}, strength=3.0).prior(num_source, num_target)
    for j in range(num_target):
        weights = [np.exp(-3.0 * abs((i + 1) / num_source - (j + 1) / num_target)) for i in range(num_source)]
        assert prior[j] == pytest.approx([0.08, *(0.92 * weight / sum(weights) for weight in weights)])


def test_the_strength_of_the_diagonal_is_the_best_one():
    """At the maximum of the likelihood: the expected distance is the same by the prior and by the posterior."""
    generator = random.Random(0)
    pairs = []
    for source, target in words(150):
        for place in range(len(target) - 1):  # some neighbors change places
            if generator.random() < 0.4:
                target[place], target[place + 1] = target[place + 1], target[place]
        pairs.append((source, target))
    model = train_em(pairs, model="diagonal", iterations=30)
    expected = predicted = 0.0
    for source, target in pairs:
        posterior = model.link_probabilities(source, target).numpy()
        prior = model.prior(len(source), len(target))[:, 1:] / 0.92
        places = np.arange(1, len(source) + 1) / len(source) - (np.arange(1, len(target) + 1) / len(target))[:, None]
        expected += (posterior * abs(places)).sum()
        predicted += (posterior.sum(-1, keepdims=True) * prior * abs(places)).sum()
    assert 0.1 < model.strength < 14.0
    assert predicted == pytest.approx(expected, rel=0.01)


SOURCE = ["das haus", "das kleine haus ist klein", "ein buch"]
TARGET = ["the house", "the small house is small", "a book indeed"]
SMALL = {**ALIGNER, "hidden": 8, "embedding": 8, "vocabulary": 300, "device": "cpu", "guide": "marginal"}


@pytest.fixture
def both():
    """A network, and a batch of both directions."""
    vocabulary = train_tokenizer([*SOURCE, *TARGET], size=300)
    trained = build(TranslationConfig(**SMALL | {"dropout": 0.0}), vocabulary)
    data = BothTexts(ParallelText(SOURCE, TARGET, "text", ("de", "en")), trained)
    return trained, data[next(iter(BucketSampler(data.lengths, sentences=3)))]


def test_the_evidence_and_its_gradient_are_those_of_the_enumerated_site(both, monkeypatch):
    """Which computes the output layer once, for each distinct source piece, NULL and the padding."""
    trained, (batch, _) = both
    rows = []
    logits = type(trained.model.likelihood(torch.zeros(1, 8), torch.zeros(1, 8))).logits
    counted = property(lambda one: rows.append(one.features.shape[:-1].numel()) or logits.fget(one))
    monkeypatch.setattr("pyro_attention.likelihoods.TokenLikelihood.logits", counted)
    monkeypatch.setattr("pyro_attention.likelihoods.token_log_prob", lambda *_, **__: pytest.fail("another pass"))
    parameters = list(trained.model.parameters())
    loss = trained.module.objective(*model_arguments(batch))
    assert rows == [len(set(batch.source[batch.source_mask].tolist())) + 2]
    evidence, _ = log_evidence(trained.model, batch)
    torch.testing.assert_close(loss, -evidence)
    expected, found = (
        torch.autograd.grad(one, parameters, allow_unused=True, materialize_grads=True) for one in (-evidence, loss)
    )
    torch.testing.assert_close(found, expected)
    monkeypatch.setattr("pyro_attention.likelihoods.token_log_prob", token_log_prob)
    trained.model.pieces = lambda *_: None  # as with an encoder that knows the neighbors: a row for each place
    torch.testing.assert_close(trained.module.objective(*model_arguments(batch)), loss)


def test_agreement_multiplies_links_and_leaves_the_rest(both):
    _, batch = both
    forward, backward = (
        torch.rand_like(torch.zeros(3, one.source.size(1) + 1, one.target_out.size(1))) for one in batch
    )
    found = agreement(forward, backward, batch)
    for row in range(3):
        n, m = (int(one.source_mask[row].sum()) for one in batch)
        own, other = forward[row, 1 : n + 1, :m], backward[row, 1 : m + 1, :n].mT
        links = found[0][row, 1 : n + 1, :m]
        torch.testing.assert_close(links, own * other * (own.sum(0) / (own * other).sum(0)))
        links = found[1][row, 1 : m + 1, :n].mT
        torch.testing.assert_close(links, own * other * (other.sum(1) / (own * other).sum(1))[:, None])
        for new, old, size in ((found[0], forward, m), (found[1], backward, n)):
            assert torch.equal(new[row, 0], old[row, 0])  # NULL
            assert torch.equal(new[row, :, size], old[row, :, size])  # the end of the sentence


@pytest.mark.parametrize("agree", [False, True])
def test_networks_align(agree, monkeypatch):
    """Posteriors of both directions between the words, those of each word at most 1."""
    monkeypatch.setattr(
        "experiments.nmt.classics._CONFIG", TranslationConfig(**SMALL | {"max_epochs": 1, "progress": False})
    )
    text = list(zip(*([line.split() for line in side] for side in (SOURCE, TARGET)), strict=True)) * 4
    aligned = network_align(text, text[:3], agree=agree)
    for (source, target), one, other in zip(text, aligned.forward, aligned.backward, strict=False):
        assert one.posterior.shape == (1, len(target), len(source))
        assert other.posterior.shape == (1, len(source), len(target))
        assert one.posterior.sum(-1).max() <= 1 + 1e-5


def test_networks_and_their_mean_are_rows_that_one_asks_for(tmp_path, monkeypatch):
    def alike(align, text, own):
        weights = [torch.full((len(target), len(source)), 0.5) for source, target in own]
        return aligned_words(own, [(one, one.mT) for one in weights]), {}

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(classics, "_TEST", 4)
    monkeypatch.setattr(classics, "_measured", alike)
    names = [row["aligner"] for row in compare(ClassicsConfig(dataset="drawn-order", pairs=4))]
    assert {"IBM Model 1", "pyro-align"} <= {*names}
    assert not any("marginal" in name or "cross-fitted" in name for name in names)
    mean = "mean of pyro-align and marginal in agreement"
    for rows, message in (
        ((mean,), "pyro-align and marginal in agreement ahead of it; name them too"),
        (("pyro-align", mean, "marginal in agreement"), "marginal in agreement ahead of it"),
        (("nosuch",), "expected some of IBM Model 1"),
    ):
        with pytest.raises(UserError, match=message):
            compare(ClassicsConfig(dataset="drawn-order", pairs=4, aligners=rows))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "most"), [("drawn-order", 0.02), ("drawn-jumps", 0.035)])
def test_probabilities_of_links_that_the_text_tells_are_right(name, most):
    train, test = drawn_text(name, 20000)
    own = word_pairs(test)
    aligned = pyro_align([*word_pairs(train), *own], own)
    links = link_all(aligned.weights("posterior"), "geometric, mbr", test.gold).links
    assert calibration_error(linked_words(aligned, links, test.gold), "mean") < most
