"""WordNet, as NLTK or Debian installs it, for METEOR."""

from __future__ import annotations

import io
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import nltk
from nltk.corpus import wordnet
from nltk.corpus.reader.wordnet import WordNetCorpusReader

DEBIAN = Path("/usr/share/wordnet")
MISSING = "METEOR is left out: there is no WordNet; install Debian's wordnet-base, or python -m nltk.downloader wordnet"
# the names of lexicographers' files, which Debian leaves out: adjectives and adverbs, nouns, verbs, participles
_NOUNS = (
    "Tops act animal artifact attribute body cognition communication event feeling food group location motive object "
    "person phenomenon plant possession process quantity relation shape state substance time"
)
_VERBS = (
    "body change cognition communication competition consumption contact creation emotion motion perception possession "
    "social stative weather"
)
_NAMES = [
    "adj.all", "adj.pert", "adv.all", *(f"noun.{name}" for name in _NOUNS.split(" ")),
    *(f"verb.{name}" for name in _VERBS.split(" ")), "adj.ppl",
]  # fmt: skip
_PARTS = {"noun": 1, "verb": 2, "adj": 3, "adv": 4}


class DebianWordNet(WordNetCorpusReader):
    """WordNet 3.0 in the folder of Debian's package wordnet-base."""

    def __init__(self, folder: Path = DEBIAN) -> None:
        if str(folder) not in nltk.data.path:  # NLTK reads its data from folders that it was told of alone
            nltk.data.path.append(str(folder))
        with warnings.catch_warnings():  # of words in other languages, which are not there
            warnings.simplefilter("ignore")
            super().__init__(str(folder), None)

    def map_wn(self, version: str = "wordnet") -> dict[Any, Any]:  # noqa: ARG002
        """Map synsets of other versions to those of this one: none, as only words in other languages ask for it."""
        return {}

    def open(self, file: str) -> Any:
        """Open a file, or give the one that Debian leaves out."""
        if file == "lexnames":
            lines = (f"{number:02}\t{name}\t{_PARTS[name.split('.')[0]]}" for number, name in enumerate(_NAMES))
            return io.StringIO("\n".join(lines))
        return super().open(file)


@cache
def _debian(folder: Path) -> DebianWordNet:
    """The WordNet of a folder, which is read once: that takes seconds."""
    return DebianWordNet(folder)


def find_wordnet() -> Any:
    """Return the WordNet of NLTK's data, else Debian's; None where neither is there, or none is whole."""
    for make in (lambda: wordnet, lambda: _debian(DEBIAN)):
        try:
            found: Any = make()
            found.synsets("dog")
        except (LookupError, OSError):  # not there, or not complete
            continue
        return found
    return None
