"""Classic aligners: IBM Models 1 and 2 against NLTK's, the diagonal prior against its closed form."""

import random

import numpy as np
import pytest
import torch
from nltk.translate import AlignedSent, IBMModel1, IBMModel2

from experiments.nmt.em_aligners import EMAligner, train_em

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


@pytest.mark.parametrize("model", ["ibm1", "ibm2", "diagonal"])
def test_a_text_that_keeps_its_order(model):
    trained = train_em(words(200), model=model)
    found = [trained.link_probabilities(*pair) for pair in words(30, start=1)]
    right = [best == place for rows in found for place, best in enumerate(rows.argmax(-1).tolist())]
    assert sum(right) / len(right) > 0.8
    assert all((rows.sum(-1) <= 1 + 1e-9).all() for rows in found)
    # an unknown source word takes nothing from a known one
    assert trained.link_probabilities(["s0", "never"], ["t0", "seen"])[:, 1].tolist() == [0, 0]
