"""Questions about photographs, by the name of their data set."""

from pathlib import Path

from experiments.datasets.discovery import import_readers
from experiments.datasets.places import data_folder
from experiments.datasets.questions.data import Questions
from experiments.datasets.questions.photographs import QUESTIONS, PhotographOptions

__all__ = ["QUESTIONS", "PhotographOptions", "load_photo_questions"]

import_readers("experiments.datasets.questions.readers")


def load_photo_questions(
    name: str, options: PhotographOptions, *, data_root: Path | str | None = None
) -> dict[str, Questions]:
    """Load the splits "train", "val" and "test" of a data set; photographs are encoded once, and kept on disk.

    The module of a data set in `experiments.datasets.questions.readers` tells what it holds and where its files lie.

    Raises:
        ImportError: no torchvision for the encoder that needs it.
        FileNotFoundError: files are missing; the message says which to put where. They are not fetched.
        ValueError: an unknown name, or bad data; the message names file, entry and remedy.
    """
    return QUESTIONS[name](data_folder(data_root), options)
