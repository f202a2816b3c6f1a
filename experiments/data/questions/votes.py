"""Answers of several people to a question: the official accuracy of VQA, and the training targets.

Answers are normalized first. The accuracy of an answer is then the mean over the ten people (Antol et al., 2015; Goyal
et al., 2017)

    mean over i of  min(number of the people other than i who gave the answer / 3, 1)

Where all people gave the same answer, answers are compared without normalization.
"""

import re
from collections import Counter
from collections.abc import Mapping

PEOPLE = 10

_NUMBERS = {
    "none": 0, "zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8,
    "nine": 9, "ten": 10,
}  # fmt: skip
_ARTICLES = {"a", "an", "the"}
_PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
# words that people also write without their apostrophe
_CONTRACTED = [
    "ain't", "aren't", "can't", "could've", "couldn't", "didn't", "doesn't", "don't", "hadn't", "hasn't", "haven't",
    "he'd", "he's", "how'd", "how'll", "how's", "isn't", "it'd", "it'll", "ma'am", "might've", "mightn't", "must've",
    "mustn't", "needn't", "not've", "o'clock", "oughtn't", "shan't", "should've", "shouldn't", "somebody'll",
    "somebody's", "someone'd", "someone'll", "someone's", "something'd", "something'll", "that's", "there'd",
    "there're", "there's", "they'd", "they'll", "they're", "they've", "'twas", "wasn't", "we've", "weren't", "what'll",
    "what're", "what's", "what've", "when's", "where'd", "where's", "where've", "who'd", "who'll", "who's", "who've",
    "why'll", "why're", "why's", "won't", "would've", "wouldn't", "y'all", "you'd", "you'll", "you're", "you've",
]  # fmt: skip
# words that people also write without one of their apostrophes
_CONTRACTED_TWICE = [
    "couldn't've", "hadn't've", "he'd've", "it'd've", "mightn't've", "'ow's'at", "she'd've", "shouldn't've",
    "somebody'd've", "someone'd've", "something'd've", "there'd've", "they'd've", "we'd've", "who'd've", "wouldn't've",
    "y'all'll", "y'all'd've", "you'd've",
]  # fmt: skip
_CONTRACTIONS = {word.replace("'", ""): word for word in _CONTRACTED} | {
    word[:index] + word[index + 1 :]: word
    for word in _CONTRACTED_TWICE
    for index, letter in enumerate(word)
    if letter == "'"
}
_CONTRACTIONS["somebody'd"] = "somebodyd"  # so the official list has it


def normalize_answer(answer: str) -> str:
    """Return an answer without punctuation and articles, with digits for numbers and the usual apostrophes.

    Example:
        >>> normalize_answer("The dog, isnt it?"), normalize_answer("two")
        ("dog isn't it", '2')
    """
    text = answer.replace("\n", " ").replace("\t", " ").strip()
    plain = text
    for sign in _PUNCTUATION:
        # a sign beside a blank, or in a text with a number such as 1,000, is removed; elsewhere it parts two words
        beside_blank = f"{sign} " in text or f" {sign}" in text or re.search(r"\d,\d", text)
        plain = plain.replace(sign, "" if beside_blank else " ")
    plain = re.sub(r"\.(?!\d)", "", plain)
    words = [str(_NUMBERS.get(word, word)) for word in plain.lower().split()]
    return " ".join(_CONTRACTIONS.get(word, word) for word in words if word not in _ARTICLES)


def consensus(votes: Mapping[str, int]) -> dict[str, int]:
    """Return the votes by normalized answer; where all people agree, the votes stay as they are."""
    if len(votes) == 1:
        return dict(votes)
    together = Counter[str]()
    for answer, count in votes.items():
        together[normalize_answer(answer)] += count
    return dict(together)


def vqa_accuracy(answer: str, votes: Mapping[str, int]) -> float:
    """Return the accuracy of an answer, between 0 and 1.

    Args:
        answer: The answer of a network.
        votes: Number of people by answer.

    Example:
        >>> votes = {"red": 3, "dark red": 7}
        >>> round(vqa_accuracy("red", votes), 2), vqa_accuracy("dark red", votes), vqa_accuracy("blue", votes)
        (0.9, 1.0, 0.0)

    Source: Antol et al., VQA: Visual Question Answering, 2015, and the evaluation that its authors published.
    """
    people = sum(votes.values())
    if len(votes) > 1:
        answer = normalize_answer(answer)
    agreeing = consensus(votes).get(answer, 0)
    # of the people other than i, one fewer gave the answer if i gave it too
    with_it, without = min((agreeing - 1) / 3, 1), min(agreeing / 3, 1)
    return (agreeing * with_it + (people - agreeing) * without) / people


def soft_scores(votes: Mapping[str, int]) -> dict[str, float]:
    """Return the training target of every answer, min(number of people who gave it / 3, 1).

    Example:
        >>> soft_scores({"red": 1, "dark red": 9})
        {'red': 0.3333333333333333, 'dark red': 1.0}
    """
    return {answer: min(count / 3, 1.0) for answer, count in consensus(votes).items()}
