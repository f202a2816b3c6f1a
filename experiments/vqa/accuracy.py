"""The accuracy of visual question answering: how many of ten people gave the answer, after answers are made alike.

The rules are those of the official evaluation of VQA (Antol et al., 2015; Goyal et al., 2017). An answer's accuracy is

    mean over people i of  min(number of the others who gave the answer / 3, 1),

so three agreeing people beside oneself are enough. Where all people gave the same answer, texts are compared as they
stand; else both sides lose punctuation and articles, numbers become digits, and contractions get their apostrophe.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

_NUMBERS = {
    "none": 0, "zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8,
    "nine": 9, "ten": 10,
}  # fmt: skip
_ARTICLES = {"a", "an", "the"}
_PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
_WITH_APOSTROPHE = [
    "ain't", "aren't", "can't", "could've", "couldn't", "didn't", "doesn't", "don't", "hadn't", "hasn't", "haven't",
    "he'd", "he's", "how'd", "how'll", "how's", "isn't", "it'd", "it'll", "ma'am", "might've", "mightn't", "must've",
    "mustn't", "needn't", "not've", "o'clock", "oughtn't", "shan't", "should've", "shouldn't", "somebody'll",
    "somebody's", "someone'd", "someone'll", "someone's", "something'd", "something'll", "that's", "there'd",
    "there're", "there's", "they'd", "they'll", "they're", "they've", "'twas", "wasn't", "we've", "weren't", "what'll",
    "what're", "what's", "what've", "when's", "where'd", "where's", "where've", "who'd", "who'll", "who's", "who've",
    "why'll", "why're", "why's", "won't", "would've", "wouldn't", "y'all", "you'd", "you'll", "you're", "you've"
]  # fmt: skip
_CONTRACTIONS = {word.replace("'", ""): word for word in _WITH_APOSTROPHE}


def normalize_answer(answer: str) -> str:
    """Return an answer without punctuation and articles, with digits for numbers and apostrophes where they belong.

    Example:
        >>> normalize_answer("The dog, isnt it?"), normalize_answer("two")
        ("dog isn't it", '2')
    """
    text = answer.replace("\n", " ").replace("\t", " ").strip()
    found = text
    for sign in _PUNCTUATION:
        # a sign at the edge of a word, or in a text with a number such as 1,000, falls away; others part two words
        beside_blank = f"{sign} " in text or f" {sign}" in text or re.search(r"\d,\d", text)
        found = found.replace(sign, "" if beside_blank else " ")
    found = re.sub(r"\.(?!\d)", "", found)
    words = [str(_NUMBERS.get(word, word)) for word in found.lower().split()]
    return " ".join(_CONTRACTIONS.get(word, word) for word in words if word not in _ARTICLES)


def consensus(votes: Mapping[str, int]) -> dict[str, int]:
    """Return the votes with alike answers taken together; those of people who all agree as they are."""
    if len(votes) == 1:
        return dict(votes)
    found = Counter[str]()
    for answer, count in votes.items():
        found[normalize_answer(answer)] += count
    return dict(found)


def vqa_accuracy(answer: str, votes: Mapping[str, int]) -> float:
    """Return the accuracy of an answer, between 0 and 1; a single person's answer is right or wrong.

    Example:
        >>> votes = {"red": 3, "dark red": 7}
        >>> round(vqa_accuracy("red", votes), 2), vqa_accuracy("dark red", votes), vqa_accuracy("blue", votes)
        (0.9, 1.0, 0.0)
    """
    people = sum(votes.values())
    if len(votes) > 1:
        answer = normalize_answer(answer)
    agreeing = consensus(votes).get(answer, 0)
    if people == 1:
        return float(agreeing)
    # one who gave the answer has one fewer others who did
    with_it, without = min((agreeing - 1) / 3, 1), min(agreeing / 3, 1)
    return (agreeing * with_it + (people - agreeing) * without) / people


def soft_scores(votes: Mapping[str, int]) -> dict[str, float]:
    """Return the training target of every answer, min(people / 3, 1); that of a single person's is one."""
    people = sum(votes.values())
    return {answer: min(count / min(3, people), 1.0) for answer, count in consensus(votes).items()}
