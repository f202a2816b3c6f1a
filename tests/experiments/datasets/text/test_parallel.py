import gzip
import os
import re
from hashlib import sha256
from pathlib import Path

import pytest

from experiments.datasets.text import multi30k_files
from experiments.datasets.text.parallel import PARALLEL, ParallelText, load_parallel, read_parallel
from experiments.datasets.text.readers.tatoeba import PART
from pyro_attention.analysis.alignments.weights import Alignment

REAL = os.environ.get("PYRO_ATTENTION_DATA")
needs_data = pytest.mark.skipif(not REAL, reason="PYRO_ATTENTION_DATA is not set")


@pytest.fixture(autouse=True)
def server(tmp_path, monkeypatch):
    """Folder that the files are fetched from instead of the network; empty at first."""
    folder = tmp_path / "server"
    folder.mkdir()
    monkeypatch.setattr(multi30k_files, "ADDRESS", folder.as_uri())
    return folder


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.fixture
def read(write):
    def read(source, target, **options):
        return read_parallel(write("a.de", source), write("a.en", target), languages=("de", "en"), **options)

    return read


def pairs(text):
    return list(zip(text.source, text.target, strict=True))


# two plain files


def test_reading(read):
    text = read("Grüße , Welt\nzwei\n", "hello world\ntwo\n")
    assert pairs(text) == [("Grüße , Welt", "hello world"), ("zwei", "two")]
    assert (text.name, text.languages, len(text), text.alignments, text.skipped) == ("a", ("de", "en"), 2, None, {})


def test_lowercase(read):
    assert pairs(read("ÄRGER Straße\n", "Not OK\n", lowercase=True)) == [("ärger straße", "not ok")]


@pytest.mark.parametrize(
    "source",
    ["eins\r\nzwei drei\r\n", "\ufeffeins\nzwei drei", "  eins\t\n zwei\u00a0 drei \n"],
    ids=["carriage returns", "byte order mark and no last line feed", "white space"],
)
def test_harmless_differences(read, source):
    assert pairs(read(source, "one\ntwo three\n")) == [("eins", "one"), ("zwei drei", "two three")]


def test_only_a_line_feed_ends_a_line(read):
    assert len(read("a\u2028b\x85c\x0bd\x0ce\n", "a b c d e\n")) == 1


BAD_LINES = {
    "undecodable": (b"eins\nzw\xe4i\n", "one\ntwo\n", "a.de", 2, "is not UTF-8, its byte 3 is 0xe4; expected UTF-8"),
    "cut off": ("eins\nzwei\n", b"one\ntw\xc3", "a.en", 2, "is not UTF-8"),
    "empty": ("eins\nzwei\n\ndrei\n", "one\ntwo\n2.5\nthree\n", "a.de", 3, "is empty; expected a sentence"),
    "empty target": ("eins\nzwei\n", "one\n \u00a0\t\n", "a.en", 2, "is empty"),
    "long": ("eins\na b c d\n", "one\ntwo\n", "a.de", 2, "has 4 words; expected 3 at most (max_words)"),
    "long target": ("eins\nzwei\n", "a b c d e\ntwo\n", "a.en", 1, "has 5 words"),
}


@pytest.mark.parametrize(("source", "target", "file", "line", "message"), BAD_LINES.values(), ids=BAD_LINES.keys())
def test_bad_line(read, source, target, file, line, message):
    with pytest.raises(ValueError, match=re.escape(f"{file}: line {line} {message}")) as info:
        read(source, target, max_words=3)
    assert "Mend this line" in str(info.value)
    assert "skip=True" in str(info.value)


@pytest.mark.parametrize(("source", "target", "file", "line", "message"), BAD_LINES.values(), ids=BAD_LINES.keys())
def test_bad_line_is_skipped(read, source, target, file, line, message):
    text = read(source, target, max_words=3, skip=True)
    assert sum(text.skipped.values()) == 1
    assert all(len(sentence.split()) in (1, 2, 3) for pair in pairs(text) for sentence in pair)
    assert ("eins", "one") in pairs(text) or line == 1


def test_reasons_are_counted(read):
    text = read(b"a\n\n\xff\nb c d\n\nx\n", "1\n2\n3\n4\n\n6\n", max_words=2, skip=True)
    assert pairs(text) == [("a", "1"), ("x", "6")]
    assert text.skipped == {"empty": 2, "undecodable": 1, "long": 1}


@pytest.mark.parametrize("skip", [False, True])
def test_files_of_different_lengths(read, skip):
    with pytest.raises(ValueError, match=r"a\.de: 1 lines, but 3 in .*a\.en, whose line 2 has no partner") as info:
        read("eins\n", "one\ntwo\nthree\n", skip=skip)
    assert "Find the line" in str(info.value)


@pytest.mark.parametrize(("content", "skipped"), [("", 0), ("\n\n", 2)])
def test_nothing_left(read, content, skipped):
    with pytest.raises(ValueError, match=rf"a\.de: no sentence pairs, {skipped} skipped; expected at least one"):
        read(content, content, skip=True)


def test_missing_file(write, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no\.en is missing; expected a plain text file"):
        read_parallel(write("a.de", "a\n"), tmp_path / "no.en", languages=("de", "en"))


def test_text_checks_itself():
    link = Alignment(frozenset({(0, 0)}), 1, 1)
    text = ParallelText(["a"], ["b"], "n", ("de", "en"), [link])
    assert text.alignments == [link]
    for source, target, alignments, message in [
        (["a"], [], None, "1 source and 0 target sentences"),
        (["a"], ["b"], [], "0 alignments of 1 pairs"),
        (["a"], ["b c"], [link], r"pair 1 is one of \[1, 1\] words; expected \[1, 2\]"),
    ]:
        with pytest.raises(ValueError, match=message):
            ParallelText(source, target, "n", ("de", "en"), alignments)


# data sets


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("wmt", "train"), {}, "unknown parallel text 'wmt'. Registered: iwslt14, multi30k, tatoeba, toy"),
        (("multi30k", "valid"), {}, "no split is named 'valid'; expected one of train, val, test"),
        (("multi30k", "val"), {"source": "cs"}, "no language is named 'cs'; expected .* of multi30k: de, en, fr"),
        (("iwslt14", "val"), {"target": "fr"}, "no language is named 'fr'; expected .* of iwslt14: de, en"),
        (("tatoeba", "val"), {"target": "de"}, "source and target are both 'de'; expected two different ones"),
    ],
)
def test_unknown_names(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        load_parallel(*arguments, **options)


@pytest.mark.parametrize(("split", "stem"), [("train", "train"), ("val", "val"), ("test", "test_2016_flickr")])
def test_multi30k(write, tmp_path, split, stem):
    write(f"multi30k/task1/{stem}.de", "Ein Hund\n")
    write(f"multi30k/task1/{stem}.fr", "Un chien\n")
    text = load_parallel("multi30k", split, source="fr", target="de", data_root=tmp_path / "data", lowercase=True)
    assert pairs(text) == [("un chien", "ein hund")]
    assert (text.name, text.languages) == ("multi30k", ("fr", "de"))


def published(monkeypatch, server, **files):
    for name, content in files.items():
        file = name.replace("_", ".")
        (server / f"{file}.gz").write_bytes(gzip.compress(content.encode()))
        monkeypatch.setitem(multi30k_files.SHA256, file, sha256(content.encode()).hexdigest())


def test_missing_files_are_fetched(monkeypatch, server, tmp_path):
    published(monkeypatch, server, val_de="eins\n", val_en="one\n")
    assert pairs(load_parallel("multi30k", "val", data_root=tmp_path / "data")) == [("eins", "one")]
    for path in server.iterdir():
        path.unlink()
    assert pairs(load_parallel("multi30k", "val", data_root=tmp_path / "data")) == [("eins", "one")]
    left = sorted(path.name for path in (tmp_path / "data" / "multi30k" / "task1").iterdir())
    assert left == ["val.de", "val.en"]


def test_rest_is_fetched_to_go_with_published_files_only(monkeypatch, server, tmp_path, write):
    published(monkeypatch, server, val_de="eins\n", val_en="one\n")
    write("multi30k/task1/val.de", "eins\n")
    assert len(load_parallel("multi30k", "val", data_root=tmp_path / "data")) == 1
    (tmp_path / "data" / "multi30k" / "task1" / "val.en").unlink()
    write("multi30k/task1/val.de", "zwei\n")
    with pytest.raises(FileNotFoundError, match=r"val\.en is missing; it is not fetched .* because .*val\.de differs"):
        load_parallel("multi30k", "val", data_root=tmp_path / "data")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(b"other"), "has the SHA-256 checksum .*; expected .*Nothing of it was kept.*intact copy"),
        (gzip.compress(b"eins\n" * 99)[:-9], "is no gzip archive: .*Nothing of it was kept"),
        (b"<html>", "is no gzip archive"),
        (gzip.compress(b"eins")[:12] + b"\xff" * 9, "is no gzip archive"),
    ],
    ids=["other", "cut off", "page", "damaged"],
)
def test_damaged_download(monkeypatch, server, tmp_path, content, message):
    published(monkeypatch, server, val_de="eins\n", val_en="one\n")
    (server / "val.de.gz").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_parallel("multi30k", "val", data_root=tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_no_network(server, tmp_path):
    with pytest.raises(FileNotFoundError) as info:
        load_parallel("multi30k", "test", data_root=tmp_path / "data")
    for part in (str(tmp_path / "data"), "test_2016_flickr.de", server.as_uri(), "could not be fetched", "--data-root"):
        assert part in str(info.value)
    assert not (tmp_path / "data").exists()


def test_checksums_are_known_for_every_file():
    stems, languages = ("train", "val", "test_2016_flickr"), PARALLEL["multi30k"].languages
    assert multi30k_files.SHA256.keys() == {f"{stem}.{language}" for stem in stems for language in languages}
    assert all(re.fullmatch("[0-9a-f]{64}", value) for value in multi30k_files.SHA256.values())


def test_iwslt14(write, tmp_path):
    for split in ("train", "valid", "test"):
        write(f"iwslt14-de-en/{split}.de", f"{split} a@@ b@@ c d\n")
        write(f"iwslt14-de-en/{split}.en", f"{split} x\n")
    texts = [load_parallel("iwslt14", split, data_root=tmp_path / "data") for split in ("train", "val", "test")]
    assert [text.source for text in texts] == [["train abc d"], ["valid abc d"], ["test abc d"]]
    assert {text.name for text in texts} == {"iwslt14"}


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


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_iwslt14_is_missing(tmp_path, split):
    with pytest.raises(FileNotFoundError) as info:
        load_parallel("iwslt14", split, data_root=tmp_path)
    stem = "valid" if split == "val" else split
    for part in (str(tmp_path / "iwslt14-de-en" / f"{stem}.de"), "prepare-iwslt14.sh", "--data-root"):
        assert part in str(info.value)


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


def test_tatoeba_bad_lines(tatoeba):
    rows = tatoeba_rows(20)
    with pytest.raises(ValueError, match=r"deu\.txt: line 3 has no tab; expected .* Replace the file"):
        tatoeba([*rows[:2], ("no tab",), *rows[2:]], "train")
    rows[5] = (rows[5][0], " ")
    split = next(split for split in ("train", "val", "test") if tatoeba(rows, split, skip=True).skipped)
    with pytest.raises(ValueError, match=r"deu\.txt: line 6 is empty"):
        tatoeba(rows, split)


def test_tatoeba_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"deu\.txt is missing; .*manythings.org.* --data-root"):
        load_parallel("tatoeba", "train", data_root=tmp_path)


# real data


@needs_data
@pytest.mark.parametrize(("split", "size"), [("train", 29000), ("val", 1014), ("test", 1000)])
def test_real_multi30k(split, size, tmp_path, monkeypatch):
    for source, target in (("de", "en"), ("fr", "de")):
        assert len(load_parallel("multi30k", split, source=source, target=target, max_words=45)) == size
    folder = Path(REAL) / "multi30k" / "task1"
    for path in folder.iterdir():
        assert multi30k_files.SHA256[path.name] == sha256(path.read_bytes()).hexdigest()


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
