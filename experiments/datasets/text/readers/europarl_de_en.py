"""Europarl, German and English, in europarl-de-en: speeches in the European Parliament, and 100 hand-aligned pairs.

The last 500 pairs of train.de and train.en are there to validate on; the test split is gold/test.de, gold/test.en and
gold/de-en.wa, whose links are all sure. The training text is divided into words as the links count them, and "ß" is
"ss" throughout: training and test text have old and new spelling, "daß" and "dass".

Source:
    Koehn, Europarl, 2005; the links: Bicici, The Regression Model of Machine Translation, 2011.
"""

from pathlib import Path

from experiments.datasets.text.aligned_text import packed_pair, read_divided, read_gold_text
from experiments.datasets.text.parallel_text import PARALLEL, ParallelReader, ParallelText, Rules, clean_pairs

HELD_OUT = 500  # pairs to validate on
_FOLDER = "europarl-de-en"


def read_europarl(root: Path, split: str, languages: tuple[str, str], rules: Rules) -> ParallelText:
    """Read a split."""
    folder = root / _FOLDER
    if split == "test":
        files = folder / "gold" / "test.de", folder / "gold" / "test.en"
        text = read_gold_text(
            files, folder / "gold" / "de-en.wa", languages=("de", "en"), name=_FOLDER, rules=rules, accents=True
        )
        return text if languages == ("de", "en") else text.turned()
    paths = packed_pair(folder, "train", languages, of="Europarl")
    sides = [read_divided(path, language, accents=True) for path, language in zip(paths, languages, strict=True)]
    count = len(sides[0])
    first = max(count - HELD_OUT, count // 2)
    numbers = range(first, count) if split == "val" else range(first)
    return clean_pairs(sides, paths, rules, name=_FOLDER, languages=languages, numbers=numbers)


PARALLEL.register("europarl_de_en")(ParallelReader(read_europarl, ("de", "en"), tokenised=True))
