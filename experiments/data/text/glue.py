"""GLUE: sentences, or pairs of them, with a class or a grade; eight tasks as they are published."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from experiments.data.names import GlueName
from experiments.data.places import NEW_COPY, SPLITS, data_folder, missing
from experiments.data.text.parallel_text import read_lines
from experiments.files import reading

HELD_OUT = 0.1  # of the training part, where the task has no other validation part


@dataclass(frozen=True, eq=False)
class LabeledPairs:
    """Sentences, or pairs of them, and their labels."""

    first: list[str]  # the sentences
    second: list[str] | None  # the second sentence of each pair; None where there are no pairs
    labels: Tensor  # [sentences], int64 places of the classes, or float32 grades

    def __len__(self) -> int:
        return len(self.first)

    def select(self, places: Tensor) -> "LabeledPairs":
        """Return the sentences at these places, in this order."""
        first, second = ([side[place] for place in places.tolist()] for side in (self.first, self.second or self.first))
        return LabeledPairs(first, None if self.second is None else second, self.labels[places])


@dataclass(frozen=True, kw_only=True)
class GlueFiles:
    """One task; its files have cells with tabs between them, counted from 0, and never quoted."""

    title: str  # its usual name, and its folder inside glue/
    files: Mapping[str, str]  # names of the files of its parts; a part that is missing is held out of the training part
    source: str  # where they come from
    first: int  # cell of the sentence
    label: int  # cell of the label
    second: int | None = None  # cell of the second sentence, where there are pairs
    header: str = (
        ""  # what a first line that names the columns calls that of the label; a file may be without that line
    )
    labels: tuple[str, ...] = ()  # text of each class, in their order, as the file has it; none for grades from 0 to 5
    classes: tuple[str, ...] = ()  # names of the classes, none for grades
    gaps: bool = False  # whether a few of the published lines lack a cell; these are left out

    @property
    def regression(self) -> bool:
        """Whether labels are grades and no classes."""
        return not self.classes


_ZIP = "https://dl.fbaipublicfiles.com/glue/data/{}.zip (it is not fetched)"
_ENTAILMENT = ("entailment", "not_entailment")
_THREE = ("entailment", "neutral", "contradiction")
_GAPS = 0.01  # of the lines at most

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
    # of the two development parts of MNLI that whose genres are those of the training part
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
}  # fmt: skip
"""The tasks, by the names of their commands."""
CLASSES = GLUE["sst2"].classes


def load_glue(name: GlueName, *, data_root: Path | str | None = None) -> dict[str, LabeledPairs]:
    """Load the parts "train", "val" and "test" of a task from the folder glue/ .

    Labels of GLUE's own test parts are not public. So the test part of RTE, CoLA, MNLI, QNLI and QQP is their
    development part (of MNLI the matched one), that of MRPC and STS-B the one of their publishers, and that of SST-2
    the treebank's (the same sentences as GLUE's). Validation is the development part of SST-2 and STS-B; of the others
    a tenth of the training part, always the same one, is held out for it. Nothing is chosen on what is reported.

    A training part may be in one file, train.tsv, or divided: train_part1.tsv, train_part2.tsv and so on.

    Source:
        Wang et al., GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language Understanding, 2019.
    """
    task, folder = GLUE[name], data_folder(data_root) / "glue"
    found = {part: read_part(task, folder / task.title / file) for part, file in task.files.items()}
    if "val" not in found:
        whole = found["train"]
        order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(0))
        size = max(1, int(HELD_OUT * len(order)))
        found |= {"val": whole.select(order[:size]), "train": whole.select(order[size:].sort().values)}
    return {part: found[part] for part in SPLITS}


def load_sst2(*, train: int = 10_000, data_root: Path | str | None = None) -> dict[str, LabeledPairs]:
    """Load film reviews, SST-2, from train.tsv and dev.tsv of GLUE, sentences in small letters.

    The training part holds sentences and phrases of them; there are `train` at most, the same ones in every run. GLUE
    hides the labels of its test part, so its development part (872 sentences) is divided: its first, third, ...
    sentences are to validate on, the others to test on. Scores are no GLUE scores.

    Source:
        Socher et al., Recursive Deep Models for Semantic Compositionality Over a Sentiment Treebank, 2013.
    """
    folder = data_folder(data_root) / "glue" / "SST-2"
    whole, dev = (read_part(GLUE["sst2"], folder / f"{name}.tsv") for name in ("train", "dev"))
    order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(0))[:train]
    places = torch.arange(len(dev))
    parts = whole.select(order), dev.select(places[::2]), dev.select(places[1::2])
    texts = (LabeledPairs([sentence.lower() for sentence in part.first], None, part.labels) for part in parts)
    return dict(zip(SPLITS, texts, strict=True))


def read_part(task: GlueFiles, path: Path) -> LabeledPairs:
    """One part of a task, from one file or from several."""
    paths = [path] if path.is_file() else sorted(path.parent.glob(f"{path.stem}_part[0-9]{path.suffix}"))
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
