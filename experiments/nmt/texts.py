"""Sentence pairs of a translation run, and of files of one's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.datasets.names import ParallelName
from experiments.datasets.text.batches import Batch, EncodedText, in_order
from experiments.datasets.text.parallel import PARALLEL, load_parallel
from experiments.datasets.text.parallel_text import ParallelText, read_parallel
from experiments.datasets.text.word_rules import WordRule
from experiments.files import UserError, user_errors
from experiments.nmt.config import TranslationConfig
from experiments.sequence.evaluation import BATCH
from experiments.sequence.model import AnyTrained
from pyro_attention.analysis import Alignment, GoldAlignment, alignment_error_rate, read_naacl, read_pharaoh

_LONGEST = 1000  # words of a validation or test sentence


def load_text(config: TranslationConfig, split: str) -> ParallelText:
    """Sentence pairs of a split, "train", "val" or "test", as many as configured.

    Training pairs are left out for their length. A validation or test sentence is refused only where it is so long that
    it is none, such as a file that has lost its line ends.
    """
    languages = (config.source, config.target)
    rules: dict[str, Any] = {
        "lowercase": config.lowercase, "skip": config.skip_bad, "words": config.words, "max_words": _LONGEST
    }  # fmt: skip
    if config.words != "none" and tokenized(config):
        raise UserError(f"dataset {config.dataset} is tokenized already; leave out --tokenize {config.words}")
    if split == "train":
        rules |= {"max_words": config.max_words, "skip": True}
    if config.dataset != "own":
        source, target = languages
        text = load_parallel(config.dataset, split, source=source, target=target, data_root=config.data_root, **rules)
    elif config.text is None:
        raise UserError("dataset own needs --text, the folder of train.SOURCE, train.TARGET, val.SOURCE, ...")
    else:
        files = [config.text / f"{split}.{language}" for language in languages]
        if split == "train" and not config.skip_bad:
            # a long pair is left out, a bad line stops
            read_parallel(*files, languages=languages, words=config.words)
        text = read_parallel(*files, languages=languages, name=config.text.name, **rules)
    pairs = {"train": config.train_pairs, "test": config.test_pairs}.get(split)
    return text if pairs is None else text.first(pairs)


def tokenized(config: TranslationConfig) -> bool:
    """Whether punctuation stands between blanks in the files of the data set."""
    return config.dataset != "own" and PARALLEL[config.dataset].tokenized


def word_pairs(text: ParallelText) -> list[tuple[list[str], list[str]]]:
    """The words of every pair."""
    return [(source.split(), target.split()) for source, target in zip(text.source, text.target, strict=True)]


def read_pairs(
    source: Path, target: Path, config: TranslationConfig, *, max_words: int, words: WordRule
) -> ParallelText:
    """Read sentence pairs as the network's training text was read, but for how it is divided into words."""
    with user_errors(ValueError, OSError):
        return read_parallel(
            source, target, languages=(config.source, config.target), lowercase=config.lowercase, max_words=max_words,
            words=words,
        )  # fmt: skip


def read_gold(path: Path, text: ParallelText) -> list[GoldAlignment]:
    """Gold links of every pair of a text, in Pharaoh or NAACL format; UserError where they do not fit the text."""
    sizes = [Alignment(frozenset(), len(source), len(target)) for source, target in word_pairs(text)]
    with user_errors(ValueError, OSError):
        first = path.read_text(encoding="utf-8-sig").lstrip().partition("\n")[0]
        naacl = "-" not in first and "p" not in first
        gold = read_naacl(path, index=1) if naacl else read_pharaoh(path)
        if naacl:  # sentences from 1, of which those without links may be missing
            links = {int(name): links_of for name, links_of in gold.items()}
            gold = {str(n): links.pop(n, GoldAlignment(frozenset())) for n in range(1, len(text) + 1)}
            if links:
                raise UserError(f"{path} has a sentence {min(links)}; expected numbers from 1 to {len(text)}")
    try:
        alignment_error_rate(sizes, list(gold.values()))
    except ValueError as error:
        raise UserError(
            f"{path}: {error}; expected source-target links, counted from 0 in Pharaoh format and from 1 in NAACL's"
        ) from error
    return list(gold.values())


def foreign_texts(config: TranslationConfig, names: Sequence[ParallelName]) -> dict[str, ParallelText]:
    """Test texts of data sets that a network was not trained on, read as its own was.

    Raises:
        UserError: One is that of the training, or cannot be had.
    """
    texts: dict[str, ParallelText] = {}
    for name in names:
        if name == config.dataset:
            raise UserError(f"--out-of-domain is {name}, expected other data sets than the one that is trained on")
        foreign = replace(config, dataset=name, text=None, test_pairs=None)
        if tokenized(foreign):  # what divides the network's own text has divided this one already
            foreign = replace(foreign, tokenize=None)
        with user_errors(ValueError, OSError):
            texts[name] = load_text(foreign, "test")
    return texts


def batches(trained: AnyTrained, text: ParallelText) -> Iterator[Batch]:
    """Yield the pairs of a text in batches of similar lengths, on the network's device."""
    return in_order(EncodedText(text, trained.vocabulary), sentences=BATCH, device=trained.device)
