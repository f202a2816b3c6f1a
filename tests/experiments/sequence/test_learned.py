"""Whether a network has learned anything: word frequencies, how attention moves, and what is said of them."""

import math
from types import SimpleNamespace

import pytest
import torch

from experiments.data.text.batches import Batch, padded, teacher_forced
from experiments.sequence.alignments import BatchAlignment, EntropySums
from experiments.sequence.evaluation import training_warnings, unigram_perplexity

GOOD = {
    "val_ppl": 10.0,
    "val_ppl_unigram": 100.0,
    "test_relative_entropy": 0.5,
    "test_attention_change": 0.4,
}


def ids(*sentences):
    return [torch.tensor(sentence, dtype=torch.int64) for sentence in sentences]


@pytest.mark.parametrize(
    ("val", "probabilities"),
    [
        ([[4, 4], []], [4 / 10, 4 / 10, 3 / 10, 3 / 10]),
        ([[6, 4]], [1 / 10, 4 / 10, 3 / 10]),
    ],
)
def test_word_frequencies_count_once_more_and_with_the_ends(val, probabilities):
    """Of eight pieces the first two never come; two ends, three 4 and one 5 are there, and 3, 6 and 7 are new."""
    train = ids([4, 4, 5], [4])
    total = sum(math.log(p * 10 / 12) for p in probabilities)
    expected = math.exp(-total / len(probabilities))
    assert unigram_perplexity(train, ids(*val), vocabulary=8) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("metric", "value", "part"),
    [
        ("val_ppl", 90.1, "perplexity is 90.1, that of a unigram model 100"),
        ("test_relative_entropy", 0.951, "nearly uniform: its entropy is 95.1%"),
        ("test_attention_change", 0.049, "the same for all words of a sentence: 4.9%"),
    ],
)
def test_what_shows_that_nothing_was_learned_is_said_in_a_sentence(metric, value, part):
    [text] = training_warnings(GOOD | {metric: value})
    assert part in text


def test_a_network_that_has_learned_something_is_not_warned_of():
    metrics = GOOD | {"val_ppl": 89.9, "test_relative_entropy": 0.95}
    assert training_warnings(metrics) == []
    # uniform attention is not said twice
    texts = training_warnings(metrics | {"test_relative_entropy": 1.0, "test_attention_change": 0.0})
    assert ["uniform" in text for text in texts] == [True]


def spread(weights):
    """Relative entropy and change of attention of two sentences: three and one words, four and one places."""
    source = padded(ids([4, 4, 4, 4], [4]))
    batch = Batch(*source, *teacher_forced(ids([5, 5], [])), torch.arange(2))
    posterior = torch.rand(1, 2, 3, 4)  # at the padding anything
    posterior[0, 0] = torch.tensor(weights)
    posterior[0, 1, 0] = torch.tensor([1.0, 0, 0, 0])
    model = SimpleNamespace(attention=SimpleNamespace(prior=None))
    guide = SimpleNamespace(family=lambda site: None)
    trained = SimpleNamespace(family=SimpleNamespace(kind="alignment"), model=model, guide=guide)
    sums = EntropySums()
    sums.add(trained, batch, BatchAlignment(None, posterior))
    return sums.metrics["test_relative_entropy"], sums.metrics["test_attention_change"]


@pytest.mark.parametrize(
    ("weights", "entropy", "change"),
    [
        ([[0.25] * 4] * 3, 1.0, 0.0),
        ([[1.0, 0, 0, 0], [0, 1.0, 0, 0], [0, 0, 0, 1.0]], 0.0, 2 / 3),
        ([[1.0, 0, 0, 0], [1.0, 0, 0, 0], [0.5, 0.5, 0, 0]], 1 / 6, (1 / 6 + 1 / 6 + 1 / 3) / 3),
    ],
)
def test_how_attention_spreads_and_moves(weights, entropy, change):
    """Sentences of one word, or of one place, say nothing."""
    assert spread(weights) == (pytest.approx(entropy), pytest.approx(change))
