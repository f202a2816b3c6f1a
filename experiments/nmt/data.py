"""Sentence pairs of a translation run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.datasets.text.parallel import PARALLEL, ParallelText, load_parallel, read_parallel
from experiments.files import UserError
from experiments.nmt.config import TranslationConfig

__all__ = ["check_coverage", "load_text", "tokenised", "word_pairs"]


def load_text(config: TranslationConfig, split: str) -> ParallelText:
    """Sentence pairs of a split, "train", "val" or "test", as many as configured."""
    text, pairs = _load_all(config, split), {"train": config.train_pairs, "test": config.test_pairs}.get(split)
    return text if pairs is None else text.first(pairs)


def _load_all(config: TranslationConfig, split: str) -> ParallelText:
    """All pairs of a split; only training pairs may be left out for their length."""
    languages = (config.source, config.target)
    rules: dict[str, Any] = {"lowercase": config.lowercase, "skip": config.skip_bad, "words": config.words}
    if config.words != "none" and tokenised(config):
        raise UserError(f"dataset {config.dataset} is tokenised already; leave out --tokenize {config.words}")
    if split == "train":
        rules |= {"max_words": config.max_words, "skip": True}
    if config.dataset != "own":
        source, target = languages
        return load_parallel(config.dataset, split, source=source, target=target, data_root=config.data_root, **rules)
    if config.text is None:
        raise UserError("dataset own needs --text, the folder of train.SOURCE, train.TARGET, val.SOURCE, ...")
    files = [config.text / f"{split}.{language}" for language in languages]
    if split == "train" and not config.skip_bad:
        # a long pair is left out, a bad line stops
        read_parallel(*files, languages=languages, words=config.words)
    return read_parallel(*files, languages=languages, name=config.text.name, **rules)


def tokenised(config: TranslationConfig) -> bool:
    """Whether punctuation stands between blanks in the files of the data set."""
    return config.dataset != "own" and PARALLEL[config.dataset].tokenised


def word_pairs(text: ParallelText) -> list[tuple[list[str], list[str]]]:
    """The words of every pair."""
    return [(source.split(), target.split()) for source, target in zip(text.source, text.target, strict=True)]


def check_coverage(shares: Sequence[float], *, of: str) -> None:
    """Raise UserError unless every share of what is kept is above 0 and up to 1."""
    for share in shares:
        if not 0 < share <= 1:
            raise UserError(f"--coverage has {share}, expected shares of the {of}, above 0 and up to 1")
