"""Words of a sentence: how raw text is divided into words and punctuation, and joined again."""

import re
import unicodedata
from functools import cache
from typing import Any, Literal

WordRule = Literal["none", "nltk"]

# one sign for what texts write in several ways; a soft hyphen is no sign at all
_SIGNS = str.maketrans(
    {**dict.fromkeys("’‘`´", "'"), **dict.fromkeys("«»“”„", '"'), **dict.fromkeys("–—", "-"), "\u00ad": ""}
)
# letters that do not come apart into a letter and an accent; ß, because the new spelling of German has it elsewhere
_LETTERS = str.maketrans({"œ": "oe", "Œ": "Oe", "æ": "ae", "Æ": "Ae", "ß": "ss"})
# abbreviations with their full stop; numbers; words, which may have hyphens; any other sign by itself
_COMMON = r"\b(?:[A-Z]|Dr|MM|Mrs?|Ms|St)\.(?=\s)|\d+(?:[.,]\d+)+|\w+(?:-\w+)*|\S"
_CLITICS = {"en": r"(?<=\w)'(?:s|d|m|t|ll|re|ve)\b|", "fr": r"\w+(?:-\w+)*'(?=\w)|"}


def divide_words(text: str, rule: WordRule) -> str:
    """Return a sentence with a blank between every two words; punctuation marks are words.

    "none" takes the words that are there, between blanks: for text that is tokenized already. "nltk" is the rule of
    NLTK's `NLTKWordTokenizer`: marks and the full stop at the end of the sentence are split off ("z.B." and "3.5" are
    left whole), straight double quotes become `` and '', and English contractions are divided ("do n't").
    """
    words: list[str] = text.split() if rule == "none" else _nltk()[0].tokenize(text)
    # a full stop at the end may bring a blank along
    return " ".join(" ".join(words).split())


def join_words(text: str, rule: WordRule) -> str:
    """Return a sentence that `divide_words` has divided as one writes it, by NLTK's `TreebankWordDetokenizer`."""
    return text if rule == "none" else str(_nltk()[1].detokenize(text.split()))


@cache
def _nltk() -> tuple[Any, Any]:
    from nltk.tokenize import NLTKWordTokenizer, TreebankWordDetokenizer  # takes a second

    return NLTKWordTokenizer(), TreebankWordDetokenizer()


def plain(text: str, *, accents: bool = True) -> str:
    """Return a text of as many words in one spelling: typewriter's signs, "ss" for "ß" and, if asked, no accents.

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

    Marks and, by the language, clitics are words. The rules are those of the tokeniser of Europarl, as far as those
    texts show them: "president 's" and "don 't" in English, "l' eau" and "qu' il" in French; words with hyphens stay
    whole.

    Example:
        >>> divide("Mr. Barnier's six-year plan (of 2.5 %)", "en")
        "Mr. Barnier 's six-year plan ( of 2.5 % )"
        >>> divide("Qu'est-ce que l'Europe?", "fr")
        "Qu' est-ce que l' Europe ?"
    """
    return " ".join(re.findall(_CLITICS.get(language, "") + _COMMON, text))
