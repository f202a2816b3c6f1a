"""Text files of the user's own that a trained network reads, and files that it must not write over."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.datasets.text.parallel_text import ParallelText, Rules, check_pairing, checked_lines, read_lines
from experiments.datasets.text.word_rules import WordRule
from experiments.files import UserError, user_errors, write_atomic
from experiments.nmt.config import TranslationConfig

__all__ = ["SourceText", "check_divided", "read_pairs", "read_source", "refuse_to_replace", "write_lines"]


# a dozen letters in a row of Thai, Lao, Burmese, Khmer, kana or Chinese characters
_UNDIVIDED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]{12}")


@dataclass(frozen=True)
class SourceText:
    """A file to translate: sentences without translations, their lines from 0, and why other lines are left out."""

    text: ParallelText
    places: list[int]
    faults: list[str]


def read_source(file: Path, config: TranslationConfig, *, max_words: int) -> SourceText:
    """Read a file to translate, a sentence a line, as the network's training text was read."""
    sentences: dict[int, str] = {}
    faults: list[str] = []
    with user_errors(OSError):
        lines = [read_lines(file)]
    for number, ([sentence], fault) in enumerate(checked_lines(lines, [file], _rules(config, max_words))):
        if fault is None:
            sentences[number] = sentence
        else:
            faults.append(fault.message)
    if not sentences:
        first = f", the first: {faults[0]}" if faults else ""
        raise UserError(f"{file} has no sentence to translate; {len(faults)} lines can not be translated{first}")
    languages = config.source, config.target
    text = ParallelText(list(sentences.values()), [""] * len(sentences), file.name, languages)
    return SourceText(text, list(sentences), faults)


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


def refuse_to_replace(files: Iterable[Path], *, overwrite: bool) -> None:
    """Raise UserError where a file is there already, unless it may be replaced, or where none can be put."""
    for file in files:
        if file.is_dir():
            raise UserError(f"{file} is a folder; expected the name of a file to write")
        if not next(folder for folder in file.absolute().parents if folder.exists()).is_dir():
            raise UserError(f"{file} can not be written: {file.parent} is no folder; choose another --out")
        if file.exists() and not overwrite:
            raise UserError(f"{file} is there already and would be lost; choose another --out, or pass --overwrite")


def write_lines(path: Path, lines: Iterable[object]) -> None:
    """Write a line for each; raise UserError where the file can not be written."""
    with user_errors(OSError):
        write_atomic(path, lambda file: file.write("".join(f"{line}\n" for line in lines).encode()))
