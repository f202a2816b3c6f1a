r"""From lines to words: what a word is, in any script, and how it is compared with others.

A word is what stands between blanks (space, tab and the other white space of ASCII), as other aligners count it: a
no-break space or U+2028 ends no word. With ``tokenize`` words are divided as Unicode's letters and marks tell: marks
stay with their letter, also in Hindi, Tamil, and vocalized Arabic and Hebrew, joiners stay inside of Persian words,
numbers such as 3.5 stay whole, each other sign is a word, and so is each sign of the scripts that write no blanks
between words and have a sign for a syllable or a word (Chinese, Japanese). Thai, Lao, Khmer and Burmese need a program
that knows their words.

Words are compared in small letters unless ``keep_case``, and in the composed form (NFC).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Literal, cast, get_args

__all__ = ["Preparation", "Setting", "SubwordStyle", "is_one_word", "lacks_blanks"]

SubwordStyle = Literal["@@", "##", "▁"]
Setting = bool | str | None  # of a preparation, saved with an aligner
_BLANKS = re.compile(r"[ \t\r\v\f]+")
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
_LONG = 6  # signs of scripts without blanks in a word, on average, from which on words seem not to be divided
_WORDS = r"""(?V1)
      \p{Nd}+(?:[.,\u066b\u066c]\p{Nd}+)+(?![\p{L}\p{M}\p{N}])       # a number such as 3.5 or 1,000
    | [\p{Han}\p{Hiragana}][\p{M}\ufe00-\ufe0f]*                     # a sign of a script without blanks
    | (?:[[\p{L}\p{N}\p{M}\p{Pc}\u200c\u200d\u00ad]--[\p{Han}\p{Hiragana}]]
        | (?<=\p{Hebrew}\p{M}*)["\u05f3\u05f4](?=\p{Hebrew}))+       # letters with their marks and joiners
    | (?!\s)\X                                                       # any other sign with its marks
"""


@dataclass(frozen=True)
class Preparation:
    r"""How lines become words.

    Attributes:
        tokenize: Divide words from punctuation; otherwise they stand between blanks.
        keep_case: Compare words as they are written, otherwise in small letters.
        subwords: How pieces of words are marked in the text, whose words are then made whole: "@@" after a piece that
            goes on (subword-nmt), "##" before a piece that goes on (WordPiece), "▁" before a word (SentencePiece).

    Example:
        >>> Preparation().words("Das  Haus\u00a0am See")
        ['Das', 'Haus\xa0am', 'See']
        >>> Preparation(subwords="@@").words("Haus@@ tür auf")
        ['Haustür', 'auf']
    """

    tokenize: bool = False
    keep_case: bool = False
    subwords: SubwordStyle | None = None

    def check(self) -> None:
        """Raise unless what this needs is there: ImportError or ValueError."""
        if self.tokenize and find_spec("regex") is None:
            raise ImportError("--tokenize needs the package regex: pip install 'pyro-attention[align]'")
        if self.subwords not in (None, *get_args(SubwordStyle)):
            raise ValueError(f"subwords is {self.subwords!r}, expected one of {', '.join(get_args(SubwordStyle))}")

    def words(self, line: str) -> list[str]:
        """Return the words of a line as they are written."""
        if self.subwords == "@@":
            line = re.sub(r"@@( |$)", "", line)
        elif self.subwords == "##":
            line = line.replace(" ##", "")
        elif self.subwords == "▁":
            line = line.replace(" ", "").replace("▁", " ")
        if self.tokenize:
            return _divide()(line)
        return [word for word in _BLANKS.split(line) if word]

    def compared(self, words: Iterable[str]) -> list[str]:
        """Return words in the case in which they are compared."""
        return list(words) if self.keep_case else [word.lower() for word in words]

    @property
    def settings(self) -> dict[str, Setting]:
        """Fields as a mapping, which is saved with an aligner."""
        return asdict(self)


@cache
def _divide() -> Callable[[str], list[str]]:
    regex = import_module("regex")  # of the extra "align"
    return cast("Callable[[str], list[str]]", regex.compile(_WORDS, regex.VERBOSE).findall)


def is_one_word(text: str) -> bool:
    """Return whether a text is one word: not empty, and without blanks and line ends."""
    return bool(text) and "\n" not in text and _BLANKS.search(text) is None


def lacks_blanks(sentences: Sequence[Sequence[str]]) -> bool:
    """Return whether words of a script that writes no blanks seem not to be divided."""
    lengths = [len(signs) for words in sentences for word in words if (signs := _UNSPACED.findall(word))]
    return bool(lengths) and sum(lengths) / len(lengths) > _LONG and len(lengths) > 0.2 * sum(map(len, sentences))
