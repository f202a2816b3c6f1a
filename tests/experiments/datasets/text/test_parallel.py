import functools
import os
import re
from hashlib import sha256
from pathlib import Path

import pytest
from experiments.datasets.text.readers import multi30k
from experiments.datasets.text.readers.tatoeba import PART

from experiments.datasets.text.parallel import load_parallel, read_parallel
from tests.experiments.datasets.text.tiny_parallel import pairs

REAL = os.environ.get("PYRO_ATTENTION_DATA")
needs_data = pytest.mark.skipif(not REAL, reason="PYRO_ATTENTION_DATA is not set")


@pytest.fixture
def read(write):
    def read(source, target, **options):
        return read_parallel(write("a.de", source), write("a.en", target), languages=("de", "en"), **options)

    return read


# two plain files


def test_reading(read):
    text = read("Grüße , Welt\nzwei\n", "hello world\ntwo\n")
    assert pairs(text) == [("Grüße , Welt", "hello world"), ("zwei", "two")]
    assert (text.name, text.languages, len(text), text.alignments, text.skipped) == ("a", ("de", "en"), 2, None, {})


@pytest.mark.parametrize(
    ("source", "target", "options", "expected"),
    [
        ("ÄRGER Straße\n", "Not OK\n", {"lowercase": True}, [("ärger straße", "not ok")]),
        ("eins\r\nzwei drei\r\n", "one\ntwo three\n", {}, [("eins", "one"), ("zwei drei", "two three")]),
        ("\ufeffeins\nzwei drei", "one\ntwo three\n", {}, [("eins", "one"), ("zwei drei", "two three")]),
        ("  eins\t\n zwei\u00a0 drei \n", "one\ntwo three\n", {}, [("eins", "one"), ("zwei drei", "two three")]),
        ("a\u2028b\x85c\x0bd\x0ce\n", "a b c d e\n", {}, [("a b c d e", "a b c d e")]),
    ],
    ids=["lowercase", "carriage returns", "byte order mark and no last line feed", "white space", "no line feeds"],
)
def test_harmless_differences(read, source, target, options, expected):
    assert pairs(read(source, target, **options)) == expected


BAD_LINES = {
    "undecodable": (b"eins\nzw\xe4i\n", "one\ntwo\n", "a.de", 2, "is not UTF-8, its byte 3 is 0xe4; expected UTF-8"),
    "empty": ("eins\nzwei\n\ndrei\n", "one\ntwo\n2.5\nthree\n", "a.de", 3, "is empty; expected a sentence"),
    "long": ("eins\na b c d\n", "one\ntwo\n", "a.de", 2, "has 4 words; expected 3 at most (max_words)"),
    "long target": ("eins\nzwei\n", "a b c d e\ntwo\n", "a.en", 1, "has 5 words"),
}


@pytest.mark.parametrize(("source", "target", "file", "line", "message"), BAD_LINES.values(), ids=BAD_LINES.keys())
def test_bad_line(read, source, target, file, line, message):
    with pytest.raises(ValueError, match=re.escape(f"{file}: line {line} {message}")) as info:
        read(source, target, max_words=3)
    assert "Mend this line" in str(info.value)
    assert "skip=True" in str(info.value)


def test_reasons_are_counted(read):
    text = read(b"a\n\n\xff\nb c d\n\nx\n", "1\n2\n3\n4\n\n6\n", max_words=2, skip=True)
    assert pairs(text) == [("a", "1"), ("x", "6")]
    assert text.skipped == {"empty": 2, "undecodable": 1, "long": 1}


@pytest.mark.parametrize("skip", [False, True])
def test_files_of_different_lengths(read, skip):
    with pytest.raises(ValueError, match=r"a\.de: 1 lines, but 3 in .*a\.en, whose line 2 has no partner") as info:
        read("eins\n", "one\ntwo\nthree\n", skip=skip)
    assert "Find the line" in str(info.value)


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_another_encoding_is_no_missing_line(read, encoding):
    """In UTF-16 the byte of a line feed is part of other signs as well, such as Ċ, and of no line's end alone."""
    with pytest.raises(ValueError, match=r"a\.de cannot be read \(UnicodeDecodeError.*expected UTF-8; convert it"):
        read("zwölf\nĊ\n".replace("Ċ", "Ċ" if encoding == "utf-16" else "a").encode(encoding), "twelve\n")


@pytest.mark.parametrize(("content", "skipped"), [("", 0), ("\n\n", 2)])
def test_nothing_left(read, content, skipped):
    with pytest.raises(ValueError, match=rf"a\.de: no sentence pairs, {skipped} skipped; expected at least one"):
        read(content, content, skip=True)


# data sets


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (
            ("wmt", "train"),
            {},
            "unknown parallel text 'wmt'. Registered: europarl_de_en, hansards_fr_en, iwslt14, .*toy",
        ),
        (("multi30k", "valid"), {}, "no split is named 'valid'; expected one of train, val, test"),
        (("multi30k", "val"), {"source": "cs"}, "no language is named 'cs'; expected .* of multi30k: de, en, fr"),
        (("iwslt14", "val"), {"target": "fr"}, "no language is named 'fr'; expected .* of iwslt14: de, en"),
        (("tatoeba", "val"), {"target": "de"}, "source and target are both 'de'; expected two different ones"),
    ],
)
def test_unknown_names(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        load_parallel(*arguments, **options)


@pytest.mark.parametrize(("split", "stem"), [("train", "train"), ("val", "valid"), ("test", "test")])
def test_iwslt14(write, tmp_path, split, stem):
    for name in ("train", "valid", "test"):
        write(f"iwslt14-de-en/{name}.de", f"{name} a@@ b@@ c d\n")
        write(f"iwslt14-de-en/{name}.en", f"{name} x\n")
    text = load_parallel("iwslt14", split, data_root=tmp_path / "data")
    assert (text.source, text.name) == ([f"{stem} abc d"], "iwslt14")


def test_iwslt14_samples(write, tmp_path):
    samples = {
        "v1": [("a@@ a", "A"), ("held", "B"), ("c", "held out"), ("d", "D"), ("d", "D")],
        "v2": [("aa", "A"), ("e", "E"), ("tested", "F"), ("d", "D again")],
    }
    for name, content in samples.items():
        for side, language in enumerate(("de", "en")):
            lines = "".join(f"{pair[side]}\n" for pair in content)
            write(f"iwslt14-de-en/lowres_train_{name}.bpe.{language}", lines)
    for split, pair in (("valid", ("held", "held out")), ("test", ("tested", "tests"))):
        for sentence, language in zip(pair, ("de", "en"), strict=True):
            write(f"iwslt14-de-en/{split}.{language}", f"{sentence}\n")
    text = load_parallel("iwslt14", "train", data_root=tmp_path / "data")
    assert pairs(text) == [("aa", "A"), ("d", "D"), ("e", "E"), ("d", "D again")]
    assert text.name == "iwslt14-lowres"
    assert text.skipped == {"held out": 3, "repeated": 2}


def tatoeba_rows(number=200):
    """Every third English sentence has two translations, every fourth German one two originals but for punctuation."""
    rows = []
    for i in range(number):
        rows.append((f"English {i} .", f"Deutsch {i}"))
        if i % 3 == 0:
            rows.append((f"english {i}!", f"Deutsch {i} anders"))
        if i % 4 == 0:
            rows.append((f"Some other English {i}", f"deutsch {i} ?"))
    return rows


def words_of(sentence):
    return " ".join(re.findall(r"\w+", sentence.lower()))


@pytest.fixture
def tatoeba(write, tmp_path):
    def tatoeba(rows, split, **options):
        write("tatoeba-deu-eng/deu.txt", "".join("\t".join(row) + "\n" for row in rows))
        return load_parallel("tatoeba", split, data_root=tmp_path / "data", **options)

    return tatoeba


def test_tatoeba(tatoeba):
    rows = tatoeba_rows()
    texts = {split: tatoeba(rows, split) for split in ("train", "val", "test")}
    found = [(english, german) for text in texts.values() for german, english in pairs(text)]
    assert sorted(found) == sorted(rows)
    size = len(rows) // 10
    assert all(size <= len(texts[split]) < size + 3 for split in ("val", "test"))
    for side in ("source", "target"):
        sets = [{words_of(sentence) for sentence in getattr(text, side)} for text in texts.values()]
        assert sum(map(len, sets)) == len(set.union(*sets))


def test_tatoeba_split_depends_on_the_lines_only(tatoeba):
    rows = tatoeba_rows()
    expected = tatoeba(rows, "val")
    # other columns, as in newer files, other order, other direction and options
    turned = tatoeba([(*row, "CC-BY") for row in rows], "val", source="en", target="de")
    assert (turned.source, turned.target) == (expected.target, expected.source)
    assert set(pairs(tatoeba(rows[::-1], "val"))) == set(pairs(expected))
    short = tatoeba(rows, "val", max_words=3, skip=True)
    assert set(pairs(short)) <= set(pairs(expected))
    assert len(short) + short.skipped["long"] == len(expected)


@pytest.mark.parametrize(
    ("place", "row", "message"),
    [
        (2, lambda row: ("no tab",), r"deu\.txt: line 3 has no tab; expected .* Replace the file"),
        (5, lambda row: (row[0], " "), r"deu\.txt: line 6 is empty"),
    ],
    ids=["no tab", "empty"],
)
def test_tatoeba_bad_lines(tatoeba, place, row, message):
    rows = tatoeba_rows(20)
    rows[place] = row(rows[place])
    with pytest.raises(ValueError, match=message):
        list(map(functools.partial(tatoeba, rows), ("train", "val", "test")))


# real data


@needs_data
@pytest.mark.parametrize(("split", "size"), [("train", 29000), ("val", 1014), ("test", 1000)])
def test_real_multi30k(split, size, tmp_path, monkeypatch):
    for source, target in (("de", "en"), ("fr", "de")):
        assert len(load_parallel("multi30k", split, source=source, target=target, max_words=45)) == size
    folder = Path(REAL) / "multi30k" / "task1"
    for path in folder.iterdir():
        assert multi30k.SHA256[path.name] == sha256(path.read_bytes()).hexdigest()


@needs_data
def test_real_iwslt14():
    train, val = (load_parallel("iwslt14", split) for split in ("train", "val"))
    assert (len(train), len(val)) == (8280, 7282)
    assert train.skipped == {"held out": 395, "repeated": 125}
    assert not set(train.source) & set(val.source)
    assert not set(train.target) & set(val.target)
    assert not any("@@" in sentence for sentence in train.source + train.target)
    with pytest.raises(ValueError, match=r"valid\.(de|en): line \d+ has \d+ words; expected 125"):
        load_parallel("iwslt14", "val", max_words=125)


@needs_data
@pytest.mark.slow
def test_real_tatoeba():
    texts = [load_parallel("tatoeba", split) for split in ("train", "val", "test")]
    assert sum(map(len, texts)) == 169197
    assert all(PART <= len(text) < PART + 100 for text in texts[1:])
    for side in ("source", "target"):
        sets = [set(getattr(text, side)) for text in texts]
        assert sum(map(len, sets)) == len(set.union(*sets))
    # the file is sorted by length
    lengths = [sum(len(sentence) for sentence in text.target[:500]) / 500 for text in texts]
    assert max(lengths) < 1.2 * min(lengths)
