"""Hansards of Canada, French and English, in hansards-fr-en; the test split are the hand-aligned novels of Alibi.

These lie in word-alignment/alibi-fr-en, a folder for each of five novels: 522 pairs with sure and possible links. The
Hansards' text is divided into words as the links count them, with clitics apart ("l' eau", "don 't"). It has lost its
accents, and so the novels lose theirs.

Source:
    Germann, Aligned Hansards of the 36th Parliament of Canada, 2001; the links: Xu and Yvon, Novel annotation schemes
    for sentential and sub-sentential alignments of bi-texts, 2016, https://github.com/yvofr/AlibiWordAlignments.
"""

from pathlib import Path

from experiments.datasets.text.aligned_text import joined, packed_pair, read_divided, read_gold_text
from experiments.datasets.text.parallel_text import PARALLEL, ParallelReader, ParallelText, Rules, clean_pairs

_TEXT, _GOLD = "hansards-fr-en", "word-alignment/alibi-fr-en"
NOVELS = {  # folder, and the names of the French and the English text
    "ChatBotte_MasterCat": ("ChatBotte", "MasterCat"),
    "LAuberge_TheInn": ("LAuberge", "TheInn"),
    "LaBarbeBleue_BlueBeard": ("LaBarbeBleue", "BlueBeard"),
    "LaDerniereClasse_TheLastLesson": ("LaDerniereClasse", "TheLastLesson"),
    "LaVision_TheVision": ("LaVision", "TheVision"),
}


def read_hansards(root: Path, split: str, languages: tuple[str, str], rules: Rules) -> ParallelText:
    """Read a split."""
    if split == "test":
        text = joined([_novel(root / _GOLD / novel, names, rules) for novel, names in NOVELS.items()])
        return text if languages == ("fr", "en") else text.turned()
    stem = "dev" if split == "val" else split
    paths = packed_pair(root / _TEXT, stem, languages, of="the Hansards")
    sides = [read_divided(path, language, accents=False) for path, language in zip(paths, languages, strict=True)]
    return clean_pairs(sides, paths, rules, name=_TEXT, languages=languages)


def _novel(folder: Path, names: tuple[str, str], rules: Rules) -> ParallelText:
    french, english = (folder / f"{name}_sents.txt" for name in names)
    links = folder / f"ali_w2w_{folder.name}.txt"
    return read_gold_text((french, english), links, languages=("fr", "en"), name=_GOLD, rules=rules, accents=False)


PARALLEL.register("hansards_fr_en")(ParallelReader(read_hansards, ("fr", "en"), tokenised=True))
