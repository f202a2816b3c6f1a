"""Words as raw text has them, and joined again."""

import pytest

from experiments.datasets.text.word_rules import divide_words, join_words


@pytest.mark.parametrize(
    ("rule", "text", "words"),
    [
        ("nltk", "Er kam, sah und (z.B.) siegte.", "Er kam , sah und ( z.B. ) siegte ."),
        ("nltk", "They don't.", "They do n't ."),
        ("none", "Er  kam, sah.", "Er kam, sah."),
    ],
)
def test_divide_words(rule, text, words):
    assert divide_words(text, rule) == words


@pytest.mark.parametrize(
    ("rule", "joined"), [("nltk", "Er kam, sah und siegte."), ("none", "Er kam , sah und siegte .")]
)
def test_join_words(rule, joined):
    assert join_words("Er kam , sah und siegte .", rule) == joined
