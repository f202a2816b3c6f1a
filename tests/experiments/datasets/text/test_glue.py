import os

import pytest
import torch

from experiments.datasets.text.glue import GLUE, load_glue
from tests.experiments.finetune.tiny_glue import write_glue

needs_data = pytest.mark.skipif(not os.environ.get("PYRO_ATTENTION_DATA"), reason="PYRO_ATTENTION_DATA is not set")
SIZES = {name: {"train": 36, "val": 4, "test": 16} for name in ("rte", "mrpc", "cola")} | {
    name: {"train": 40, "val": 16, "test": 16} for name in ("sst2", "stsb")
}


@pytest.fixture
def root(tmp_path):
    return write_glue(tmp_path)


@pytest.mark.parametrize("name", GLUE)
def test_parts(root, name):
    task, texts = GLUE[name], load_glue(name, data_root=root)
    assert {part: len(text) for part, text in texts.items()} == SIZES[name]
    for text in texts.values():
        assert (text.second is None) == (task.layout.second is None)
        assert all(sentence == sentence.strip() for sentence in text.first)
        # the label is told by the first word
        places = torch.tensor([int(sentence.split()[0].removeprefix("word")) % 2 for sentence in text.first])
        if task.regression:
            assert text.labels.dtype == torch.float32
            assert text.labels.min() >= 0
        else:
            assert text.labels.tolist() == places.tolist()


def test_the_examples_held_out_are_always_the_same_and_no_others_are_lost(root):
    first, second = (load_glue("cola", data_root=root) for _ in range(2))
    assert first["val"].first == second["val"].first
    lines = (root / "glue" / "CoLA" / "train.tsv").read_text().splitlines()
    assert sorted(first["train"].first + first["val"].first) == sorted(line.split("\t")[3] for line in lines)


def test_a_training_part_of_one_file_or_of_several_is_the_same(root):
    parts = load_glue("rte", data_root=root)
    folder = root / "glue" / "RTE"
    files = [folder / "train_part1.tsv", folder / "train_part2.tsv"]
    (folder / "train.tsv").write_bytes(b"".join(file.read_bytes() for file in files))
    for file in files:
        file.unlink()
    whole = load_glue("rte", data_root=root)
    assert whole["train"].first == parts["train"].first
    assert whole["val"].second == parts["val"].second


BAD = [
    ("rte", "RTE/dev.tsv", b"1\tone\ttwo\tneutral", "the label is entailment or not_entailment"),
    ("mrpc", "MRPC/msr_paraphrase_train.txt", b"1\t2\t3\tone\t", "another sentence in column 5"),
    ("sst2", "SST-2/train.tsv", b"good\t1\t1", "expected 2 columns"),
    ("sst2", "SST-2/test-labeled.tsv", b" \t1", "a sentence in column 1"),
    ("stsb", "STS-B/sts-train.csv", b"a\tb\tc\td\t5.5\tone\ttwo", "a grade from 0 to 5"),
    ("stsb", "STS-B/sts-test.csv", b"a\tb\tc\td\t5\tone\ttwo\te\tf\tg", "expected 7 to 9 columns"),
]


@pytest.mark.parametrize(("name", "file", "line", "expected"), BAD)
def test_bad_lines(root, name, file, line, expected):
    path = root / "glue" / file
    lines = path.read_bytes().split(b"\n")
    lines[2] = line
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(ValueError, match="line 3") as error:
        load_glue(name, data_root=root)
    for part in (str(path), expected, "--data-root"):
        assert part in str(error.value)


@needs_data
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("rte", (2241, 249, 277)),
        ("mrpc", (3669, 407, 1725)),
        ("cola", (7696, 855, 1043)),
        ("sst2", (67349, 872, 1821)),
        ("stsb", (5749, 1500, 1379)),
    ],
)
def test_the_published_files(name, sizes):
    assert tuple(len(text) for text in load_glue(name).values()) == sizes
