"""GLUE: sentences, or pairs of them, with a class or a grade; five tasks as they are published."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from reprlib import repr as shown
from typing import Literal

import torch
from torch import Tensor

from experiments.datasets.places import NEW_COPY, data_folder, missing
from experiments.datasets.text.parallel_text import read_lines
from experiments.files import reading

__all__ = ["GLUE", "GlueName", "GlueTask", "LabelledPairs", "load_glue", "read_part"]

GlueName = Literal["rte", "mrpc", "cola", "sst2", "stsb"]
HELD_OUT = 0.1  # of the training part, where the task has no other validation part


@dataclass(frozen=True, eq=False)
class LabelledPairs:
    """Sentences, or pairs of them, and their labels.

    Args:
        first: the sentences.
        second: the second sentence of each pair; None where there are no pairs.
        labels: [sentences], int64 places of the classes, or float32 grades.
    """

    first: list[str]
    second: list[str] | None
    labels: Tensor

    def __len__(self) -> int:
        return len(self.first)

    def select(self, places: Tensor) -> "LabelledPairs":
        """Return the sentences at these places, in this order."""
        first, second = ([side[place] for place in places.tolist()] for side in (self.first, self.second or self.first))
        return LabelledPairs(first, None if self.second is None else second, self.labels[places])


@dataclass(frozen=True)
class Layout:
    """Where a line of a file has what, counted from 0; cells are separated by tabs and never quoted.

    Args:
        columns: number of cells.
        first: cell of the sentence.
        label: cell of the label.
        second: cell of the second sentence, where there are pairs.
        header: cells of the first line, where it is no example.
        labels: text of each class, in their order, as the file has it; none for grades.
        most: the highest grade.
        more: cells that may follow, and do not matter.
    """

    columns: int
    first: int
    label: int
    second: int | None = None
    header: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    most: float = 5.0
    more: int = 0


@dataclass(frozen=True)
class GlueTask:
    """One task.

    Args:
        title: its usual name.
        folder: its folder inside glue/.
        layout: of all its files.
        files: names of the files of its parts; a part that is missing is held out of the training part.
        source: where they come from.
        classes: names of the classes, none for grades.
    """

    title: str
    folder: str
    layout: Layout
    files: Mapping[str, str]
    source: str
    classes: tuple[str, ...] = field(default=())

    @property
    def regression(self) -> bool:
        """Whether labels are grades and no classes."""
        return not self.classes


_ZIP = "https://dl.fbaipublicfiles.com/glue/data/{}.zip (it is not fetched)"
_ENTAILMENT = ("entailment", "not_entailment")

GLUE: dict[GlueName, GlueTask] = {
    "rte": GlueTask(
        "RTE", "RTE",
        Layout(4, 1, 3, second=2, header=("index", "sentence1", "sentence2", "label"), labels=_ENTAILMENT),
        {"train": "train.tsv", "test": "dev.tsv"}, _ZIP.format("RTE"), _ENTAILMENT,
    ),
    "mrpc": GlueTask(
        "MRPC", "MRPC",
        Layout(5, 3, 0, second=4, header=("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"), labels=("0", "1")),
        {"train": "msr_paraphrase_train.txt", "test": "msr_paraphrase_test.txt"},
        "the Microsoft Research Paraphrase Corpus (it is not fetched)", ("not_equivalent", "equivalent"),
    ),
    "cola": GlueTask(
        "CoLA", "CoLA", Layout(4, 3, 1, labels=("0", "1")), {"train": "train.tsv", "test": "dev.tsv"},
        _ZIP.format("CoLA"), ("unacceptable", "acceptable"),
    ),
    "sst2": GlueTask(
        "SST-2", "SST-2", Layout(2, 0, 1, header=("sentence", "label"), labels=("0", "1")),
        {"train": "train.tsv", "val": "dev.tsv", "test": "test-labeled.tsv"},
        f"{_ZIP.format('SST-2')}; test-labeled.tsv holds the 1821 test sentences of the Stanford Sentiment Treebank in "
        f"the form of dev.tsv", ("negative", "positive"),
    ),
    "stsb": GlueTask(
        "STS-B", "STS-B", Layout(7, 5, 4, second=6, more=2),
        {"train": "sts-train.csv", "val": "sts-dev.csv", "test": "sts-test.csv"},
        "http://ixa2.si.ehu.eus/stswiki/images/4/48/Stsbenchmark.tar.gz (it is not fetched)",
    ),
}  # fmt: skip
"""The tasks, by the names of their commands."""


def load_glue(name: GlueName, *, data_root: Path | str | None = None) -> dict[str, LabelledPairs]:
    """Load a task.

    Labels of GLUE's own test parts are not public. So the test part of RTE and CoLA is their development part, that
    of MRPC and STS-B the one of their publishers, and that of SST-2 the treebank's (the same sentences as GLUE's).
    Validation is the development part of SST-2 and STS-B; of the other three a tenth of the training part, always the
    same one, is held out for it. Nothing is chosen on what is reported.

    A training part may be in one file, train.tsv, or divided: train_part1.tsv, train_part2.tsv and so on.

    Args:
        name: the task.
        data_root: folder that holds glue/; by default $PYRO_ATTENTION_DATA, else ~/.cache/pyro_attention.

    Returns:
        The parts "train", "val" and "test".

    Raises:
        FileNotFoundError: a file is missing; the message says which to put where.
        ValueError: a bad line; the message names file and line.

    Source:
        Wang et al., GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language Understanding, 2019.
    """
    task, folder = GLUE[name], data_folder(data_root) / "glue"
    found = {part: read_part(task, folder / task.folder / file) for part, file in task.files.items()}
    if "val" not in found:
        order = torch.randperm(len(found["train"]), generator=torch.Generator().manual_seed(0))
        size = max(1, int(HELD_OUT * len(order)))
        whole = found["train"]
        found |= {"val": whole.select(order[:size]), "train": whole.select(order[size:].sort().values)}
    return {part: found[part] for part in ("train", "val", "test")}


def read_part(task: GlueTask, path: Path) -> LabelledPairs:
    """One part of a task, from one file or from several."""
    paths = [path]
    if not path.is_file():
        numbers = range(1, 100)
        parts = [path.with_name(f"{path.stem}_part{number}{path.suffix}") for number in numbers]
        paths = parts[: next(place for place, part in enumerate(parts) if not part.is_file())]
    if not paths:
        raise missing(path, f"a file of {task.source}", f"glue/{task.folder}")
    layout, convert = task.layout, _converter(task.layout)
    rows = list[tuple[str, str, float]]()
    for place, file in enumerate(paths):
        for number, line in enumerate(read_lines(file), 1):
            cells = _cells(file, number, line, layout)
            if number == 1 and place == 0 and layout.header:
                if tuple(cells) != layout.header:
                    raise _bad(file, number, cells, f"the header {list(layout.header)}")
                continue
            label = convert(cells[layout.label])
            other = "" if layout.second is None else cells[layout.second]
            if label is None or not cells[layout.first] or (layout.second is not None and not other):
                kinds = " or ".join(layout.labels) or f"a grade from 0 to {layout.most:g}"
                raise _bad(file, number, cells, f"{_shape(layout)}; the label is {kinds}")
            rows.append((cells[layout.first], other, label))
    if len(rows) < 2:
        raise ValueError(f"{path}: {len(rows)} examples; expected 2 at least. {NEW_COPY}")
    labels = torch.tensor([label for *_, label in rows], dtype=torch.float32 if task.regression else torch.int64)
    second = None if layout.second is None else [sentence for _, sentence, _ in rows]
    return LabelledPairs([sentence for sentence, *_ in rows], second, labels)


def _converter(layout: Layout) -> Callable[[str], float | None]:
    """Makes a number of a label; None of one that is not allowed."""
    if layout.labels:
        return {text: float(place) for place, text in enumerate(layout.labels)}.get

    def grade(text: str) -> float | None:
        try:
            value = float(text)
        except ValueError:
            return None
        return value if 0 <= value <= layout.most else None

    return grade


def _cells(path: Path, number: int, line: bytes, layout: Layout) -> list[str]:
    with reading(f"{path}: line {number}", "UTF-8"):
        cells = [" ".join(cell.split()) for cell in line.decode().split("\t")]
    if not 0 <= len(cells) - layout.columns <= layout.more:
        raise _bad(path, number, cells, _shape(layout))
    return cells


def _shape(layout: Layout) -> str:
    pair = "" if layout.second is None else f", another sentence in column {layout.second + 1}"
    count = f"{layout.columns} to {layout.columns + layout.more}" if layout.more else str(layout.columns)
    return (
        f"{count} columns with tabs between them, the label in column {layout.label + 1}, a sentence in column "
        f"{layout.first + 1}{pair}"
    )


def _bad(path: Path, number: int, cells: list[str], expected: str) -> ValueError:
    return ValueError(f"{path}: line {number} is {shown(cells)}; expected {expected}. {NEW_COPY}")
