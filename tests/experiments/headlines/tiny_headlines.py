"""Tiny texts with headlines on disk, for end-to-end runs of the scripts on headlines."""

import gzip
import itertools
import json
import random
from pathlib import Path

SIZES = {"train": 24, "val": 6, "test": 6}
FILES = {
    "train": "headline-train/gigaword_train_sample.jsonl.gz",
    "val": "headline-train/gigaword_valid_sample.jsonl.gz",
    "test": "headline/gigaword.jsonl",
}
TINY = {"vocabulary": 280, "width": 8, "heads": 2, "layers": 2, "length": 40, "headline_length": 12, "batch_size": 8}
TINY |= {"beam": 2, "max_epochs": 2, "lead_epochs": 1, "num_samples": 2, "progress": False}
_WORDS = (
    ("police", "the president", "share prices", "<unk>"),
    ("fell", "won the race", "met officials", "left town"),
    ("monday", "in june", "by 3.5 percent"),
    ("in Rome", "in new york", "at sea"),
)


def entries() -> list[dict[str, object]]:
    """Texts of which no two are alike, each with a headline and every third with two."""
    found = []
    for place, (who, what, when, where) in enumerate(itertools.product(*_WORDS)):
        summaries = [f"{who} {what}", f"{what} {where}"][: 1 + (place % 3 == 0)]
        found.append({"id": place, "text": f"{who} {what} {when} {where} , they said .", "summaries": summaries})
    random.Random(0).shuffle(found)
    return found


def write_entries(path: Path, found: list[object]) -> Path:
    """A file of JSON lines, packed if it is named so; what is no object is written as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [one if isinstance(one, str) else json.dumps(one) for one in found]
    content = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def write_texts(root: Path) -> Path:
    """The files of all splits below a folder, which is returned."""
    every = iter(entries())
    for split, size in SIZES.items():
        write_entries(root / FILES[split], list(itertools.islice(every, size)))
    return root
