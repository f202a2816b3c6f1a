"""A corpus of German-like and English-like sentence pairs with gold alignments, which lies beside this module.

It was drawn from a small grammar in both languages at once: words that say the same are linked. About 240 German and
190 English words, 4 to 20 in a sentence; the languages differ in order, in words that are several or none in the other,
in inflection and in ambiguity. No sentence of either language is there twice. What is said makes no sense:

    die Frau sieht heute eine Haustür oft an .
    the woman often looks at a front door today .
    0-0 1-1 2-3 2-4 3-8 4-5 5-6 5-7 6-2 7-3 7-4 8-9
"""

import gzip
from pathlib import Path

from experiments.datasets.text.parallel_text import ParallelText
from pyro_attention.analysis import Alignment

_SIZES = {"train": 4000, "val": 500, "test": 500}  # in this order in the file


def toy_translation(*, train: int = 4000, val: int = 500, test: int = 500) -> dict[str, ParallelText]:
    """Read the splits, or the first pairs of each; all links of the gold alignments are sure."""
    content = gzip.decompress(Path(__file__).with_suffix(".tsv.gz").read_bytes()).decode()
    lines, texts = iter(content.splitlines()), dict[str, ParallelText]()
    for split, size in _SIZES.items():
        rows = [next(lines).split("\t") for _ in range(size)]
        source, target = ([row[side] for row in rows] for side in (0, 1))
        alignments = [
            Alignment(frozenset(_link(link) for link in links.split()), len(german.split()), len(english.split()))
            for german, english, links in rows
        ]
        texts[split] = ParallelText(source, target, "toy", ("de", "en"), alignments)
    return {split: texts[split].first(size) for split, size in {"train": train, "val": val, "test": test}.items()}


def _link(text: str) -> tuple[int, int]:
    source, target = text.split("-")
    return int(source), int(target)
