"""Data sets of sentence pairs, by name."""

import gzip
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from experiments.data.storage import NEW_COPY, SPLITS, data_folder, fetch_missing, first_file
from experiments.data.text.parallel_text import (
    ParallelText,
    Rules,
    checked_lines,
    clean_pairs,
    read_lines,
    read_parallel,
)
from experiments.data.text.word_rules import divide, plain
from pyro_attention.analysis import Alignment, read_pharaoh, read_sentences
from pyro_attention.registry import Registry
from pyro_attention.text_lines import split_lines

# a reader takes the folder of the data sets, a split, source and target language, and the rules for lines
Reader = Callable[[Path, str, tuple[str, str], Rules], ParallelText]


@dataclass(frozen=True)
class ParallelReader:
    """Data set of sentence pairs.

    Attributes:
        read: Its reader.
        languages: Its languages.
        tokenized: Whether its files have blanks around punctuation marks.
    """

    read: Reader
    languages: tuple[str, ...]
    tokenized: bool = False


PARALLEL: Registry[ParallelReader] = Registry("parallel text")


def _register(name: str, *languages: str, tokenized: bool = False) -> Callable[[Reader], Reader]:
    def register(read: Reader) -> Reader:
        PARALLEL.register(name)(ParallelReader(read, languages, tokenized))
        return read

    return register


def load_parallel(
    name: str, split: str, *, source: str = "de", target: str = "en", data_root: Path | str | None = None, **rules: Any
) -> ParallelText:
    """Load one split of a data set of sentence pairs.

    The reader of the data set describes the files.

    Args:
        name: Name of the data set.
        split: "train", "val" or "test".
        source: Language to translate from.
        target: Language to translate to.
        data_root: Folder of the data sets.
        rules: Fields of `Rules`.

    Raises:
        ValueError: The data set does not have these languages, or a line is bad.
        FileNotFoundError: A file is missing.
    """
    reader = PARALLEL[name]
    if not {source, target} <= set(reader.languages) or source == target:
        languages = ", ".join(reader.languages)
        raise ValueError(
            f"source is {source!r} and target {target!r}; expected two different languages of {name}: {languages}"
        )
    return reader.read(data_folder(data_root), split, (source, target), Rules(**rules))


_SIZES = {"train": 4000, "val": 500, "test": 500}  # pairs of each split, in the order of the file


def toy_translation(*, train: int = 4000, val: int = 500, test: int = 500) -> dict[str, ParallelText]:
    """Read the first pairs of the splits of the embedded corpus, with gold links that are all sure.

    The corpus was drawn from a small grammar that makes German and English sentences together, and links words with the
    same meaning. It has about 240 German and 190 English words. A sentence has 4 to 20 words, and occurs only once. The
    languages differ in the order of words, in inflection, in ambiguity, and in the number of words for the same
    meaning. The sentences make no sense:

        die Frau sieht heute eine Haustür oft an .
        the woman often looks at a front door today .
        0-0 1-1 2-3 2-4 3-8 4-5 5-6 5-7 6-2 7-3 7-4 8-9
    """
    content = gzip.decompress(Path(__file__).with_name("toy_translation.tsv.gz").read_bytes()).decode()
    lines, texts = iter(split_lines(content)), dict[str, ParallelText]()
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


@_register("toy", "de", "en", tokenized=True)
def read_toy(_: Path, split: str, languages: tuple[str, str], rules: Rules) -> ParallelText:
    """Read the embedded corpus with its gold links, which needs no file; its words are those between blanks."""
    text = _without_faults(toy_corpus()[split], rules)
    if rules.lowercase:
        source, target = ([sentence.lower() for sentence in side] for side in (text.source, text.target))
        text = replace(text, source=source, target=target)
    return text if languages == ("de", "en") else text.swapped()


def _without_faults(text: ParallelText, rules: Rules) -> ParallelText:
    """Leave out the pairs of the embedded corpus that are too long, as :func:`clean_pairs` does with those of files."""
    sides = [[sentence.encode() for sentence in side] for side in (text.source, text.target)]
    paths = [Path(f"{text.name}.{language}") for language in text.languages]
    faults = [fault for _, fault in checked_lines(sides, paths, rules._replace(words="none"))]
    if first := next(filter(None, faults), None):
        if not rules.skip:
            raise ValueError(f"{first.message}; raise max_words, or pass skip=True")
        if all(faults):
            raise ValueError(f"{text.name}: no sentence pairs, {len(faults)} skipped; expected at least one")
    whole = text.chosen([number for number, fault in enumerate(faults) if fault is None])
    return replace(whole, skipped=dict(Counter(fault.reason for fault in faults if fault)))


toy_corpus = cache(toy_translation)


ADDRESS = "https://raw.githubusercontent.com/multi30k/dataset/c9be912dc05a3ebf9ae5bb5f7f58c1791cda43ab/data/task1/raw"


@_register("multi30k", "de", "en", "fr")
def read_multi30k(root: Path, split: str, languages: tuple[str, str], rules: Rules) -> ParallelText:
    """Read Multi30k, captions of photographs, in multi30k/task1.

    Missing files are fetched from the repository of the authors. The test split is that of 2016.

    Source:
        Elliott, Frank, Sima'an and Specia, Multi30K, 2016; https://github.com/multi30k/dataset.
    """
    folder, stem = root / "multi30k" / "task1", "test_2016_flickr" if split == "test" else split
    names = [f"{stem}.{language}" for language in languages]
    fetch_missing(folder, names, ADDRESS, ".gz")
    source, target = (folder / name for name in names)
    return read_parallel(source, target, languages=languages, name="multi30k", **rules._asdict())


@_register("iwslt14", "de", "en", tokenized=True)
def read_iwslt14(root: Path, split: str, languages: tuple[str, str], rules: Rules) -> ParallelText:
    """Read IWSLT14: TED talks, tokenized and in lower case, as written by fairseq's prepare-iwslt14.sh.

    The files lie in iwslt14-de-en. Word pieces ("@@ ") are joined. If train.* is missing but the samples
    lowres_train_v1.bpe.* and lowres_train_v2.bpe.* exist, these are the training split, and the name is
    `iwslt14-lowres`. Repeated pairs and pairs that share a side with another split are then left out.

    Source:
        Cettolo et al., Report on the 11th IWSLT Evaluation Campaign, 2014.
    """
    folder = root / "iwslt14-de-en"

    def exists(stem: str) -> bool:
        return all((folder / f"{stem}.{language}").is_file() for language in languages)

    def read(stem: str) -> ParallelText:
        paths = _language_files(folder, stem, languages, "sentences as fairseq's prepare-iwslt14.sh writes them")
        sides = [[line.replace(b"@@ ", b"") for line in read_lines(path)] for path in paths]
        return clean_pairs(sides, paths, rules, name="iwslt14", languages=languages)

    samples = [sample for sample in ("lowres_train_v1.bpe", "lowres_train_v2.bpe") if exists(sample)]
    if split == "train" and samples and not exists("train"):
        held_out = [read(stem) for stem in ("valid", "test") if exists(stem)]
        return _join_distinct([read(sample) for sample in samples], held_out, name="iwslt14-lowres")
    return read("valid" if split == "val" else split)


def _language_files(folder: Path, stem: str, languages: tuple[str, str], expected: str) -> tuple[Path, Path]:
    """Return the files of both languages, each plain or else packed (.gz)."""
    paths = [[folder / f"{stem}.{language}{ending}" for ending in ("", ".gz")] for language in languages]
    return first_file(paths[0], expected, folder.name), first_file(paths[1], expected, folder.name)


def _join_distinct(samples: list[ParallelText], held_out: list[ParallelText], *, name: str) -> ParallelText:
    """Join samples without repeated pairs and without pairs that share a side with held-out texts."""
    sources = {sentence for text in held_out for sentence in text.source}
    targets = {sentence for text in held_out for sentence in text.target}
    skipped: Counter[str] = Counter()
    pairs: dict[tuple[str, str], None] = {}
    for text in samples:
        skipped.update(text.skipped)
        for pair in zip(text.source, text.target, strict=True):
            if pair in pairs:
                skipped["repeated"] += 1
            elif pair[0] in sources or pair[1] in targets:
                skipped["held out"] += 1
            else:
                pairs[pair] = None
    first, second = map(list, zip(*pairs, strict=True))
    return ParallelText(first, second, name, samples[0].languages, skipped=dict(skipped))


@_register("ted", "de", "en", tokenized=True)
def read_ted(root: Path, split: str, languages: tuple[str, str], rules: Rules) -> ParallelText:
    """Read TED talks from the available parts of IWSLT14 and further pairs, if its whole training text is missing.

    The training text is that of `iwslt14` (its samples, if it has no other) and the pairs of ted-de-en-extra, train.de
    and train.en, which are tokenized, in lower case, and may be packed as .gz. Repeated pairs and pairs that share a
    side with a held-out text are left out. Pairs in which words were replaced by gaps (<S_3> in German, <T_3> in
    English) are left out too, since a network would learn to write the gaps; these are about half of the further pairs.

    Every fourth pair of iwslt14-de-en/valid.* is for validation, and the other pairs are the test text, as test.* may
    be missing. Scores can hence not be compared with published ones.
    """
    # the rules that leave out training pairs do not change the held-out text
    held_out = read_iwslt14(root, "val", languages, Rules(lowercase=rules.lowercase) if split == "train" else rules)
    if split != "train":
        indices = [index for index in range(len(held_out)) if (index % 4 == 0) == (split == "val")]
        return replace(held_out.chosen(indices), name="ted")
    folder = root / "ted-de-en-extra"
    paths = _language_files(folder, "train", languages, "sentences of TED talks")
    sides = [read_lines(path) for path in paths]
    pairs = zip(*sides, strict=False)  # sides that differ in length are refused below
    gaps = [any(re.search(rb"<[ST]_\d+>", line, re.IGNORECASE) for line in pair) for pair in pairs]
    whole = [number for number, gap in enumerate(gaps) if not gap]
    more = clean_pairs(sides, paths, rules, name=folder.name, languages=languages, numbers=whole)
    if any(gaps):
        more = replace(more, skipped=more.skipped | {"gaps": sum(gaps)})
    return _join_distinct([read_iwslt14(root, "train", languages, rules), more], [held_out], name="ted")


@_register("tatoeba", "de", "en")
def read_tatoeba(root: Path, split: str, languages: tuple[str, str], rules: Rules) -> ParallelText:
    """Read Tatoeba: short sentences in English and German with a tab between them, in tatoeba-deu-eng/deu.txt.

    About 2000 pairs are for validation, and as many for the test. Pairs that share a side, apart from case and
    punctuation, are in the same split. The order is shuffled, since the file is sorted by length. The splits do not
    depend on the rules.

    Source:
        https://tatoeba.org by way of https://www.manythings.org/anki.
    """
    folder = root / "tatoeba-deu-eng"
    address = "https://www.manythings.org/anki/deu-eng.zip (it is not fetched: it changes from time to time)"
    path = first_file([folder / "deu.txt"], f"the file of {address}", folder.name)
    rows = [line.split(b"\t") for line in read_lines(path)]
    short = next((number for number, row in enumerate(rows, 1) if len(row) < 2), None)
    if short is not None:
        raise ValueError(f"{path}: line {short} has no tab; expected an English and a German sentence; {NEW_COPY}")
    sides = [[row[("en", "de").index(language)] for row in rows] for language in languages]
    numbers = _tatoeba_split(rows)[split]
    return clean_pairs(sides, (path, path), rules, name="tatoeba", languages=languages, numbers=numbers)


def _tatoeba_split(rows: list[list[bytes]]) -> dict[str, list[int]]:
    """Return the line numbers of each split, counted from 0.

    Pairs that share a side form a group. The groups are ordered by hashes and cut into three splits.
    """
    keys = [np.unique([_letters(row[side]) for row in rows], return_inverse=True)[1] for side in (0, 1)]
    sides = keys[0], keys[0].max() + 1 + keys[1]
    joined = coo_matrix((np.ones(len(rows)), sides), shape=(sides[1].max() + 1,) * 2)
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for number, group in enumerate(connected_components(joined, directed=False)[1][sides[0]].tolist()):
        groups[group].append(number)
    # the order by hashes is the same in every release of Python, unlike that of a random generator
    hashes = [sha256(b"\t".join(row[:2])).digest() for row in rows]
    size = min(2000, len(rows) // 10)
    splits: dict[str, list[int]] = {name: [] for name in SPLITS}
    for group in sorted(groups.values(), key=lambda group: min(hashes[number] for number in group)):
        splits[next((name for name in ("val", "test") if len(splits[name]) < size), "train")] += group
    return splits


def _letters(text: bytes) -> str:
    """Return the letters of a text in lower case, without punctuation."""
    whole = text.decode(errors="replace")
    return " ".join(re.findall(r"\w+", whole.casefold())) or whole


# texts with hand-aligned gold links for the test


@_register("europarl_de_en", "de", "en", tokenized=True)
def read_europarl(root: Path, split: str, languages: tuple[str, str], rules: Rules) -> ParallelText:
    """Read Europarl, speeches in the European Parliament with 100 hand-aligned pairs, in europarl-de-en.

    The last 500 pairs of train.de and train.en are for validation. The test split is gold/test.de, gold/test.en and
    gold/de-en.wa, whose links are all sure. The training text is divided into words as the links count them. "ß"
    becomes "ss" everywhere, since the texts have old and new spelling ("daß" and "dass").

    Source:
        Koehn, Europarl, 2005; the links: Bicici, The Regression Model of Machine Translation, 2011.
    """
    folder = root / "europarl-de-en"
    if split == "test":
        gold = folder / "gold"
        text = _read_gold((gold / "test.de", gold / "test.en"), gold / "de-en.wa", ("de", "en"), rules, accents=True)
        return text if languages == ("de", "en") else text.swapped()
    paths, sides = _read_divided(folder, "train", languages, accents=True)
    first = max(len(sides[0]) - 500, len(sides[0]) // 2)
    numbers = range(first, len(sides[0])) if split == "val" else range(first)
    return clean_pairs(sides, paths, rules, name=folder.name, languages=languages, numbers=numbers)


NOVELS = {  # names of the French and the English text, by folder
    "ChatBotte_MasterCat": ("ChatBotte", "MasterCat"),
    "LAuberge_TheInn": ("LAuberge", "TheInn"),
    "LaBarbeBleue_BlueBeard": ("LaBarbeBleue", "BlueBeard"),
    "LaDerniereClasse_TheLastLesson": ("LaDerniereClasse", "TheLastLesson"),
    "LaVision_TheVision": ("LaVision", "TheVision"),
}


@_register("hansards_fr_en", "fr", "en", tokenized=True)
def read_hansards(root: Path, split: str, languages: tuple[str, str], rules: Rules) -> ParallelText:
    """Read the Hansards of Canada, in hansards-fr-en (train and dev), with hand-aligned novels as test split.

    The novels are those of Alibi, in word-alignment/alibi-fr-en with a folder for each of five novels: 522 pairs with
    sure and possible links. The text of the Hansards is divided into words as the links count them, with separate
    clitics ("l' eau", "don 't"). It has no accents, so the accents of the novels are removed.

    Source:
        Germann, Aligned Hansards of the 36th Parliament of Canada, 2001; the links: Xu and Yvon, Novel annotation
        schemes for sentential and sub-sentential alignments of bi-texts, 2016,
        https://github.com/yvofr/AlibiWordAlignments.
    """
    if split != "test":
        stem = "dev" if split == "val" else split
        paths, sides = _read_divided(root / "hansards-fr-en", stem, languages, accents=False)
        return clean_pairs(sides, paths, rules, name="hansards-fr-en", languages=languages)
    texts = []
    for novel, (french, english) in NOVELS.items():
        folder = root / "word-alignment" / "alibi-fr-en" / novel
        files = folder / f"{french}_sents.txt", folder / f"{english}_sents.txt"
        texts.append(_read_gold(files, folder / f"ali_w2w_{novel}.txt", ("fr", "en"), rules, accents=False))
    source, target, sure, possible = (
        [item for text in texts for item in getattr(text, side)]
        for side in ("source", "target", "alignments", "possible")
    )
    text = ParallelText(source, target, "word-alignment/alibi-fr-en", ("fr", "en"), sure, possible=possible)
    return text if languages == ("fr", "en") else text.swapped()


def _read_divided(
    folder: Path, stem: str, languages: tuple[str, str], *, accents: bool
) -> tuple[tuple[Path, Path], list[list[bytes]]]:
    """Return the files of raw texts, and their lines with a blank between words; see `divide` and `plain`."""
    paths = _language_files(
        folder, stem, languages, f"sentences of {folder.name}, a line each, and the same for the other language"
    )

    def words(line: bytes, language: str) -> bytes:
        try:
            return divide(plain(line.decode(), accents=accents), language).encode()
        except UnicodeDecodeError:
            return line  # clean_pairs names the line in its error

    return paths, [
        [words(line, name) for line in read_lines(path)] for path, name in zip(paths, languages, strict=True)
    ]


def _read_gold(
    files: tuple[Path, Path], links: Path, languages: tuple[str, str], rules: Rules, *, accents: bool
) -> ParallelText:
    """Read sentence pairs with hand-made links in Pharaoh format, one sentence a line.

    All three files may have an id and a tab before each line. The words are those that the links count, regardless of
    the rules, and no pair is left out.
    """
    first, second = (read_sentences(path) for path in files)
    gold = read_pharaoh(links)
    if not list(first) == list(second) == list(gold):
        counts = f"{len(first)}, {len(second)} and {len(gold)}"
        raise ValueError(f"{links}: {counts} sentences and links; expected the same in the same order; {NEW_COPY}")
    sides = [[plain(" ".join(words), accents=accents).encode() for words in side.values()] for side in (first, second)]
    rules = rules._replace(skip=False, words="none", max_words=None)
    text = clean_pairs(sides, files, rules, name=files[0].parents[1].name, languages=languages)
    sure, possible = [], []
    for key, links_of in gold.items():
        sizes = len(first[key]), len(second[key])
        outside = [link for link in links_of.possible if link[0] >= sizes[0] or link[1] >= sizes[1]]
        if outside:
            raise ValueError(f"{links}, sentence {key}: link {min(outside)} lies outside of {sizes} words; {NEW_COPY}")
        sure.append(Alignment(links_of.sure, *sizes))
        possible.append(Alignment(links_of.possible, *sizes))
    return replace(text, alignments=sure, possible=possible)
