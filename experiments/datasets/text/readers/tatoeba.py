"""Tatoeba: short sentences in English and German, in tatoeba-deu-eng.

There are 2000 pairs, or the next few, to validate on, and as many to test on. Sentences with a side in common, but for
case and punctuation, are in one split, and the order is mixed, as the file is sorted by length.

Source:
    https://tatoeba.org by way of https://www.manythings.org/anki.
"""

import re
from collections import defaultdict
from hashlib import sha256
from pathlib import Path

from experiments.datasets.places import NEW_COPY, SPLITS, missing
from experiments.datasets.text.parallel_text import (
    PARALLEL,
    ParallelReader,
    ParallelText,
    Rules,
    clean_pairs,
    read_lines,
)

PART = 2000  # pairs to validate on, and as many to test on


def read_tatoeba(root: Path, split: str, languages: tuple[str, str], rules: Rules) -> ParallelText:
    """Read a split; which pairs are in it does not depend on the rules."""
    path = root / "tatoeba-deu-eng" / "deu.txt"
    if not path.is_file():
        expected = (
            "lines of an English and a German sentence with a tab between them, as in deu.txt of "
            "https://www.manythings.org/anki/deu-eng.zip (it is not fetched: it changes from time to time)"
        )
        raise missing(path, expected, "tatoeba-deu-eng")
    rows = [line.split(b"\t") for line in read_lines(path)]
    for number, row in enumerate(rows, 1):
        if len(row) < 2:
            raise ValueError(
                f"{path}: line {number} has no tab; expected an English and a German sentence with a tab between "
                f"them. {NEW_COPY}"
            )
    # The split is that of the lines as they are: options that leave out pairs do not move others to another split.
    numbers = _tatoeba_split(rows)[split]
    columns = [("en", "de").index(language) for language in languages]
    sides = [[row[column] for row in rows] for column in columns]
    return clean_pairs(sides, (path, path), rules, name="tatoeba", languages=languages, numbers=numbers)


def _tatoeba_split(rows: list[list[bytes]]) -> dict[str, list[int]]:
    """Line numbers, from 0: groups of pairs that share a side, in an order drawn by hashing, cut into three splits."""
    sides = [(_key(row[0]), _key(row[1])) for row in rows]
    parents: dict[tuple[int, str], tuple[int, str]] = {}

    def root_of(side: int, text: str) -> tuple[int, str]:
        node = (side, text)
        while parents.setdefault(node, node) != node:
            parents[node] = node = parents[parents[node]]
        return node

    for english, german in sides:
        parents[root_of(0, english)] = root_of(1, german)
    groups: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
    for number, (english, _) in enumerate(sides):
        groups[root_of(0, english)].append(number)
    # Hashes instead of a random generator: the order is the same in every release of Python.
    hashes = [sha256(b"\t".join(row[:2])).digest() for row in rows]
    order = sorted(groups.values(), key=lambda group: min(hashes[number] for number in group))
    size = min(PART, len(rows) // 10)
    splits: dict[str, list[int]] = {name: [] for name in SPLITS}
    for group in order:
        name = next((name for name in ("val", "test") if len(splits[name]) < size), "train")
        splits[name] += group
    return splits


def _key(text: bytes) -> str:
    """Small letters without punctuation."""
    plain = text.decode(errors="replace")
    return " ".join(re.findall(r"\w+", plain.casefold())) or plain


PARALLEL.register("tatoeba")(ParallelReader(read_tatoeba, ("de", "en")))
