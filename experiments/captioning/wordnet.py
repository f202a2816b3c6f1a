"""WordNet for METEOR, as installed by NLTK or Debian."""

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
MISSING = (
    "METEOR is left out, since WordNet is missing; install Debian's wordnet-base, or run "
    "python -m nltk.downloader wordnet"
)
# names of the lexicographers' files, a list that Debian leaves out: adjectives, adverbs, nouns, verbs, participles
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
        if str(folder) not in nltk.data.path:  # NLTK reads its data only from the folders in this list
            nltk.data.path.append(str(folder))
        with warnings.catch_warnings():  # NLTK warns about missing words in other languages
            warnings.simplefilter("ignore")
            super().__init__(str(folder), None)

    def map_wn(self, version: str = "wordnet") -> dict[Any, Any]:  # noqa: ARG002
        """Return an empty map from synsets of other versions, which only words in other languages would need."""
        return {}

    def open(self, file: str) -> Any:
        """Open a file of the WordNet; the file lexnames, which Debian leaves out, is made here."""
        if file == "lexnames":
            lines = (f"{number:02}\t{name}\t{_PARTS[name.split('.')[0]]}" for number, name in enumerate(_NAMES))
            return io.StringIO("\n".join(lines))
        return super().open(file)


@cache
def _debian(folder: Path) -> DebianWordNet:
    """Return the WordNet of a folder, which is read only once, since this takes seconds."""
    return DebianWordNet(folder)


def find_wordnet() -> Any:
    """Return the WordNet of NLTK's data, or else Debian's; None if neither is complete."""
    for load in (lambda: wordnet, lambda: _debian(DEBIAN)):
        try:
            reader: Any = load()
            reader.synsets("dog")
        except (LookupError, OSError):  # missing or incomplete
            continue
        return reader
    return None
