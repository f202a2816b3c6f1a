"""Texts and the headlines that people have given them: JSON lines, as of samples of Gigaword."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from experiments.data.places import SPLITS, data_folder, first_file
from experiments.files import read_packed, reading

_EXPECTED = "a file of JSON lines, each with a text and its summaries, which may be packed as .jsonl.gz"
_FILES = {
    "train": "headline-train/gigaword_train_sample",
    "val": "headline-train/gigaword_valid_sample",
    "test": "headline/gigaword",
}


@dataclass(frozen=True, eq=False)
class HeadlineText:
    """Texts and their headlines, as `plain_words` writes both."""

    texts: list[str]  # the texts
    headlines: list[tuple[str, ...]]  # one headline or more of every text

    def __len__(self) -> int:
        return len(self.texts)

    def kept(self, places: list[int]) -> "HeadlineText":
        """The texts at these places, with their headlines."""
        return HeadlineText([self.texts[i] for i in places], [self.headlines[i] for i in places])


def plain_words(text: str) -> str:
    """Return a text in small letters, with # for every digit and unk for the sign of an unknown word.

    So Gigaword is commonly prepared; its words stand between blanks, and so do punctuation marks.

    Example:
        >>> plain_words("Shares of <unk>  fell 3.5 percent .")
        'shares of unk fell #.# percent .'

    Source:
        Rush, Chopra and Weston, A Neural Attention Model for Abstractive Sentence Summarization, 2015, section 7.1.
    """
    return re.sub("[0-9]", "#", " ".join(text.lower().replace("<unk>", "unk").split()))


def lead(text: str, count: int) -> str:
    """Return the first words of a text."""
    return " ".join(text.split()[:count])


def load_headlines(
    *, data_root: Path | str | None = None, files: Mapping[str, Path | None] | None = None
) -> dict[str, HeadlineText]:
    """Load texts with headlines to train on, to validate on and to test on.

    Training texts that are also to validate or to test on, and validation texts that are also to test on, are left
    out.

    There lie headline-train/gigaword_train_sample, headline-train/gigaword_valid_sample and headline/gigaword, each as
    .jsonl or packed as .jsonl.gz; of a split another file may be given.

    Source:
        Graff and Cieri, English Gigaword, 2003; Rush, Chopra and Weston, 2015.
    """
    folder, given = data_folder(data_root), files or {}
    paths = {split: given.get(split) or _find(folder / _FILES[split]) for split in SPLITS}
    found, held_out = dict[str, HeadlineText](), set[str]()
    for split in reversed(SPLITS):
        data = read_headlines(paths[split])
        found[split] = data.kept([place for place, text in enumerate(data.texts) if text not in held_out])
        if not len(found[split]):
            raise ValueError(f"{paths[split]}: all its texts are in other files too; expected some of its own")
        held_out.update(data.texts)
    return {split: found[split] for split in SPLITS}


def _find(stem: Path) -> Path:
    source = f"{_EXPECTED} (it is not fetched; Gigaword is sold by the Linguistic Data Consortium)"
    paths = [stem.with_name(f"{stem.name}{ending}") for ending in (".jsonl", ".jsonl.gz")]
    return first_file(paths, source, stem.parent.name)


def read_headlines(path: Path) -> HeadlineText:
    """Read a file of JSON lines: objects with a text ("text") and a list of headlines ("summaries"); others may be."""
    texts, headlines = list[str](), list[tuple[str, ...]]()
    with reading(path, _EXPECTED):
        lines = read_packed(path).decode().removesuffix("\n").split("\n")
    for number, line in enumerate(lines, 1):
        with reading(f"{path}: line {number}", "an object with 'text' and one of 'summaries' or more, none empty"):
            entry = json.loads(line)
            texts.append(plain_words(entry["text"]))
            headlines.append(tuple(map(plain_words, entry["summaries"])))
            if not all([texts[-1], headlines[-1], *headlines[-1]]):
                raise ValueError("a text or its headlines are empty")
    return HeadlineText(texts, headlines)
