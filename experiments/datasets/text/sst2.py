"""SST-2: sentences of film reviews, positive or negative."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from experiments.datasets.places import NEW_COPY, data_folder, missing
from experiments.datasets.text.parallel_text import read_lines
from experiments.datasets.untrusted import clipped, is_there

__all__ = ["CLASSES", "LabelledText", "load_sst2"]

CLASSES = ("negative", "positive")
_HEADER = ["sentence", "label"]


@dataclass(frozen=True, eq=False)
class LabelledText:
    """Sentences and their classes.

    Args:
        sentences: the sentences.
        labels: [sentences] int64, place of the class in `CLASSES`.
    """

    sentences: list[str]
    labels: Tensor

    def __len__(self) -> int:
        return len(self.sentences)


def load_sst2(*, train: int = 10_000, data_root: Path | str | None = None) -> dict[str, LabelledText]:
    """Load SST-2 from train.tsv and dev.tsv of GLUE.

    The training part holds sentences and phrases of them. GLUE hides the labels of its test part, so its development
    part (872 sentences) is divided: its first, third, ... sentences are to validate on, the others to test on. Scores
    are no GLUE scores.

    Args:
        train: most training sentences; which ones is the same in every run.
        data_root: folder that holds glue/SST-2; by default $PYRO_ATTENTION_DATA, else ~/.cache/pyro_attention.

    Returns:
        The splits by name, sentences in small letters.

    Raises:
        FileNotFoundError: a file is missing; the message says which to put where.
        ValueError: a bad line; the message names file and line.

    Source:
        Socher et al., Recursive Deep Models for Semantic Compositionality Over a Sentiment Treebank, 2013; Wang et
        al., GLUE, 2019.
    """
    folder = data_folder(data_root) / "glue" / "SST-2"
    texts = {name: _read(folder / f"{name}.tsv") for name in ("train", "dev")}
    order = torch.randperm(len(texts["train"]), generator=torch.Generator().manual_seed(0))[:train]
    dev = torch.arange(len(texts["dev"]))
    return {
        "train": _select(texts["train"], order),
        "val": _select(texts["dev"], dev[::2]),
        "test": _select(texts["dev"], dev[1::2]),
    }


def _select(text: LabelledText, places: Tensor) -> LabelledText:
    return LabelledText([text.sentences[place] for place in places.tolist()], text.labels[places])


def _read(path: Path) -> LabelledText:
    if not is_there(path):
        source = "train.tsv and dev.tsv of https://dl.fbaipublicfiles.com/glue/data/SST-2.zip (it is not fetched)"
        raise missing(path, source, "glue/SST-2")
    sentences, labels = list[str](), list[int]()
    for number, line in enumerate(read_lines(path), 1):
        cells = _cells(path, number, line)
        if number == 1:
            if cells != _HEADER:
                raise ValueError(f"{path}: line 1 is {clipped(str(cells))}; expected the header {_HEADER}. {NEW_COPY}")
        elif len(cells) != 2 or not cells[0] or cells[1] not in ("0", "1"):
            seen = clipped(str(cells))
            raise ValueError(f"{path}: line {number} is {seen}; expected a sentence, a tab, and 0 or 1. {NEW_COPY}")
        else:
            sentences.append(cells[0].lower())
            labels.append(int(cells[1]))
    if len(sentences) < 2:
        raise ValueError(f"{path}: {len(sentences)} sentences; expected 2 at least. {NEW_COPY}")
    return LabelledText(sentences, torch.tensor(labels))


def _cells(path: Path, number: int, line: bytes) -> list[str]:
    try:
        return [" ".join(cell.split()) for cell in line.decode().split("\t")]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: line {number} is not UTF-8; expected UTF-8. {NEW_COPY}") from error
