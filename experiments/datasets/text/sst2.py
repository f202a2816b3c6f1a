"""SST-2: sentences of film reviews, positive or negative."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from experiments.datasets.places import data_folder
from experiments.datasets.text.glue import GLUE, read_part

__all__ = ["CLASSES", "LabelledText", "load_sst2"]

CLASSES = GLUE["sst2"].classes


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
    part = read_part(GLUE["sst2"], path)
    return LabelledText([sentence.lower() for sentence in part.first], part.labels)
