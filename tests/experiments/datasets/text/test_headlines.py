"""Files of texts with headlines: what is read of them, what is left out, and what is wrong with them."""

import gzip
import os
import re

import pytest

from experiments.datasets.text import headlines
from experiments.datasets.text.headlines import lead, load_headlines, plain_words, read_headlines
from tests.experiments.headlines.tiny_headlines import FILES, SIZES, entries, write_entries, write_texts

needs_data = pytest.mark.skipif(not os.environ.get("PYRO_ATTENTION_DATA"), reason="PYRO_ATTENTION_DATA is not set")
GOOD = {"id": 1, "text": "A b .", "summaries": ["a"]}


@pytest.fixture
def root(tmp_path):
    return write_texts(tmp_path / "data")


@pytest.mark.parametrize("name", ["own.jsonl", "own.jsonl.gz"])
def test_reading(tmp_path, name):
    found = read_headlines(write_entries(tmp_path / name, [GOOD, GOOD | {"summaries": ["X 12", "<unk> Y"], "date": 3}]))
    assert (found.texts, found.headlines, found.name) == (["a b ."] * 2, [("a",), ("x ##", "unk y")], name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("Rates  fell\t3.5 %", "rates fell #.# %"), ("<UNK> said", "unk said"), ("UNK", "unk"), ("1987/88", "####/##")],
)
def test_plain_words(text, expected):
    assert plain_words(text) == expected
    assert plain_words(expected) == expected


@pytest.mark.parametrize(("count", "expected"), [(2, "a b"), (9, "a b c")])
def test_lead(count, expected):
    assert lead("a b c", count) == expected


def test_the_splits(root):
    found = load_headlines(data_root=root)
    assert {split: len(data) for split, data in found.items()} == SIZES
    assert list(found) == ["train", "val", "test"]
    assert found["train"].texts[0] == plain_words(entries()[0]["text"])
    assert any(len(some) == 2 for some in found["train"].headlines)


def test_held_out_texts_are_not_trained_on(root):
    every = entries()
    more = [{**every[40], "summaries": ["another"]}, every[25], every[31]]  # new, to validate on, to test on
    write_entries(root / FILES["train"], more)
    found = load_headlines(data_root=root)
    assert found["train"].headlines == [("another",)]
    write_entries(root / FILES["train"], more[1:])
    with pytest.raises(ValueError, match=r"gigaword_train_sample.* all its texts are in other files too"):
        load_headlines(data_root=root)


def test_files_of_one_s_own(root, tmp_path):
    own = write_entries(tmp_path / "own.jsonl", [GOOD])
    found = load_headlines(data_root=root, files={"test": own, "val": None})
    assert found["test"].texts == ["a b ."]
    assert len(found["val"]) == SIZES["val"]
    with pytest.raises(FileNotFoundError, match=r"nowhere\.jsonl is missing"):
        load_headlines(data_root=root, files={"train": tmp_path / "nowhere.jsonl"})


def test_a_plain_file_comes_before_a_packed_one(root):
    write_entries(root / FILES["train"].removesuffix(".gz"), [GOOD])
    assert load_headlines(data_root=root)["train"].texts == ["a b ."]


@pytest.mark.parametrize("split", FILES)
def test_a_missing_file(root, split):
    (root / FILES[split]).unlink()
    name = re.escape(FILES[split].removesuffix(".gz"))
    with pytest.raises(FileNotFoundError, match=rf"{name} is missing; expected .*not fetched.*data_root"):
        load_headlines(data_root=root)


@pytest.mark.parametrize("name", ["bad.jsonl", "bad.jsonl.gz"])
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "is no JSON"),
        ("{", "is no JSON"),
        ('{"text": ' + "1" * 5000 + "}", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[]", "is list; expected an object"),
        ({"summaries": ["a"]}, "'text' is None; expected a text with a word"),
        (GOOD | {"text": 3}, "'text' is 3; expected a text"),
        (GOOD | {"text": " \n"}, r"'text' is ' \\n'; expected a text with a word"),
        (GOOD | {"text": "a \ud800"}, "'text' holds half a character"),
        (GOOD | {"text": "x" * 100_001}, "'text' has 100001 letters; expected 100000 at most"),
        ({"text": "a"}, "'summaries' is None; expected a list of one headline or more"),
        (GOOD | {"summaries": "a"}, "'summaries' is 'a'; expected a list"),
        (GOOD | {"summaries": []}, "'summaries' is list; expected a list of one headline or more"),
        (GOOD | {"summaries": ["a", ""]}, "a summary is ''; expected a text with a word"),
        (GOOD | {"summaries": [None]}, "a summary is None; expected a text"),
    ],
)
def test_bad_lines(tmp_path, name, line, message):
    path = write_entries(tmp_path / name, [GOOD, line, GOOD])
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: line 2:? {message}") as info:
        read_headlines(path)
    assert len(str(info.value)) < 700


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("bad.jsonl", b"", "is empty; expected a file of JSON lines"),
        ("bad.jsonl", b'{"text": "\xff"}\n', "line 1 is no JSON"),
        ("bad.jsonl.gz", b"no archive", "is no gzip archive"),
        ("bad.jsonl.gz", gzip.compress(b"x" * 99)[:-9], "is no gzip archive"),
        ("bad.jsonl.gz", gzip.compress(b" " * 1001), "has more than 1000 bytes when it is unpacked"),
        ("bad.jsonl", b" " * 1001, "has 1001 bytes; expected a file of JSON lines.* of 1000 bytes at most"),
    ],
    ids=["empty", "other encoding", "no archive", "cut off", "large when unpacked", "large"],
)
def test_damaged_files(tmp_path, monkeypatch, name, content, message):
    monkeypatch.setattr(headlines, "MOST_JSON_BYTES", 1000)
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}:? {message}"):
        read_headlines(path)


@needs_data
def test_real_files():
    try:
        found = load_headlines()
    except FileNotFoundError:
        pytest.skip("the headlines are not there")
    assert all(len(data) > 100 for data in found.values())
