"""Sentence pairs of a translation run."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from experiments.datasets.text.parallel import ParallelText, load_parallel, read_parallel
from experiments.datasets.text.toy_translation import toy_translation
from experiments.files import UserError
from experiments.nmt.config import TranslationConfig

__all__ = ["TOKENISED", "load_text"]

TOKENISED = ("toy", "iwslt14")  # data sets whose punctuation stands between blanks


def load_text(config: TranslationConfig, split: str) -> ParallelText:
    """Sentence pairs of a split, "train", "val" or "test", as many as configured."""
    text, pairs = _load_all(config, split), {"train": config.train_pairs, "test": config.test_pairs}.get(split)
    return text if pairs is None else text.first(pairs)


def _load_all(config: TranslationConfig, split: str) -> ParallelText:
    """All pairs of a split; only training pairs may be left out for their length."""
    languages = (config.source, config.target)
    rules: dict[str, Any] = {"lowercase": config.lowercase, "skip": config.skip_bad, "words": config.words}
    if config.words != "none" and config.dataset in TOKENISED:
        raise UserError(f"dataset {config.dataset} is tokenised already; leave out --tokenize {config.words}")
    if split == "train":
        rules |= {"max_words": config.max_words, "skip": True}
    if config.dataset == "toy":
        if languages != ("de", "en"):
            raise UserError(f"dataset toy is from de to en, not from {config.source} to {config.target}")
        return _lowered(_toy()[split]) if config.lowercase else _toy()[split]
    if config.dataset != "own":
        source, target = languages
        return load_parallel(config.dataset, split, source=source, target=target, data_root=config.data_root, **rules)
    if config.text is None:
        raise UserError("dataset own needs --text, the folder of train.SOURCE, train.TARGET, val.SOURCE, ...")
    if split == "train" and not config.skip_bad:
        # a long pair is left out, a bad line stops
        read_parallel(*_own_files(config, split), languages=languages, words=config.words)
    return read_parallel(*_own_files(config, split), languages=languages, name=config.text.name, **rules)


@cache
def _toy() -> dict[str, ParallelText]:
    return toy_translation()


def _own_files(config: TranslationConfig, split: str) -> list[Path]:
    folder = Path() if config.text is None else config.text
    return [folder / f"{split}.{language}" for language in (config.source, config.target)]


def _lowered(text: ParallelText) -> ParallelText:
    source, target = ([sentence.lower() for sentence in side] for side in (text.source, text.target))
    return ParallelText(source, target, text.name, text.languages, text.alignments)
