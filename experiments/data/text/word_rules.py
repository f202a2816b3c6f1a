"""Rules that divide raw text into words and punctuation marks, and join them again."""

import re
import unicodedata
from functools import cache
from typing import Any, Literal

WordRule = Literal["none", "nltk"]

# one sign for several spellings of it; a soft hyphen is removed
_SIGNS = str.maketrans(
    {**dict.fromkeys("’‘`´", "'"), **dict.fromkeys("«»“”„", '"'), **dict.fromkeys("–—", "-"), "\u00ad": ""}
)
# letters without a decomposition into letter and accent; and ß, which the new spelling of German uses differently
_LETTERS = str.maketrans({"œ": "oe", "Œ": "Oe", "æ": "ae", "Æ": "Ae", "ß": "ss"})
# abbreviations with their period; numbers; words, which may have hyphens; any other single sign
_COMMON = r"\b(?:[A-Z]|Dr|MM|Mrs?|Ms|St)\.(?=\s)|\d+(?:[.,]\d+)+|\w+(?:-\w+)*|\S"
_CLITICS = {"en": r"(?<=\w)'(?:s|d|m|t|ll|re|ve)\b|", "fr": r"\w+(?:-\w+)*'(?=\w)|"}


def divide_words(text: str, rule: WordRule) -> str:
    """Return a sentence with a blank between every two words, where punctuation marks are words.

    Args:
        text: A sentence.
        rule: "none" takes the words between blanks, for text that is tokenized. "nltk" is the rule of NLTK's
            `NLTKWordTokenizer`: punctuation marks and the period at the end of the sentence are split off ("z.B." and
            "3.5" are not divided), straight double quotes become `` and '', and English contractions are divided
            ("do n't").
    """
    words: list[str] = text.split() if rule == "none" else _nltk()[0].tokenize(text)
    # NLTK may add a blank to a period at the end
    return " ".join(" ".join(words).split())


def join_words(text: str, rule: WordRule) -> str:
    """Return a sentence in its usual spelling, after `divide_words`, by NLTK's `TreebankWordDetokenizer`."""
    return text if rule == "none" else str(_nltk()[1].detokenize(text.split()))


@cache
def _nltk() -> tuple[Any, Any]:
    from nltk.tokenize import NLTKWordTokenizer, TreebankWordDetokenizer  # the import takes a second

    return NLTKWordTokenizer(), TreebankWordDetokenizer()


def plain(text: str, *, accents: bool = True) -> str:
    """Return a text with as many words in a uniform spelling: plain quotes and dashes, and "ss" for "ß".

    Args:
        text: A text.
        accents: Whether letters keep their accents.

    Example:
        >>> plain("daß l’été «naïf»"), plain("l’été «naïf» —", accents=False)
        ('dass l\\'été "naïf"', 'l\\'ete "naif" -')
    """
    return " ".join(_plain(word, accents) or word for word in text.split())


def _plain(word: str, accents: bool) -> str:
    word = word.translate(_SIGNS).translate(_LETTERS)
    if accents:
        return word
    return "".join(sign for sign in unicodedata.normalize("NFD", word) if not unicodedata.combining(sign))


def divide(text: str, language: str) -> str:
    """Return a text with a blank between every two words, as hand-aligned texts count them.

    Punctuation marks are words, and so are the clitics of English ("president 's", "don 't") and French ("l' eau",
    "qu' il"). Words with hyphens are not divided. The rules are those of the tokenizer of Europarl, as far as the
    hand-aligned texts show them.

    Example:
        >>> divide("Mr. Barnier's six-year plan (of 2.5 %)", "en")
        "Mr. Barnier 's six-year plan ( of 2.5 % )"
        >>> divide("Qu'est-ce que l'Europe?", "fr")
        "Qu' est-ce que l' Europe ?"
    """
    return " ".join(re.findall(_CLITICS.get(language, "") + _COMMON, text))
