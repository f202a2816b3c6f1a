"""Sentence pairs of a translation run, and of files of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from experiments.data.text.batches import Batch, EncodedText, in_order
from experiments.data.text.parallel import PARALLEL
from experiments.data.text.parallel_text import ParallelText, read_parallel
from experiments.data.text.word_rules import WordRule
from experiments.files import UserError, user_errors
from experiments.nmt.config import TranslationConfig
from experiments.sequence.evaluation import BATCH
from experiments.sequence.model import AnyTrained
from pyro_attention.analysis import Alignment, GoldAlignment, alignment_error_rate, read_naacl, read_pharaoh


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


def batches(trained: AnyTrained, text: ParallelText) -> Iterator[Batch]:
    """Yield the pairs of a text in batches of similar lengths, on the network's device."""
    return in_order(EncodedText(text, trained.vocabulary), sentences=BATCH, device=trained.device)
