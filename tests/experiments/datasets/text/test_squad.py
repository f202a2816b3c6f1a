import gzip
import json
import os
from pathlib import Path

import pytest

from experiments.datasets.text.squad import Answer, load_squad, read_squad
from tests.experiments.finetune.tiny_squad import write_squad

needs_data = pytest.mark.skipif(not os.environ.get("PYRO_ATTENTION_DATA"), reason="PYRO_ATTENTION_DATA is not set")


@pytest.fixture
def root(tmp_path):
    return write_squad(tmp_path)


def entry(**changes):
    return {"id": "q", "question": "who?", "answers": [{"text": "Ada", "answer_start": 3}]} | changes


def tree(*entries, context="So Ada wrote it."):
    return {"data": [{"title": "Ada", "paragraphs": [{"context": context, "qas": list(entries)}]}]}


def written(folder, content, name="own.json"):
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def titles(part):
    return {question.title for question in part}


def test_reading(tmp_path):
    impossible = entry(id="r", answers=[], is_impossible=True, plausible_answers=[{"text": "?"}])
    path = written(tmp_path, tree(entry(), impossible))
    first, second = read_squad(path)
    assert (first.id, first.title, first.text, first.context) == ("q", "Ada", "who?", "So Ada wrote it.")
    assert first.answers == (Answer("Ada", 3),)
    assert second.answers == ()
    packed = tmp_path / "own.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read_squad(packed) == [first, second]
    # questions to answer say nothing of answers, or anything
    asked = written(tmp_path, tree({"id": "q", "question": "who?"}, entry(id="r", answers=[])))
    assert [question.answers for question in read_squad(asked, answers=False)] == [(), ()]


def test_parts_of_version_1_have_whole_articles_and_answers(root):
    parts = load_squad("v1", data_root=root)
    assert {name: (len(part), len(titles(part))) for name, part in parts.items()} == {
        "train": (24, 2), "val": (12, 1), "test": (12, 4),
    }  # fmt: skip
    assert all(question.answers for part in parts.values() for question in part)
    assert not titles(parts["train"]) & titles(parts["val"])
    assert parts == load_squad("v1", data_root=root)


def test_without_a_training_file_of_version_2_the_development_articles_are_divided(root):
    parts = load_squad("v2", data_root=root)
    assert {name: (len(part), len(titles(part))) for name, part in parts.items()} == {
        "train": (36 + 6, 3 + 1), "val": (6, 1), "test": (12, 2),
    }  # fmt: skip
    assert sum(not question.answers for question in parts["train"]) == 3
    assert not titles(parts["test"]) & (titles(parts["train"]) | titles(parts["val"]))


def test_a_training_file_of_version_2_leaves_the_development_articles_alone(root, tmp_path):
    own = json.loads((root / "squad" / "train-v1.1-tiny.json").read_text())
    own["data"][0]["paragraphs"][0]["qas"][0] |= {"answers": [], "is_impossible": True}
    parts = load_squad("v2", data_root=root, train_file=written(tmp_path, own))
    assert {name: len(part) for name, part in parts.items()} == {"train": 24, "val": 12, "test": 24}


def test_the_official_name_comes_first(root):
    own = written(root / "squad", tree(entry(), entry(id="r", answers=[], is_impossible=True)), "dev-v1.1.json")
    assert [question.id for question in load_squad("v1", data_root=root)["test"]] == ["q"]
    own.unlink()
    assert len(load_squad("v1", data_root=root)["test"]) == 12


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"data": []}, "it has no questions"),
        ({"data": [{"title": "Ada"}]}, "KeyError: 'paragraphs'"),
        (tree(entry(question=None)), "paragraph 1 of article 1 .*question are .*None"),
        (
            tree(entry(answers=[{"text": "Ada", "answer_start": 4}])),
            "question q .*at character 4, but 'da '",
        ),
        (tree(entry(answers=[{"text": "e", "answer_start": -13}])), "question q .*'e' is not at character -13"),
        (tree(entry(answers=[])), "question q .*0 answers, and is_impossible is None"),
        (tree(entry(is_impossible=True)), "1 answers, and is_impossible is True"),
        (tree(entry(), entry()), "two questions have the id 'q'"),
    ],
)
def test_bad_files(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        read_squad(written(tmp_path, content))


def test_missing_ambiguous_and_mixed_files(root, tmp_path):
    train, test = (root / "squad" / name for name in ("train-v1.1-tiny.json", "dev-v2.0.json.gz"))
    with pytest.raises(ValueError, match=r"question 'train0-0' is in .* too, which is trained on"):
        load_squad("v1", data_root=root, test_file=train)
    with pytest.raises(ValueError, match="have no question without an answer; choose task v1"):
        load_squad("v2", data_root=root, test_file=written(tmp_path, tree(entry())))
    with pytest.raises(ValueError, match="has 1 articles that can be used, expected 2 at least"):
        load_squad("v1", data_root=root, train_file=written(tmp_path, tree(entry())))
    with pytest.raises(ValueError, match=r"nowhere\.json is missing"):
        load_squad("v1", data_root=root, train_file=Path("nowhere.json"))
    more = written(root / "squad", "", "train-v1.1-more.json")
    with pytest.raises(ValueError, match=r"has 2 files named train-v1\.1-\.\.\., expected one; .* --train-file"):
        load_squad("v1", data_root=root)
    more.unlink()
    test.unlink()
    with pytest.raises(FileNotFoundError, match=r"dev-v2\.0\.json is missing.*data_root"):
        load_squad("v2", data_root=root)


@needs_data
@pytest.mark.parametrize("name", ["v1", "v2"])
def test_real_files(name):
    try:
        parts = load_squad(name)
    except FileNotFoundError:
        pytest.skip("squad is not there")
    assert all(len(part) > 100 for part in parts.values())
