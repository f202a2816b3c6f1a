"""Headlines of a text file of the user's own."""

from __future__ import annotations

import sys
from pathlib import Path

from experiments.datasets.text.headlines import plain_words
from experiments.datasets.text.parallel_text import Rules
from experiments.datasets.text.word_rules import join_words
from experiments.files import UserError, user_errors
from experiments.harness.folder import saved_config
from experiments.headlines.config import HeadlineConfig, SummarizeConfig
from experiments.headlines.train import HeadlineTask, write_headlines
from experiments.run import load_trained
from experiments.sequence.own_text import read_source, refuse_to_replace, write_lines

_MOST_WORDS = 1000  # of a text, whose first ones the network reads


def summarize_file(config: SummarizeConfig) -> Path:
    """Write the headlines, a line for each of the file, and print where they are; what was left out on stderr."""
    saved = saved_config(config.run, HeadlineConfig, script="experiments.headlines", device=config.device)
    trained = load_trained(HeadlineTask(), saved)
    most = trained.config.headline_length
    if config.max_length is not None and config.max_length > most:
        raise UserError(f"max_length is {config.max_length}, expected {most} at most, the --headline-length of the run")
    out = config.out or config.file.with_suffix(".headlines")
    if out.resolve() == config.file.resolve():
        raise UserError(f"the headlines would replace {config.file}; name another file by --out")
    refuse_to_replace([out], overwrite=config.overwrite)
    rules = Rules(max_words=_MOST_WORDS, words=config.tokenize)
    source = read_source(config.file, rules, languages=("text", "headline"), task="summarize")
    for fault in source.faults:
        print(f"{fault}; its headline is an empty line", file=sys.stderr)
    with user_errors(ValueError):
        found = write_headlines(
            trained, [plain_words(text) for text in source.text.source], beam=config.beam, no_repeat=config.no_repeat,
            max_length=config.max_length, progress=True,
        )  # fmt: skip
    for place, headline in zip(source.places, found, strict=True):
        if headline.cut:
            print(f"{config.file}: the headline of line {place + 1} was cut at its largest length", file=sys.stderr)
    write_lines(out, source.in_place(join_words(headline.text, config.tokenize) for headline in found))
    print(f"{len(found)} headlines, in small letters, with # for digits: {out}")
    return out
