"""Words of a sentence: how raw text is divided into words and punctuation, and joined again."""

from functools import cache
from typing import Any, Literal

__all__ = ["WordRule", "divide_words", "join_words"]

WordRule = Literal["none", "nltk"]


def divide_words(text: str, rule: WordRule) -> str:
    """Return a sentence with a blank between every two words; punctuation marks are words.

    "none" takes the words that are there, between blanks: for text that is tokenised already. "nltk" is the rule of
    NLTK's `NLTKWordTokenizer`: marks and the full stop at the end of the sentence are split off ("z.B." and "3.5" are
    left whole), straight double quotes become `` and '', and English contractions are divided ("do n't").
    """
    words: list[str] = text.split() if rule == "none" else _nltk()[0].tokenize(text)
    # a full stop at the end may bring a blank along
    return " ".join(" ".join(words).split())


def join_words(text: str, rule: WordRule) -> str:
    """Return a sentence that `divide_words` has divided as one writes it, by NLTK's `TreebankWordDetokenizer`."""
    if rule == "none":
        return text
    joined: str = _nltk()[1].detokenize(text.split())
    return joined


@cache
def _nltk() -> tuple[Any, Any]:
    from nltk.tokenize import NLTKWordTokenizer, TreebankWordDetokenizer  # takes a second

    return NLTKWordTokenizer(), TreebankWordDetokenizer()
