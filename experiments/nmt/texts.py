"""Sentence pairs and gold links of translation runs and of files."""

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
    """Return whether the files of the data set are tokenized, with punctuation between blanks."""
    return config.dataset != "own" and PARALLEL[config.dataset].tokenized


def read_pairs(
    source: Path, target: Path, config: TranslationConfig, *, max_words: int, words: WordRule
) -> ParallelText:
    """Read sentence pairs with the languages and the case of a network's training text.

    Args:
        source: File of the source sentences.
        target: File of their translations.
        config: Options of the training.
        max_words: Largest number of words of a sentence.
        words: How sentences are divided into words.

    Raises:
        UserError: A file is missing, or a line is bad.
    """
    with user_errors(ValueError, OSError):
        return read_parallel(
            source, target, languages=(config.source, config.target), lowercase=config.lowercase, max_words=max_words,
            words=words,
        )  # fmt: skip


def read_gold(path: Path, text: ParallelText) -> list[GoldAlignment]:
    """Read the gold links of every pair of a text, in Pharaoh or NAACL format.

    Raises:
        UserError: The file is missing, damaged, or does not fit the text.
    """
    sizes = [Alignment(frozenset(), len(source), len(target)) for source, target in text.word_pairs()]
    with user_errors(ValueError, OSError):
        first = path.read_text(encoding="utf-8-sig").lstrip().partition("\n")[0]
        naacl = "-" not in first and "p" not in first
        gold = read_naacl(path, index=1) if naacl else read_pharaoh(path)
        if naacl:  # sentences are numbered from 1, and those without links may be missing
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
