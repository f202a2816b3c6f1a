"""A tiny parallel text on disk and the command line, for end-to-end runs of the translation scripts."""

from pathlib import Path

from experiments.cli import run_commands
from experiments.data.text.parallel import toy_translation
from experiments.nmt.config import COMMANDS
from experiments.nmt.task import TranslationTask

run = TranslationTask().run
SIZES = {"train": 24, "val": 6, "test": 6}
TINY = {"dataset": "own", "vocabulary": 300, "embedding": 8, "hidden": 8, "layers": 1, "batch_size": 8, "beam": 2}
TINY |= {"max_epochs": 2, "num_samples": 3, "progress": False}


def write_text(folder: Path) -> Path:
    """Files train.de, train.en, ... and gold.txt, the links of the test pairs."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = toy_translation(**SIZES)
    for split, text in texts.items():
        for language, sentences in zip(text.languages, (text.source, text.target), strict=True):
            (folder / f"{split}.{language}").write_text("".join(f"{line}\n" for line in sentences))
    (folder / "gold.txt").write_text("".join(f"{links}\n" for links in texts["test"].alignments))
    return folder


def command_line(*arguments: object) -> int:
    """``python -m experiments.nmt`` with these arguments; its exit code."""
    return run_commands(COMMANDS, name="experiments.nmt", arguments=[str(argument) for argument in arguments])


def tiny_options(folder: Path) -> list[str]:
    """The command line of a tiny run on the text in a folder."""
    options = ["--text", str(folder)]
    for name, value in TINY.items():
        if name != "progress":
            options += [f"--{name.replace('_', '-')}", str(value)]
    return [*options, "--no-progress"]
