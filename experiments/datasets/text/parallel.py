"""Sentence pairs to translate: Multi30k, IWSLT14 and Tatoeba; other ones from two plain text files."""

import re
from collections import Counter, defaultdict
from hashlib import sha256
from pathlib import Path

from experiments.datasets.places import OTHER_FOLDER, SPLITS, data_folder
from experiments.datasets.text.multi30k_files import find_multi30k
from experiments.datasets.text.parallel_text import ParallelText, Rules, clean_pairs, read_lines, read_parallel
from experiments.datasets.text.word_rules import WordRule
from experiments.datasets.untrusted import is_there

__all__ = ["LANGUAGES", "ParallelText", "load_parallel", "read_parallel"]

LANGUAGES = {"multi30k": ("de", "en", "fr"), "iwslt14": ("de", "en"), "tatoeba": ("de", "en")}
_TATOEBA_PART = 2000  # pairs to validate on, and as many to test on


def load_parallel(
    name: str,
    split: str,
    *,
    source: str = "de",
    target: str = "en",
    data_root: Path | str | None = None,
    lowercase: bool = False,
    max_words: int | None = None,
    skip: bool = False,
    words: WordRule = "none",
) -> ParallelText:
    """Load one split of a data set of sentence pairs.

    `multi30k`: captions of photographs; fetched from its authors' repository when missing. The test split is that
    of 2016. `iwslt14`: TED talks, tokenised and lower-case, as fairseq's prepare-iwslt14.sh writes them; joints of
    word pieces ("@@ ") are undone. Where train.* is missing but the samples lowres_train_v1.bpe.* and
    lowres_train_v2.bpe.* are there, these are the training split and the name is `iwslt14-lowres`: without repeated
    pairs and without pairs that share a side with the other splits. `tatoeba`: short sentences, 2000 pairs (or the
    next few) to validate, as many to test. Sentences with a side in common, but for case and punctuation, are in one
    split, and the order is mixed, as the file is sorted by length.

    Args:
        name: "multi30k", "iwslt14" or "tatoeba".
        split: "train", "val" or "test".
        source: language to translate from: "de", "en" or, of multi30k, "fr".
        target: language to translate to.
        data_root: folder that holds multi30k/task1, iwslt14-de-en or tatoeba-deu-eng; by default
            $PYRO_ATTENTION_DATA, else ~/.cache/pyro_attention.
        lowercase: see `read_parallel`, as the following.
        max_words: most words of a sentence.
        skip: leave out bad pairs.
        words: how sentences are divided into words; "none" takes them as they are in the files.

    Returns:
        The pairs.

    Raises:
        FileNotFoundError: files are missing and cannot be fetched; the message says which to put where.
        ValueError: an unknown name, split or language, a bad line, or a fetched file of another checksum.

    Source:
        Elliott, Frank, Sima'an and Specia, Multi30K, 2016; Cettolo et al., Report on the 11th IWSLT Evaluation
        Campaign, 2014; https://tatoeba.org by way of https://www.manythings.org/anki.
    """
    if name not in LANGUAGES:
        raise ValueError(f"no parallel text is named {name!r}; expected one of {', '.join(LANGUAGES)}")
    if split not in SPLITS:
        raise ValueError(f"no split is named {split!r}; expected one of {', '.join(SPLITS)}")
    known = LANGUAGES[name]
    unknown = [language for language in (source, target) if language not in known]
    if unknown or source == target:
        seen = f"no language is named {unknown[0]!r}" if unknown else f"source and target are both {source!r}"
        raise ValueError(f"{seen}; expected two different ones of those of {name}: {', '.join(known)}")
    load = {"multi30k": _multi30k, "iwslt14": _iwslt14, "tatoeba": _tatoeba}[name]
    return load(data_folder(data_root), split, (source, target), Rules(lowercase, max_words, skip, words))


def _multi30k(root: Path, split: str, languages: tuple[str, str], rules: Rules) -> ParallelText:
    paths = find_multi30k(root, "test_2016_flickr" if split == "test" else split, languages)
    return read_parallel(*paths, languages=languages, name="multi30k", **rules._asdict())


def _iwslt14(root: Path, split: str, languages: tuple[str, str], rules: Rules) -> ParallelText:
    folder = root / "iwslt14-de-en"

    def files(stem: str) -> tuple[Path, Path]:
        first, second = (folder / f"{stem}.{language}" for language in languages)
        return first, second

    def there(stem: str) -> bool:
        return all(is_there(path) for path in files(stem))

    def read(stem: str) -> ParallelText:
        sides = [[line.replace(b"@@ ", b"") for line in read_lines(path)] for path in files(stem)]
        return clean_pairs(sides, files(stem), rules, name="iwslt14", languages=languages)

    stem = "valid" if split == "val" else split
    samples = [sample for sample in ("lowres_train_v1.bpe", "lowres_train_v2.bpe") if there(sample)]
    if there(stem):
        return read(stem)
    if split == "train" and samples:
        return _distinct(
            [read(sample) for sample in samples], [read(other) for other in ("valid", "test") if there(other)]
        )
    raise FileNotFoundError(
        f"{' or '.join(map(str, files(stem)))} is missing; expected the files of these names that fairseq's "
        f"examples/translation/prepare-iwslt14.sh writes (https://github.com/facebookresearch/fairseq). Put both "
        f"there, or name the folder that holds iwslt14-de-en by {OTHER_FOLDER}."
    )


def _distinct(samples: list[ParallelText], held_out: list[ParallelText]) -> ParallelText:
    """Join samples without repeated pairs and without pairs that have a side in common with texts held out."""
    sources = {sentence for text in held_out for sentence in text.source}
    targets = {sentence for text in held_out for sentence in text.target}
    skipped: Counter[str] = Counter()
    kept: dict[tuple[str, str], None] = {}
    for text in samples:
        skipped.update(text.skipped)
        for pair in zip(text.source, text.target, strict=True):
            if pair in kept:
                skipped["repeated"] += 1
            elif pair[0] in sources or pair[1] in targets:
                skipped["held out"] += 1
            else:
                kept[pair] = None
    first, second = ([pair[side] for pair in kept] for side in (0, 1))
    return ParallelText(first, second, "iwslt14-lowres", samples[0].languages, skipped=dict(skipped))


def _tatoeba(root: Path, split: str, languages: tuple[str, str], rules: Rules) -> ParallelText:
    path = root / "tatoeba-deu-eng" / "deu.txt"
    if not is_there(path):
        raise FileNotFoundError(
            f"{path} is missing; expected lines of an English and a German sentence with a tab between them, as in "
            f"deu.txt of https://www.manythings.org/anki/deu-eng.zip (it is not fetched: it changes from time to "
            f"time). Put it there, or name the folder that holds tatoeba-deu-eng by {OTHER_FOLDER}."
        )
    rows = [line.split(b"\t") for line in read_lines(path)]
    for number, row in enumerate(rows, 1):
        if len(row) < 2:
            raise ValueError(
                f"{path}: line {number} has no tab; expected an English and a German sentence with a tab between "
                f"them. Replace the file by an intact copy, or name another folder by {OTHER_FOLDER}."
            )
    # The split is that of the lines as they are: options that leave out pairs do not move others to another split.
    numbers = _tatoeba_split(rows)[split]
    columns = [("en", "de").index(language) for language in languages]
    sides = [[rows[number][column] for number in numbers] for column in columns]
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
    size = min(_TATOEBA_PART, len(rows) // 10)
    splits: dict[str, list[int]] = {name: [] for name in SPLITS}
    for group in order:
        name = next((name for name in ("val", "test") if len(splits[name]) < size), "train")
        splits[name] += group
    return splits


def _key(text: bytes) -> str:
    """Small letters without punctuation."""
    plain = text.decode(errors="replace")
    return " ".join(re.findall(r"\w+", plain.casefold())) or plain
