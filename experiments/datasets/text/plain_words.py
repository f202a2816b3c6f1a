"""Words of raw text as hand-aligned texts count them: one spelling, and punctuation and clitics divided off."""

import re
import unicodedata

__all__ = ["divide", "plain"]

# one sign for what texts write in several ways; a soft hyphen is no sign at all
_SIGNS = str.maketrans(
    {**dict.fromkeys("’‘`´", "'"), **dict.fromkeys("«»“”„", '"'), **dict.fromkeys("–—", "-"), "\u00ad": ""}
)
# letters that do not come apart into a letter and an accent; ß, because the new spelling of German has it elsewhere
_LETTERS = str.maketrans({"œ": "oe", "Œ": "Oe", "æ": "ae", "Æ": "Ae", "ß": "ss"})
# abbreviations with their full stop; numbers; words, which may have hyphens; any other sign by itself
_COMMON = r"\b(?:[A-Z]|Dr|MM|Mrs?|Ms|St)\.(?=\s)|\d+(?:[.,]\d+)+|\w+(?:-\w+)*|\S"
_CLITICS = {"en": r"(?<=\w)'(?:s|d|m|t|ll|re|ve)\b|", "fr": r"\w+(?:-\w+)*'(?=\w)|"}


def plain(text: str, *, accents: bool = True) -> str:
    """Return a text of as many words in one spelling: typewriter's signs, "ss" for "ß" and, if asked, no accents.

    Example:
        >>> plain("daß l’été «naïf»"), plain("l’été «naïf» —", accents=False)
        ('dass l\\'été "naïf"', 'l\\'ete "naif" -')
    """
    return " ".join(_plain(word, accents) or word for word in text.split())


def _plain(word: str, accents: bool) -> str:
    word = word.translate(_SIGNS).translate(_LETTERS)
    if not accents:
        parts = unicodedata.normalize("NFD", word)
        word = "".join(sign for sign in parts if not unicodedata.combining(sign))
    return word


def divide(text: str, language: str) -> str:
    """Return a text with a blank between every two words: marks and, by the language, clitics are words.

    The rules are those of the tokeniser of Europarl, as far as the hand-aligned texts show them: "president 's" and
    "don 't" in English, "l' eau" and "qu' il" in French; words with hyphens stay whole.

    Example:
        >>> divide("Mr. Barnier's six-year plan (of 2.5 %)", "en")
        "Mr. Barnier 's six-year plan ( of 2.5 % )"
        >>> divide("Qu'est-ce que l'Europe?", "fr")
        "Qu' est-ce que l' Europe ?"
    """
    return " ".join(re.findall(_CLITICS.get(language, "") + _COMMON, text))
