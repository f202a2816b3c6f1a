"""GLUE: nine published tasks of sentences or sentence pairs with a class or a grade."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from experiments.data.dataset_names import GlueName
from experiments.data.storage import NEW_COPY, SPLITS, data_folder, missing
from experiments.data.text.parallel_text import read_lines
from experiments.files import reading

HELD_OUT = 0.1  # share of the training part that is held out if the task has no validation part


@dataclass(frozen=True, eq=False)
class LabeledPairs:
    """Sentences or sentence pairs, and their labels.

    Attributes:
        first: The sentences, or the first sentence of each pair.
        second: The second sentence of each pair; None for single sentences.
        labels: Indices of the classes, int64 ``[sentences]``, or grades, float32 ``[sentences]``.
    """

    first: list[str]
    second: list[str] | None
    labels: Tensor

    def __len__(self) -> int:
        return len(self.first)

    def select(self, indices: Tensor) -> "LabeledPairs":
        """Return the examples with these indices, in this order."""
        sides = (self.first, self.second or self.first)
        first, second = ([side[index] for index in indices.tolist()] for side in sides)
        return LabeledPairs(first, None if self.second is None else second, self.labels[indices])


@dataclass(frozen=True, kw_only=True)
class GlueFiles:
    """Files of one task, whose lines have cells with tabs between them, without quotes; cells are counted from 0.

    Attributes:
        title: Usual name of the task, and its folder inside glue/.
        files: Name of the file of each part. A missing validation part is held out of the training part.
        source: Origin of the files, for messages.
        first: Cell of the sentence.
        label: Cell of the label.
        second: Cell of the second sentence; None for single sentences.
        header: Name of the column of the label in a first line that names the columns; the line may be missing.
        labels: Text of each class in the file, in the order of the classes; none for grades from 0 to 5.
        classes: Names of the classes; none for grades.
        gaps: Whether a few of the published lines lack a cell; these lines are left out.
    """

    title: str
    files: Mapping[str, str]
    source: str
    first: int
    label: int
    second: int | None = None
    header: str = ""
    labels: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    gaps: bool = False

    @property
    def regression(self) -> bool:
        """Whether labels are grades instead of classes."""
        return not self.classes


_ZIP = "https://dl.fbaipublicfiles.com/glue/data/{}.zip (it is not fetched)"
_ENTAILMENT = ("entailment", "not_entailment")
_THREE = ("entailment", "neutral", "contradiction")
_GAPS = 0.01  # largest share of lines that lack a cell

GLUE: dict[GlueName, GlueFiles] = {
    "rte": GlueFiles(
        title="RTE", files={"train": "train.tsv", "test": "dev.tsv"}, source=_ZIP.format("RTE"),
        first=1, second=2, label=3, header="label", labels=_ENTAILMENT, classes=_ENTAILMENT,
    ),
    "mrpc": GlueFiles(
        title="MRPC", files={"train": "msr_paraphrase_train.txt", "test": "msr_paraphrase_test.txt"},
        source="the Microsoft Research Paraphrase Corpus (it is not fetched)",
        first=3, second=4, label=0, header="Quality", labels=("0", "1"), classes=("not_equivalent", "equivalent"),
    ),
    "cola": GlueFiles(
        title="CoLA", files={"train": "train.tsv", "test": "dev.tsv"}, source=_ZIP.format("CoLA"),
        first=3, label=1, labels=("0", "1"), classes=("unacceptable", "acceptable"),
    ),
    "sst2": GlueFiles(
        title="SST-2", files={"train": "train.tsv", "val": "dev.tsv", "test": "test-labeled.tsv"},
        source=f"{_ZIP.format('SST-2')}; test-labeled.tsv holds the 1821 test sentences of the Stanford Sentiment "
        "Treebank in the form of dev.tsv",
        first=0, label=1, header="label", labels=("0", "1"), classes=("negative", "positive"),
    ),
    "stsb": GlueFiles(
        title="STS-B", files={"train": "sts-train.csv", "val": "sts-dev.csv", "test": "sts-test.csv"},
        source="http://ixa2.si.ehu.eus/stswiki/images/4/48/Stsbenchmark.tar.gz (it is not fetched)",
        first=5, second=6, label=4,
    ),
    # the development part of MNLI whose genres are those of the training part
    "mnli": GlueFiles(
        title="MNLI", files={"train": "train.tsv", "test": "dev_matched.tsv"}, source=_ZIP.format("MNLI"),
        first=8, second=9, label=-1, header="gold_label", labels=_THREE, classes=_THREE,
    ),
    "qnli": GlueFiles(
        title="QNLI", files={"train": "train.tsv", "test": "dev.tsv"}, source=_ZIP.format("QNLIv2"),
        first=1, second=2, label=3, header="label", labels=_ENTAILMENT, classes=_ENTAILMENT,
    ),
    "qqp": GlueFiles(
        title="QQP", files={"train": "train.tsv", "test": "dev.tsv"}, source=_ZIP.format("QQP-clean"),
        first=3, second=4, label=5, header="is_duplicate", labels=("0", "1"), classes=("not_duplicate", "duplicate"),
        gaps=True,
    ),
    "wnli": GlueFiles(
        title="WNLI", files={"train": "train.tsv", "test": "dev.tsv"}, source=_ZIP.format("WNLI"),
        first=1, second=2, label=3, header="label", labels=("0", "1"), classes=("not_entailment", "entailment"),
    ),
}  # fmt: skip
"""Files of the tasks, by the names of the commands."""
CLASSES = GLUE["sst2"].classes


def load_glue(name: GlueName, *, data_root: Path | str | None = None) -> dict[str, LabeledPairs]:
    """Load the parts "train", "val" and "test" of a task from the folder glue/.

    The labels of GLUE's test parts are not public, so other parts are used for the test: for RTE, CoLA, MNLI (matched),
    QNLI, QQP and WNLI the development part, for MRPC and STS-B the test part of their publishers, and for SST-2 the
    test part of the treebank (the same sentences as in GLUE). The validation part of SST-2 and STS-B is the development
    part. For all other tasks a tenth of the training part is held out for validation, the same one in every run.
    Nothing is chosen on the test part.

    A training part may be one file, train.tsv, or several, train_part1.tsv, train_part2.tsv and so on, read in order.

    Source:
        Wang et al., GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language Understanding, 2019.
    """
    task, folder = GLUE[name], data_folder(data_root) / "glue"
    parts = {part: read_part(task, folder / task.title / file) for part, file in task.files.items()}
    if "val" not in parts:
        whole = parts["train"]
        order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(0))
        size = max(1, int(HELD_OUT * len(order)))
        parts |= {"val": whole.select(order[:size]), "train": whole.select(order[size:].sort().values)}
    return {part: parts[part] for part in SPLITS}


def load_sst2(*, train: int = 10_000, data_root: Path | str | None = None) -> dict[str, LabeledPairs]:
    """Load film reviews, SST-2, from train.tsv and dev.tsv of GLUE, in lower case.

    The labels of GLUE's test part are not public, so its development part (872 sentences) is divided: the first, third,
    ... sentences are for validation, the other sentences for the test. Scores are hence no GLUE scores.

    Args:
        train: Largest number of training examples, sentences and phrases; they are the same in every run.
        data_root: Folder of the data sets.

    Source:
        Socher et al., Recursive Deep Models for Semantic Compositionality Over a Sentiment Treebank, 2013.
    """
    folder = data_folder(data_root) / "glue" / "SST-2"
    whole, dev = (read_part(GLUE["sst2"], folder / f"{name}.tsv") for name in ("train", "dev"))
    order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(0))[:train]
    indices = torch.arange(len(dev))
    parts = whole.select(order), dev.select(indices[::2]), dev.select(indices[1::2])
    texts = (LabeledPairs([sentence.lower() for sentence in part.first], None, part.labels) for part in parts)
    return dict(zip(SPLITS, texts, strict=True))


def read_part(task: GlueFiles, path: Path) -> LabeledPairs:
    """Read one part of a task, from one file or from several.

    Raises:
        FileNotFoundError: The file is missing.
        DamagedFileError: A line has other content.
        ValueError: Too many lines lack a cell, or the part is empty.
    """
    parts = path.parent.glob(f"{path.stem}_part[0-9]*{path.suffix}")
    paths = [path] if path.is_file() else sorted(parts, key=lambda part: (len(part.name), part.name))
    if not paths:
        raise missing(path, f"a file of {task.source}", f"glue/{task.title}")
    pair = "" if task.second is None else f", another sentence in column {task.second + 1}"
    column = "the last column" if task.label < 0 else f"column {task.label + 1}"
    expected = (
        f"columns with tabs between them, a sentence in column {task.first + 1}{pair}, and in {column} "
        f"the label: {' or '.join(task.labels) or 'a grade from 0 to 5'}"
    )
    rows, left_out = list[tuple[str, str, float]](), 0
    for file in paths:
        for number, line in enumerate(read_lines(file), 1):
            with reading(f"{file}: line {number}", expected, NEW_COPY):
                cells = [" ".join(cell.split()) for cell in line.decode().split("\t")]
                if number == 1 and task.header and cells[task.label] == task.header:
                    continue
                if task.gaps and (len(cells) <= task.label or not cells[task.first] or not cells[task.second or 0]):
                    left_out += 1
                    continue
                label = task.labels.index(cells[task.label]) if task.labels else float(cells[task.label])
                first, second = cells[task.first], cells[task.second or task.first]
                if not first or not second or not 0 <= label <= 5:
                    raise ValueError(cells)
                rows.append((first, second, label))
    if left_out > _GAPS * (left_out + len(rows)):
        raise ValueError(
            f"{paths[0]}: {left_out} of {left_out + len(rows)} lines lack a cell, expected at most {_GAPS:.0%}, and "
            f"{expected}; {NEW_COPY}"
        )
    if not rows:
        raise ValueError(f"{paths[0]} has no example, expected lines of {expected}; {NEW_COPY}")
    firsts, seconds, labels = map(list, zip(*rows, strict=True))
    kind = torch.float32 if task.regression else torch.int64
    return LabeledPairs(firsts, None if task.second is None else seconds, torch.tensor(labels, dtype=kind))
