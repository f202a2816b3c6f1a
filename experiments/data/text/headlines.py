"""Texts with headlines written by people, from JSON lines such as samples of Gigaword."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from experiments.data.storage import SPLITS, data_folder, first_file
from experiments.files import check_characters, read_packed, reading

_EXPECTED = "a file of JSON lines, each with a text and its summaries, which may be packed as .jsonl.gz"
_FILES = {
    "train": "headline-train/gigaword_train_sample",
    "val": "headline-train/gigaword_valid_sample",
    "test": "headline/gigaword",
}


@dataclass(frozen=True, eq=False)
class HeadlineText:
    """Texts and their headlines, both in the form of `plain_words`.

    Attributes:
        texts: The texts.
        headlines: One or more headlines of every text.
    """

    texts: list[str]
    headlines: list[tuple[str, ...]]

    def __len__(self) -> int:
        return len(self.texts)

    def select(self, indices: list[int]) -> "HeadlineText":
        """Return the texts with these indices, with their headlines."""
        return HeadlineText([self.texts[i] for i in indices], [self.headlines[i] for i in indices])


def plain_words(text: str) -> str:
    """Return a text in lower case, with # for every digit and unk for the sign of an unknown word.

    Gigaword is commonly prepared in this way. Its words and punctuation marks have blanks between them.

    Example:
        >>> plain_words("Shares of <unk>  fell 3.5 percent .")
        'shares of unk fell #.# percent .'

    Source:
        Rush, Chopra and Weston, A Neural Attention Model for Abstractive Sentence Summarization, 2015, section 7.1.
    """
    return re.sub("[0-9]", "#", " ".join(text.lower().replace("<unk>", "unk").split()))


def lead(text: str, count: int) -> str:
    """Return the first ``count`` words of a text."""
    return " ".join(text.split()[:count])


def load_headlines(
    *, data_root: Path | str | None = None, files: Mapping[str, Path | None] | None = None
) -> dict[str, HeadlineText]:
    """Load the training, validation and test texts with their headlines.

    Training texts that also occur in another split are left out, and so are validation texts that also occur in the
    test split. The files in the folder of the data sets are headline-train/gigaword_train_sample,
    headline-train/gigaword_valid_sample and headline/gigaword, each as .jsonl or packed as .jsonl.gz.

    Args:
        data_root: Folder of the data sets.
        files: Other files, by split.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: All texts of a file also occur in another split.
        DamagedFileError: A file has other content.

    Source:
        Graff and Cieri, English Gigaword, 2003; Rush, Chopra and Weston, 2015.
    """
    folder, files = data_folder(data_root), files or {}
    paths = {split: files.get(split) or _find_file(folder / _FILES[split]) for split in SPLITS}
    splits, held_out = dict[str, HeadlineText](), set[str]()
    for split in reversed(SPLITS):
        data = read_headlines(paths[split])
        splits[split] = data.select([index for index, text in enumerate(data.texts) if text not in held_out])
        if not len(splits[split]):
            raise ValueError(f"{paths[split]}: all its texts are in other files too; expected some that are not")
        held_out.update(data.texts)
    return {split: splits[split] for split in SPLITS}


def _find_file(stem: Path) -> Path:
    source = f"{_EXPECTED} (it is not fetched; Gigaword is sold by the Linguistic Data Consortium)"
    paths = [stem.with_name(f"{stem.name}{ending}") for ending in (".jsonl", ".jsonl.gz")]
    return first_file(paths, source, stem.parent.name)


def read_headlines(path: Path) -> HeadlineText:
    """Read a file of JSON lines, each an object with a text ("text") and a list of headlines ("summaries").

    Raises:
        DamagedFileError: The file is missing, or a line has other content.
    """
    texts, headlines = list[str](), list[tuple[str, ...]]()
    with reading(path, _EXPECTED):
        lines = read_packed(path).decode("utf-8-sig").removesuffix("\n").split("\n")
    for number, line in enumerate(lines, 1):
        with reading(f"{path}: line {number}", "an object with 'text' and a list of 'summaries', none of them empty"):
            entry = json.loads(line)
            texts.append(plain_words(entry["text"]))
            if not isinstance(entry["summaries"], list):  # the letters of a text would be headlines
                raise ValueError(f"'summaries' is {entry['summaries']!r}")
            headlines.append(tuple(map(plain_words, entry["summaries"])))
            check_characters(texts[-1], *headlines[-1])
            if not all([texts[-1], headlines[-1], *headlines[-1]]):
                raise ValueError("a text or its headlines are empty")
    return HeadlineText(texts, headlines)
