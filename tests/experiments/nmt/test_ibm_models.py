"""IBM Models 1 and 2 as baselines."""

import pickle
from functools import cache

import pytest
import torch
from nltk.translate import AlignedSent, IBMModel1, IBMModel2

from experiments.nmt.ibm_models import train_ibm
from tests.analysis.alignments.random_alignments import aligned

# the example of NLTK's documentation, German words given English ones
PAIRS = [
    (english.split(), german.split())
    for english, german in [
        ("the house is small", "klein ist das haus"),
        ("the house is big", "das haus ist ja groß"),
        ("the book is small", "das buch ist ja klein"),
        ("the house", "das haus"),
        ("the book", "das buch"),
        ("a book", "ein buch"),
    ]
]


@cache
def trained_ibm(model):
    return train_ibm(PAIRS, model=model, iterations=5)


@pytest.mark.parametrize(("model", "theirs"), [(1, IBMModel1), (2, IBMModel2)])
def test_training_sentences_as_nltk_aligns_them(model, theirs):
    trained = trained_ibm(model)
    corpus = [AlignedSent(target, source) for source, target in PAIRS]
    theirs(corpus, 5)
    for sentence in corpus[2:]:
        expected = {(source, target) for target, source in sentence.alignment if source is not None}
        assert trained.align(sentence.mots, sentence.words).links == expected
    assert trained.align(*PAIRS[2]) == aligned("0-0 1-1 2-2 2-3 3-4", 4, 5)


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (lambda: trained_ibm(1).translation["buch"]["book"], 0.889),
        (lambda: trained_ibm(1).translation["ja"][None], 0.073),
        (lambda: trained_ibm(2).positions[2, 2][0][1], 0.939),
        (lambda: trained_ibm(2).positions[4, 5][1][2], 1.0),
    ],
    ids=["buch", "ja", "two words", "five words"],
)
def test_numbers_of_the_documentation(number, expected):
    assert round(number(), 3) == expected


@pytest.mark.parametrize("model", [1, 2])
def test_posterior(model):
    trained = trained_ibm(model)
    probabilities = trained.link_probabilities(*PAIRS[1])
    assert probabilities.shape == (5, 4)
    assert (probabilities >= 0).all()
    assert (probabilities.sum(-1) <= 1 + 1e-9).all()
    assert probabilities[1].argmax() == 1


@pytest.mark.parametrize("model", [1, 2])
def test_words_and_lengths_never_seen(model):
    trained = trained_ibm(model)
    # NLTK would link "auto" to the last word, and "haus" to whatever it never met
    links = trained.align(["the", "car", "is", "small"], ["das", "auto", "klein"]).links
    assert links == {(0, 0), (3, 2)}
    assert trained.align(["a"], ["haus"]).links == frozenset()
    assert trained.align(["book"] * 7, ["buch"] * 3).links == {(0, 0), (0, 1), (0, 2)}  # of equal ones the first


def test_model_2_is_model_1_at_lengths_never_seen():
    second = train_ibm(PAIRS, model=2)
    words = (["the", "the", "house"], ["das", "haus", "haus"])
    uniform = [[second.translation[t].get(s, 0.0) for s in [None, *words[0]]] for t in words[1]]
    expected = torch.tensor(uniform, dtype=torch.float64)
    expected = expected[:, 1:] / expected.sum(-1, keepdim=True)
    torch.testing.assert_close(second.link_probabilities(*words), expected)


def test_a_word_that_null_explains_better():
    """ "ja" stands in every sentence and "oh" never has a partner of its own."""
    pairs = [([word], [word.upper(), "ja"]) for word in "abcdefgh"]
    model = train_ibm(pairs, iterations=10)
    assert model.align(*pairs[0]) == aligned("0-0", 1, 2)
    assert model.link_probabilities(*pairs[0])[1].sum() < 0.5


def test_directions():
    """Source and target swapped: another model, whose alignment is turned round to be compared."""
    backward = train_ibm([(target, source) for source, target in PAIRS])
    links = backward.align(PAIRS[0][1], PAIRS[0][0])
    assert (links.num_source, links.num_target) == (4, 4)
    assert links.transposed().links >= {(1, 3), (0, 2)}  # house - haus, the - das


@pytest.mark.parametrize("model", [1, 2])
def test_pickle(model):
    trained = trained_ibm(model)
    again = pickle.loads(pickle.dumps(trained))
    assert again.link_probabilities(*PAIRS[0]).equal(trained.link_probabilities(*PAIRS[0]))


def test_nltk_counts_a_repeated_word_once():
    """What the module says of NLTK: the maximum likelihood estimate would be 2 / 3."""
    model = IBMModel1([AlignedSent(["x", "x", "y"], ["a"])], 20)
    assert model.translation_table["x"]["a"] == pytest.approx(0.5)
