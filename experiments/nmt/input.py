"""Text files of the user's own that a trained network reads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from experiments.datasets.text.parallel_text import ParallelText, Rules, check_pairing, checked_lines, read_lines
from experiments.datasets.text.word_rules import WordRule
from experiments.files import UserError, user_errors
from experiments.nmt.config import TranslationConfig
from experiments.sequence import own_text
from experiments.sequence.own_text import SourceText

__all__ = ["check_divided", "read_pairs", "read_source"]

# a dozen letters in a row of Thai, Lao, Burmese, Khmer, kana or Chinese characters
_UNDIVIDED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]{12}")


def read_source(file: Path, config: TranslationConfig, *, max_words: int) -> SourceText:
    """Read a file to translate, a sentence a line, as the network's training text was read."""
    languages = config.source, config.target
    return own_text.read_source(file, _rules(config, max_words), languages=languages, task="translate")


def read_pairs(
    files: tuple[Path, Path], config: TranslationConfig, *, max_words: int, words: WordRule | None = None
) -> ParallelText:
    """Read sentence pairs as the network's training text was read, but for how it was divided into words if given.

    Raises:
        UserError: A file is missing, the files do not go together, or a bad line; the message names file and line.
    """
    with user_errors(ValueError, OSError):
        lines = [read_lines(file) for file in files]
        check_pairing(lines, files)
    pairs: list[list[str]] = []
    for pair, fault in checked_lines(lines, files, _rules(config, max_words)._replace(words=words or config.words)):
        if fault is not None:
            raise UserError(f"{fault.message}. Mend this line, or remove the pair from both files")
        pairs.append(pair)
    if not pairs:
        raise UserError(f"{files[0]} and {files[1]} are empty; expected a sentence a line")
    source, target = map(list, zip(*pairs, strict=True))
    return ParallelText(source, target, files[0].name, (config.source, config.target))


def check_divided(text: ParallelText, files: Sequence[Path]) -> None:
    """Raise UserError where a sentence has no blanks between its words, as links count what blanks separate.

    It names the first line with a dozen letters in a row of a script that is written without blanks.
    """
    for file, sentences in zip(files, (text.source, text.target), strict=True):
        for number, sentence in enumerate(sentences, 1):
            found = next((word for word in sentence.split() if _UNDIVIDED.search(word)), None)
            if found is not None:
                raise UserError(
                    f"{file}: line {number} has {found[:12]!r}... without a blank; expected one token a word, as links "
                    f"count what blanks separate. Divide the text by a tokeniser of its language first"
                )


def _rules(config: TranslationConfig, max_words: int) -> Rules:
    return Rules(config.lowercase, max_words, words=config.words)
