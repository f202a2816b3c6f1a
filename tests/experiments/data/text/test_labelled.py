"""GLUE, SQuAD and headlines: what is read, parts that share nothing, and what is wrong with files."""

import gzip
import json
import re
from functools import partial

import pytest
import torch

from experiments.data.text.glue import GLUE, load_glue, load_sst2, read_part
from experiments.data.text.headlines import load_headlines, plain_words, read_headlines
from experiments.data.text.squad import Answer, load_squad, load_unanswerable, read_squad
from tests.experiments.finetune.tiny_glue import write_glue
from tests.experiments.finetune.tiny_squad import write_squad
from tests.experiments.headlines.tiny_headlines import FILES, SIZES, entries, write_entries, write_texts
from tests.experiments.pretrain.tiny_reviews import write_reviews

# GLUE


@pytest.fixture(scope="module")
def glue(tmp_path_factory):
    return write_glue(tmp_path_factory.mktemp("glue"))


@pytest.mark.parametrize("name", GLUE)
def test_parts_of_glue(glue, name):
    task, texts = GLUE[name], load_glue(name, data_root=glue)
    held_out = "val" not in task.files
    assert [len(text) for text in texts.values()] == ([36, 4, 16] if held_out else [40, 16, 16])
    for text in texts.values():
        assert (text.second is None) == (task.second is None)
        # the label is told by the first word
        places = torch.tensor([int(sentence.split()[0].removeprefix("word")) % 2 for sentence in text.first])
        assert task.regression or text.labels.tolist() == places.tolist()
        assert text.labels.dtype == (torch.float32 if task.regression else torch.int64)


def test_the_examples_held_out_are_always_the_same_and_no_others_are_lost(glue):
    first, second = (load_glue("cola", data_root=glue) for _ in range(2))
    assert first["val"].first == second["val"].first
    lines = (glue / "glue" / "CoLA" / "train.tsv").read_text().splitlines()
    assert sorted(first["train"].first + first["val"].first) == sorted(line.split("\t")[3] for line in lines)


def test_all_files_of_a_part_are_read_in_the_order_of_their_numbers(tmp_path):
    for number in range(1, 12):
        (tmp_path / f"train_part{number}.tsv").write_text(f"{number}\tfirst {number}\tsecond\tentailment\n")
    text = read_part(GLUE["rte"], tmp_path / "train.tsv")
    assert text.first == [f"first {number}" for number in range(1, 12)]


@pytest.mark.parametrize(
    ("name", "file", "line", "expected"),
    [
        ("rte", "RTE/dev.tsv", b"1\tone\ttwo\tneutral", "the label: entailment or not_entailment"),
        ("stsb", "STS-B/sts-train.csv", b"a\tb\tc\td\t5.5\tone\ttwo", "a grade from 0 to 5"),
    ],
)
def test_bad_lines_of_glue(tmp_path, name, file, line, expected):
    path = write_glue(tmp_path) / "glue" / file
    lines = path.read_bytes().split(b"\n")
    lines[2] = line
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(ValueError, match=f"{re.escape(str(path))}: line 3 .*{expected}.*--data-root"):
        load_glue(name, data_root=tmp_path)


@pytest.mark.parametrize(
    ("name", "file"),
    [("sst2", "SST-2/train.tsv"), ("rte", "RTE/train_part1.tsv"), ("mrpc", "MRPC/msr_paraphrase_test.txt")],
)
def test_a_file_without_its_header_loses_no_line(tmp_path, name, file):
    expected = load_glue(name, data_root=write_glue(tmp_path))
    path = tmp_path / "glue" / file
    path.write_bytes(path.read_bytes().partition(b"\n")[2])
    parts = load_glue(name, data_root=tmp_path)
    for split, texts in parts.items():
        assert (texts.first, texts.second) == (expected[split].first, expected[split].second)
        assert torch.equal(texts.labels, expected[split].labels)


@pytest.mark.parametrize("line", ["a sentence\tlabels", "a sentence", "sentence\t"])
def test_a_first_line_that_is_neither_header_nor_example_is_named(tmp_path, line):
    path = write_glue(tmp_path) / "glue" / "SST-2" / "dev.tsv"
    path.write_text(f"{line}\nanother sentence\t1\n")
    with pytest.raises(ValueError, match=f"{re.escape(str(path))}: line 1 .*column 2 the label: 0 or 1"):
        load_glue("sst2", data_root=tmp_path)


def test_lines_of_qqp_that_lack_a_question_are_left_out_but_not_many(tmp_path):
    write_glue(tmp_path, train=400)
    path = tmp_path / "glue" / "QQP" / "train.tsv"
    lines = path.read_text().splitlines()
    lines[3], lines[5] = lines[3].rsplit("\t", 2)[0], "5\t10\t11\t\ta question\t1"
    path.write_text("\n".join(lines))
    parts = load_glue("qqp", data_root=tmp_path)
    assert len(parts["train"]) + len(parts["val"]) == 398
    path.write_text("\n".join([*lines, *lines[3:4] * 4]))
    with pytest.raises(ValueError, match=r"6 of 404 lines lack a cell, expected at most 1%"):
        load_glue("qqp", data_root=tmp_path)


def test_mnli_has_three_classes_and_is_labelled_in_its_last_column(tmp_path):
    path = write_glue(tmp_path) / "glue" / "MNLI" / "dev_matched.tsv"
    blank = ["-"] * 8
    rows = [[*blank, "a man", "a woman", *["-"] * 5, label] for label in ("neutral", "contradiction", "entailment")]
    path.write_text("\n".join("\t".join(row) for row in rows))
    test = load_glue("mnli", data_root=tmp_path)["test"]
    assert (test.first, test.second, test.labels.tolist()) == (["a man"] * 3, ["a woman"] * 3, [1, 2, 0])
    path.write_text("\t".join([*blank, "a man", "a woman", "-"]))
    with pytest.raises(ValueError, match=r"line 1 .*the label: entailment or neutral or contradiction"):
        load_glue("mnli", data_root=tmp_path)


@pytest.mark.parametrize("content", ["sentence\tlabel\n", ""])
def test_a_file_without_examples_is_named(tmp_path, content):
    path = write_glue(tmp_path) / "glue" / "SST-2" / "dev.tsv"
    path.write_text(content)
    for load in (partial(load_glue, "sst2"), load_sst2):
        with pytest.raises(ValueError, match=f"{re.escape(str(path))} has no example, expected lines of columns"):
            load(data_root=tmp_path)


def test_reviews(tmp_path):
    root = write_reviews(tmp_path)
    texts = load_sst2(data_root=root)
    assert {split: len(text) for split, text in texts.items()} == {"train": 24, "val": 6, "test": 6}
    for text in texts.values():
        assert text.labels.tolist() == [int(sentence.endswith("?")) for sentence in text.first]
        assert all(sentence == sentence.lower() for sentence in text.first)
    assert not {*texts["val"].first} & {*texts["test"].first}
    assert load_sst2(train=5, data_root=root)["train"].first == texts["train"].first[:5]


# SQuAD


def entry(**changes):
    return {"id": "q", "question": "who?", "answers": [{"text": "Ada", "answer_start": 3}]} | changes


def written(folder, *found, name="own.json"):
    paragraph = {"context": "So Ada wrote it.", "qas": list(found)}
    content = json.dumps({"data": [{"title": "Ada", "paragraphs": [paragraph]}]}).encode()
    (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return folder / name


def test_questions_of_squad(tmp_path):
    impossible = entry(id="r", answers=[], is_impossible=True, plausible_answers=[{"text": "?"}])
    first, second = read_squad(written(tmp_path, entry(), impossible, name="own.json.gz"))
    assert (first.id, first.title, first.text, first.context) == ("q", "Ada", "who?", "So Ada wrote it.")
    assert (first.answers, second.answers) == ((Answer("Ada", 3),), ())
    # questions to answer say nothing of answers, or anything
    asked = written(tmp_path, {"id": "q", "question": "who?"}, entry(id="r", answers=[]))
    assert [question.answers for question in read_squad(asked, answers=False)] == [(), ()]


def test_parts_of_squad_have_whole_articles(tmp_path):
    root = write_squad(tmp_path)
    parts = load_squad(data_root=root)
    titles = [{question.title for question in part} for part in parts.values()]
    assert list(map(len, parts.values())) == [24, 12, 12]  # of the test part, those with an answer
    assert list(map(len, titles)) == [2, 1, 4]
    assert len(set.union(*titles)) == 7
    assert all(question.answers for part in parts.values() for question in part)
    assert parts == load_squad(data_root=root)
    # the official name comes first
    written(root / "squad", entry(), name="dev-v1.1.json")
    assert [question.id for question in load_squad(data_root=root)["test"]] == ["q"]
    path = root / "squad" / "train-v1.1-tiny.json"
    with pytest.raises(ValueError, match=r"question 'train0-0' is in .* too"):
        load_squad(data_root=root, train_file=path, test_file=path)


def test_questions_without_an_answer(tmp_path):
    root = write_squad(tmp_path)
    questions = load_unanswerable(data_root=root)
    everything = read_squad(root / "squad" / "dev-v2.0.json.gz")
    assert {question.id for question in questions} == {question.id for question in everything if not question.answers}
    assert not {question.id for question in questions} & {
        question.id for question in load_squad(data_root=root)["test"]
    }
    with pytest.raises(
        ValueError, match=r"has no question without an answer \(is_impossible\); expected .* of SQuAD 2.0"
    ):
        load_unanswerable(test_file=written(tmp_path, entry(), name="all.json"))


def test_squad_2_has_a_training_file_or_divides_the_other_one(tmp_path):
    root = write_squad(tmp_path)
    folder = root / "squad"
    parts = load_squad("2.0", data_root=root)
    assert [len(part) for part in parts.values()] == [42, 6, 12]
    assert [sum(not question.answers for question in part) for part in parts.values()] == [3, 3, 6]
    titles = [{question.title for question in part} for part in parts.values()]
    assert len(set.union(*titles)) == sum(map(len, titles)) == 7
    # without any question that has no answer
    with pytest.raises(ValueError, match=r"have no question without an answer \(is_impossible\).*pass --version 1\.1"):
        load_squad("2.0", data_root=root, test_file=written(tmp_path, entry(), name="all.json"))
    # a training file of its own
    dev = folder / "dev-v2.0.json.gz"
    written(folder, entry(id="other", answers=[], is_impossible=True), name="dev-v2.0-x.json")
    (folder / "train-v2.0.json.gz").write_bytes(dev.read_bytes())
    dev.unlink()
    parts = load_squad("2.0", data_root=root)
    assert [len(part) for part in parts.values()] == [18, 6, 1]


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([entry(is_impossible=True)], "question q .*1 answers, and is_impossible is True"),
        ([entry(answers=[{"text": "Ada", "answer_start": 4}])], "question q .*at character 4, but 'da '"),
        ([entry(answers=[])], "question q .*0 answers, and is_impossible is None.* or none of them and is_impossible"),
        ([entry(answers=[], is_impossible="false")], "question q .*0 answers, and is_impossible is 'false'"),
        ([entry(is_impossible="false")], "question q .*1 answers, and is_impossible is 'false'"),
        (
            [entry(), entry(id="r"), entry(question="whom?")],
            "id 'q' belongs to several questions, 'who\\?' and 'whom\\?'",
        ),
        ([], "it has no questions"),
        ([entry(question="who\ud83d?")], r"question q .*'who.ud83d.' has .*, half of a character"),
    ],
)
def test_bad_files_of_squad(tmp_path, found, message):
    with pytest.raises(ValueError, match=message):
        read_squad(written(tmp_path, *found))


# headlines

GOOD = {"id": 1, "text": "A b .", "summaries": ["a"]}


def test_headlines(tmp_path):
    found = read_headlines(write_entries(tmp_path / "own.jsonl", [GOOD, GOOD | {"summaries": ["X 12", "<unk> Y"]}]))
    assert (found.texts, found.headlines) == (["a b ."] * 2, [("a",), ("x ##", "unk y")])
    path = tmp_path / "own.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))  # as Windows writes it
    assert vars(read_headlines(path)) == vars(found)


def test_held_out_texts_are_not_trained_on(tmp_path):
    root, every = write_texts(tmp_path), entries()
    found = load_headlines(data_root=root)
    assert {split: len(data) for split, data in found.items()} == SIZES
    assert found["train"].texts[0] == plain_words(every[0]["text"])
    more = [{**every[40], "summaries": ["another"]}, every[25], every[31]]  # new, to validate on, to test on
    own = write_entries(tmp_path / "own.jsonl", more)
    assert load_headlines(data_root=root, files={"train": own, "val": None})["train"].headlines == [("another",)]
    write_entries(root / FILES["train"], more[1:])
    with pytest.raises(ValueError, match=r"gigaword_train_sample.* all its texts are in other files too"):
        load_headlines(data_root=root)


@pytest.mark.parametrize(
    "line",
    [
        {"summaries": ["a"]},
        GOOD | {"text": " \n"},
        GOOD | {"summaries": []},
        GOOD | {"summaries": "gunman"},
        GOOD | {"text": "A \ud83d ."},
    ],
)
def test_bad_lines_of_headlines(tmp_path, line):
    path = write_entries(tmp_path / "bad.jsonl", [GOOD, line, GOOD])
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: line 2 cannot be read"):
        read_headlines(path)
