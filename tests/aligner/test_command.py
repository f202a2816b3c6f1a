"""``pyro-align``: files in, links out, a line for every pair."""

import gzip
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pyro_attention.aligner import Aligner
from pyro_attention.aligner.__main__ import main

ROOT = Path(__file__).parents[2]
GERMAN = "Das Haus\nDas Buch\nEin Buch\nEin Haus\n\nDas alte Haus\n"
ENGLISH = "the house\nthe book\na book\na house\nnothing\nthe old house\n"


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_text(GERMAN)
    (tmp_path / "b").write_text(ENGLISH)
    return tmp_path


def test_links_of_two_files(files, capsys):
    main(["a", "b", "--out", "links", "--tsv", "table", "--html", "page.html", "--most-uncertain", "1"])
    links = (files / "links").read_text()
    assert links == "0-0 1-1\n0-0 1-1\n0-0 1-1\n0-0 1-1\n\n0-0 1-1 2-2\n"
    assert (files / "table").read_text().splitlines()[1].startswith("1\t0\t0\tDas\tthe\t")
    assert '"nothing"' not in (files / "page.html").read_text()  # a pair without words is not shown
    said = capsys.readouterr()
    assert "11 links of 6 pairs" in said.out
    assert "mean probability" in said.out
    assert "on 6 pairs" in said.err
    main(["a", "b", "--out", "half", "--probabilities", "--coverage", "0.5"])
    half = (files / "half").read_text().splitlines()
    assert len(half) == 6
    assert all(re.fullmatch(r"(\d-\d:[01]\.\d{3} ?)*", line) for line in half)
    assert 0 < sum(line.count(":") for line in half) < 11


def test_a_model_is_kept_and_used(files, monkeypatch):
    pytest.importorskip("safetensors")
    (files / "dictionary").write_text("\ufeffHaus\thouse\t5\n", encoding="utf-8")  # as some editors begin a file
    main(["a", "b", "--model", "kept", "--dictionary", "dictionary"])
    assert set(Aligner.load("kept").ensemble.vocabularies[0].words) == set(GERMAN.lower().split())
    first = (files / "links.txt").read_text()
    monkeypatch.setattr(Aligner, "fit", None)  # it is not trained again
    main(["a", "b", "--model", "kept", "--anchors", "links.txt", "--out", "again.txt"])
    assert (files / "again.txt").read_text() == first
    with pytest.raises(SystemExit, match="swap the two files"):
        main(["b", "a", "--model", "kept", "--overwrite"])


def test_every_line_has_its_line(files):
    """Right-to-left script, empty lines, separators that are no newlines, a side that is twice as long, a long line."""
    hebrew = GERMAN.lower().translate(str.maketrans("abcdeghinstu", "אבגדהוזחטיכל"))
    source = hebrew + "\n" + "הכה זבלכ\u2028\x85 " * 3 + "\r\n" + (hebrew.split("\n")[0] + " ") * 100 + "\n"
    (files / "c").write_bytes(source.encode())
    (files / "d").write_text(ENGLISH + "a line\nthe house the house the house the house\n" + "the house " * 100)
    main(["c", "d", "--probabilities"])
    links = (files / "links.txt").read_text()
    assert links.count("\n") == source.count("\n") == 9
    assert re.sub(r":\S+", "", links).startswith("0-0 1-1\n0-0 1-1\n0-0 1-1\n0-0 1-1\n\n0-0 1-1 2-2\n\n")
    assert len(links.split("\n")[8].split()) > 100


@pytest.fixture
def untrained(monkeypatch):
    """Whatever is refused is refused before any work is done."""
    monkeypatch.setattr(Aligner, "fit", None)


@pytest.mark.parametrize("option", ["--out", "--tsv", "--html"])
@pytest.mark.parametrize("name", ["a", "b", "./a", "link", "hard", "c", "dictionary", "anchors"])
def test_no_input_is_overwritten(files, untrained, option, name):
    """By whatever name, and also where the user asks for it."""
    for extra in ("c", "d"):
        (files / extra).write_text(ENGLISH)
    (files / "dictionary").write_text("haus\thouse\n")
    (files / "anchors").write_text("\n" * 6)
    (files / "link").symlink_to("b")
    (files / "hard").hardlink_to(files / "a")
    before = {path.name: path.read_bytes() for path in files.iterdir()}
    more = ["--train", "c", "d", "--dictionary", "dictionary", "--anchors", "anchors", "--overwrite"]
    with pytest.raises(SystemExit, match=f"{option} .* is the file that is read as"):
        main(["a", "b", *more, option, name])
    assert {path.name: path.read_bytes() for path in files.iterdir()} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "x", "--tsv", "x"], "--tsv x is the file that is written as --out"),
        (["--out", "x", "--html", "./x"], "--html x is the file that is written as --out"),
        (["--out", "nowhere/x"], "--out nowhere/x lies in .*nowhere, which is no folder"),
        (["--tsv", "."], "--tsv . is a folder"),
        (["--out", "there"], "--out there is there already; pass --overwrite"),
        (["--model", "there"], "--model there is a file"),
        (["--scores", "a"], "--scores a is the file that is read as the source"),
        (["--out", "-", "--tsv", "-"], "more than one output"),
        (["--balance", "0"], "--balance is 0.0"),
        (["--balance", "2", "--direction", "forward"], "leave out --direction"),
        (["--parts", "2", "--cross-fit", "2"], "--cross-fit has no"),
        (["--dictionary", "foreign"], "foreign has 1 entries, and the text has the words of none"),
        (["--dictionary", "infinite"], "infinite, line 1 is"),
        (["--encoder", "nowhere"], "nowhere has no config.json"),
        (["--anchors", "outside"], "outside, line 2: link 0-5 lies outside of 2 source and 2 target words"),
        (["--dictionary", "a"], "a, line 1 is 'Das Haus'"),
        (["--train", "a", "there"], "a has 6 lines and there 1"),
        (["--train", "long", "long"], "long, line 2 has 10000 source and 10000 target words"),
    ],
)
def test_everything_is_checked_before_the_training(files, untrained, arguments, message):
    (files / "there").write_text("mine\n")
    (files / "foreign").write_text("maison\thouse\n")
    (files / "infinite").write_text("haus\thouse\t" + "9" * 400 + "\n")
    (files / "outside").write_text("0-0\n0-5\n\n\n\n\n")
    (files / "long").write_text("word\n" + "word " * 10_000 + "\n")
    with pytest.raises(SystemExit, match=message):
        main(["a", "b", *arguments])
    assert (files / "there").read_text() == "mine\n"


def test_files_of_the_user_stay(files):
    """A hidden file of a like name, the mode of the old file, a symbolic link, a device."""
    (files / ".links.txt").write_text("mine")
    (files / "links.txt").write_text("old")
    (files / "links.txt").chmod(0o600)
    (files / "to").symlink_to("links.txt")
    main(["a", "b", "--out", "to", "--overwrite", "--tsv", "/dev/null"])
    assert (files / "links.txt").read_text().startswith("0-0 1-1\n")
    assert (files / "links.txt").stat().st_mode & 0o777 == 0o600
    assert (files / "to").is_symlink()
    assert (files / ".links.txt").read_text() == "mine"
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("sign", ["\r", "\x0b", "\x0c", "\x85", "\u2028", "\u2029"], ids=ascii)
def test_signs_inside_of_a_line_shift_nothing(files, sign):
    (files / "c").write_bytes(f"{GERMAN}das{sign}Haus\nein Haus\n".encode())
    (files / "d").write_bytes(f"{ENGLISH}the house\na house\n".encode())
    main(["c", "d"])
    links = (files / "links.txt").read_bytes().decode().split("\n")
    assert len(links) == 9
    assert links[7] == "0-0 1-1"


def test_an_output_with_a_second_name_is_not_torn_from_it(files, untrained):
    (files / "links.txt").write_text("old")
    (files / "second").hardlink_to(files / "links.txt")
    with pytest.raises(SystemExit, match=r"--out links\.txt has a second name"):
        main(["a", "b", "--overwrite"])
    assert (files / "second").read_text() == (files / "links.txt").read_text() == "old"


def test_a_full_disk_leaves_the_old_file(files, monkeypatch):
    def full(*_):
        raise OSError(28, os.strerror(28))

    (files / "links.txt").write_text("old")
    monkeypatch.setattr("pyro_attention.aligner.output.copyfileobj", full)
    with pytest.raises(SystemExit, match=r"links\.txt cannot be written: No space left on device"):
        main(["a", "b", "--overwrite"])
    assert (files / "links.txt").read_text() == "old"
    assert sorted(path.name for path in files.iterdir()) == ["a", "b", "links.txt"]


RECORDS = [
    {"source": "Das Haus", "target": ["the", "house"]},
    {"source": ["Das", "Buch"], "target": "the\nbook"},
    {"source": "Ein Buch", "target": "a book", "id": 7},
    {"source": "", "target": "nothing"},
] * 3


def test_json_lines_in_and_out(files):
    (files / "pairs.jsonl.gz").write_bytes(gzip.compress("".join(f"{json.dumps(r)}\n" for r in RECORDS).encode()))
    main(["pairs.jsonl.gz", "--out", "links.jsonl"])
    records = [json.loads(line) for line in (files / "links.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(records) == len(RECORDS)
    assert (records[1]["source"], records[1]["target"]) == (["Das", "Buch"], ["the", "book"])
    assert [link[:2] for link in records[0]["links"]] == [[0, 0], [1, 1]]
    assert all(0 < p <= 1 for record in records for *_, p in record["links"])
    assert records[3] == {
        "source": [], "target": ["nothing"], "links": [], "gain": None, "log_evidence": None, "linked": None
    }  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        "das ||| the",
        "[1, 2]",
        '{"source": "das"}',
        '{"source": "das", "target": 3}',
        '{"source": ["a", 1]}',
        "",
        "[" * 100_000,
    ],
)
def test_lines_that_are_no_pairs_in_json(files, untrained, line):
    (files / "pairs.jsonl").write_text(json.dumps(RECORDS[0]) + "\n" + line + "\n")
    with pytest.raises(SystemExit, match=r"pairs.jsonl, line 2 is .*, expected JSON with a source and a target"):
        main(["pairs.jsonl"])


@pytest.mark.parametrize("text", ["das \ud83d Haus", ["das", "\udc00"]])
@pytest.mark.parametrize("way", [[], ["--max-memory", "1000"]])
def test_half_of_a_character_is_refused(files, untrained, text, way):
    """JSON can hold it, and UTF-8 cannot, so that the outputs could not be read again."""
    (files / "pairs.jsonl").write_text(json.dumps(RECORDS[0]) + "\n" + json.dumps({"source": "x", "target": text}))
    with pytest.raises(SystemExit, match=r"pairs.jsonl, line 2: the text .* has '.ud\w+', half of a character"):
        main(["pairs.jsonl", "--out", "links.jsonl", *way])
    assert not (files / "links.jsonl").exists()


def test_a_character_that_json_writes_as_two_is_one(files):
    records = [{"source": "das \U0001f600", "target": "the \U0001f600"}] * 3
    (files / "pairs.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in records))
    main(["pairs.jsonl", "--out", "links.jsonl"])
    assert json.loads((files / "links.jsonl").read_text(encoding="utf-8").splitlines()[0])["source"][1] == "\U0001f600"


def test_a_terminal_without_the_letters_of_the_text_shows_their_codes(files, monkeypatch):
    said = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", said)
    (files / "c").write_text("дом\n" * 6, encoding="utf-8")
    main(["c", "b", "--most-uncertain", "6"])
    said.flush()
    assert b"\\u0434\\u043e\\u043c ||| the house" in said.buffer.getvalue()


@pytest.mark.parametrize("words", [["New York"], ["", "the"], ["a\tb"], ["a\nb"]])
def test_the_words_of_a_list_are_counted_as_they_stand(files, untrained, words):
    """Links count words, so a word must not become two, or none."""
    (files / "pairs.jsonl").write_text(json.dumps({"source": "das", "target": words}) + "\n")
    with pytest.raises(SystemExit, match=r"line 1 has the word .* in a list, expected words without blanks"):
        main(["pairs.jsonl"])


@pytest.mark.parametrize("way", [[], ["--cross-fit", "2"], ["--max-memory", "1000"]])
def test_the_letters_are_asked_unless_told_not_to(files, monkeypatch, way):
    monkeypatch.setattr("pyro_attention.aligner.aligner.SpelledText", None)
    main(["a", "b", "--no-strings", *way])
    with pytest.raises(TypeError):
        main(["a", "b", "--overwrite", *way])


def test_a_pair_has_one_number_in_all_outputs(files):
    (files / "c").write_text("\n" + GERMAN)
    (files / "d").write_text("nothing\n" + ENGLISH)
    main(["c", "d", "--tsv", "table", "--html", "page.html"])
    numbers = {line.split("\t")[0] for line in (files / "table").read_text().splitlines()[1:]}
    page = (files / "page.html").read_text()
    assert set(re.findall(r'"title":"(\d+)"', page)) == numbers == {"2", "3", "4", "5", "7"}


def test_no_page_of_no_pairs(files, capsys):
    (files / "c").write_text("\n\n")
    (files / "d").write_text("the\n\n")
    main(["c", "d", "--train", "a", "b", "--html", "page.html"])
    assert (files / "links.txt").read_text() == "\n\n"
    assert "no pair has words on both sides, so page.html is not written" in capsys.readouterr().err
    assert not (files / "page.html").exists()


def test_a_text_in_bounded_memory(files, capsys):
    """The same lines as in memory, every output, and nothing left behind."""
    main(["a", "b", "--parts", "2", "--tsv", "table", "--scores", "scores", "--lexicon", "lexicon"])
    (files / "scratch").mkdir()
    (files / "dictionary").write_text("Haus\thouse\t0\n")
    new = ["--out", "new", "--tsv", "table2", "--scores", "scores2", "--lexicon", "lexicon2", "--html", "page.html"]
    main(["a", "b", "--parts", "2", "--max-memory", "1000", "--scratch", "scratch", "--dictionary", "dictionary", *new])
    for old, name in (("links.txt", "new"), ("table", "table2"), ("scores", "scores2"), ("lexicon", "lexicon2")):
        numbers = [re.findall(r"-?\d+\.\d+", (files / file).read_text()) for file in (old, name)]
        words = [re.sub(r"-?\d+\.\d+", "", (files / file).read_text()) for file in (old, name)]
        assert words[0] == words[1]
        assert [float(n) for n in numbers[1]] == pytest.approx([float(n) for n in numbers[0]], abs=2e-3)
    assert not list((files / "scratch").iterdir())
    assert "the text has the words of 1 of 1 entries" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-memory", "100"], "100 MB of memory are too few"),
        (["--max-memory", "3000", "--coverage", ".5"], "--coverage needs all pairs in memory"),
        (["--max-memory", "3000", "--cross-fit", "2"], "--max-memory has no --cross-fit"),
        (["--max-memory", "3000", "--anchors", "a"], "--max-memory has no --anchors"),
        (["--max-memory", "3000", "--processes", "0"], "--processes is 0"),
        (["--max-memory", "3000", "--cluster", "tcp://nowhere:1"], "--cluster needs --scratch"),
        (["--max-memory", "3000", "--scratch", "nowhere"], "--scratch nowhere is no folder"),
        (["--processes", "2"], "--processes, --cluster and --scratch are of --max-memory"),
        (["--out", "x.jsonl", "--words"], "leave out --words"),
        (["--max-memory", "3000", "--train", "a", "short"], "a has 6 lines and short 1"),
    ],
)
def test_options_of_large_texts_are_checked_before_the_training(files, monkeypatch, arguments, message):
    (files / "short").write_text("the house\n")
    monkeypatch.setattr(Aligner, "fit_stream", None)
    monkeypatch.setattr(Aligner, "fit", None)
    with pytest.raises(SystemExit, match=message):
        main(["a", "b", *arguments])


def test_large_texts_are_files_that_can_be_read_again(files):
    with pytest.raises(SystemExit, match="expected files in place of standard input"):
        main(["-", "b", "--max-memory", "3000"])


def test_known_links_stay_below_any_probability(files):
    (files / "anchors").write_text("0-0 0-1\n1-0\n\n0-0 1-0\n\n2-0 2-1\n")
    main(["a", "b", "--anchors", "anchors", "--min-probability", "1", "--probabilities"])
    links = (files / "links.txt").read_text().split("\n")
    assert [sorted(line.split()) for line in links[:6]] == [
        ["0-0:1.000", "0-1:1.000"], ["1-0:1.000"], [], ["0-0:1.000", "1-0:1.000"], [], ["2-0:1.000", "2-1:1.000"]
    ]  # fmt: skip


def test_entries_of_several_words_and_how_many_fit(files, capsys):
    (files / "c").write_text("rot blau\n" * 6)
    (files / "d").write_text("sky blue, red\n" * 6)
    (files / "dictionary").write_text("Blau\tsky blue\nrot\tred\t20\ngelb\tyellow\n")
    main(["c", "d", "--tokenize", "--dictionary", "dictionary"])
    assert "the text has the words of 2 of 3 entries" in capsys.readouterr().err
    assert (files / "links.txt").read_text().startswith("0-3 1-0 1-1\n")


def test_standard_streams_packed_files_and_both_sides_in_one(files, capsysbinary, monkeypatch):
    main(["a", "b"])
    expected = (files / "links.txt").read_bytes()
    both = "".join(f"{s} ||| {t}\n" for s, t in zip(GERMAN.split("\n")[:-1], ENGLISH.split("\n")[:-1], strict=True))
    (files / "both").write_text(both)
    (files / "a.gz").write_bytes(gzip.compress(GERMAN.encode()))
    capsysbinary.readouterr()
    main(["both", "--out", "-"])
    assert capsysbinary.readouterr().out == expected
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(both.encode())))
    main(["-", "--out", "packed.gz"])
    assert gzip.decompress((files / "packed.gz").read_bytes()) == expected
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(ENGLISH.encode())))
    main(["a.gz", "-", "--out", "third"])
    assert (files / "third").read_bytes() == expected
    with pytest.raises(SystemExit, match=r"a, line 1 is 'Das Haus', expected a sentence, ' \|\|\| '"):
        main(["a", "--overwrite"])


def test_what_else_is_written(files):
    main(["a", "b", "--scores", "scores", "--lexicon", "lexicon", "--words"])
    assert (files / "links.txt").read_text().startswith("Das|the Haus|house\n")
    scores = [line.split("\t") for line in (files / "scores").read_text().split("\n")]
    assert scores[0] == ["gain", "log_evidence", "linked"]
    assert len(scores) == 1 + 6 + 1
    assert scores[5] == ["", "", ""]
    assert all(0 < float(linked) <= 1 and float(evidence) < 0 for _, evidence, linked in (*scores[1:5], scores[6]))
    head, *entries = [line.split("\t") for line in (files / "lexicon").read_text().split("\n")[:-1]]
    assert head == ["source", "target", "p(target | source)", "p(source | target)", "links"]
    table = {(s, t): (float(one), float(two), float(count)) for s, t, one, two, count in entries}
    assert table["das", "the"][0] > 0.9
    assert table["das", "the"][2] == pytest.approx(3, abs=0.3)
    assert sum(one for (s, _), (one, _, _) in table.items() if s == "das") <= 1 + 1e-3


@pytest.mark.parametrize(
    "options", [["--direction", "forward"], ["--direction", "backward"], ["--symmetrize", "union"]]
)
def test_links_of_the_directions(files, options):
    main(["a", "b", *options, "--out", "some"])
    lines = [
        [tuple(map(int, link.split("-"))) for link in line.split()] for line in (files / "some").read_text().split("\n")
    ]
    words = [side.split("\n") for side in (GERMAN, ENGLISH)]
    for number, links in enumerate(lines[:4]):
        side = 1 if "forward" in options else 0
        assert {link[side] for link in links} == set(range(len(words[side][number].split())))


def test_balance_of_precision_and_recall(files):
    (files / "c").write_text("ja nein vielleicht\nja doch\nnein nie\n")
    (files / "d").write_text("no yes\nyes maybe\nnever no perhaps\n")
    counts = []
    for balance in ("0.2", "1", "5"):
        main(["c", "d", "--balance", balance, "--overwrite"])
        counts.append((files / "links.txt").read_text().count("-"))
    assert counts == sorted(counts)
    assert counts[0] < counts[2]


def test_a_kept_model_remembers_how_text_is_prepared(files):
    pytest.importorskip("safetensors")
    (files / "c").write_text("Das Haus.\nDas Buch.\nEin Buch.\n" * 3)
    (files / "d").write_text("The house.\nThe book.\nA book.\n" * 3)
    main(["c", "d", "--model", "kept", "--tokenize", "--out", "first"])
    main(["c", "d", "--model", "kept", "--out", "second"])
    assert (files / "first").read_text() == (files / "second").read_text()
    assert (files / "first").read_text().startswith("0-0 1-1 2-2\n")
    with pytest.raises(SystemExit, match=r"was trained on text prepared by .*leave them out"):
        main(["c", "d", "--model", "kept", "--keep-case", "--out", "third"])


@pytest.mark.parametrize("way", [[], ["--max-memory", "1000"]])
def test_text_without_blanks_is_named(files, capsys, way):
    (files / "c").write_text("我们去北京吧我们去北京吧\n" * 3)
    (files / "d").write_text("we go to Beijing\n" * 3)
    main(["c", "d", "--out", "one", *way])
    assert "c seems to have no blanks between words" in capsys.readouterr().err
    main(["c", "d", "--out", "two", "--tokenize", *way])
    assert "seems" not in capsys.readouterr().err


def test_documents_of_different_numbers_of_sentences(files):
    (files / "c").write_text("\nDas Haus\nEin Buch\n\n\nEin Haus\n")
    (files / "d").write_text("the house a book\n\na\nhouse\n\n")
    main(["c", "d", "--train", "a", "b", "--documents", "--out", "some"])
    assert (files / "some").read_text() == "0-0 1-1 2-2 3-3\n0-0 1-1\n"
    (files / "e").write_text("the house\n")
    with pytest.raises(SystemExit, match="c has 2 documents and e 1"):
        main(["c", "e", "--train", "a", "b", "--documents", "--out", "other"])
    (files / "long").write_text("\nword\n\nword\n" + "word " * 10_000 + "\n")
    with pytest.raises(SystemExit, match="long, document 2 has 10001 source and 10001 target words"):
        main(["long", "long", "--train", "a", "b", "--documents", "--out", "other"])


def test_without_regex_nothing_is_lost(files, untrained, monkeypatch):
    monkeypatch.setattr("pyro_attention.aligner.text.find_spec", lambda _: None)
    with pytest.raises(SystemExit, match="--tokenize needs the package regex"):
        main(["a", "b", "--tokenize"])


def test_punctuation_and_case(files):
    (files / "c").write_text("Das Haus.\n" * 5)
    (files / "d").write_text("The house.\n" * 5)
    main(["c", "d", "--tokenize", "--cross-fit", "2"])
    assert (files / "links.txt").read_text().startswith("0-0 1-1 2-2\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a", "short"], "short 1; expected as many"),
        (["a", "missing"], "No such file"),
        (["a", "latin"], "expected UTF-8"),
        (["a", "b", "--coverage", "0"], "--coverage is 0.0"),
        (["a", "b", "--min-probability", "80"], "--min-probability 80"),
        (["a", "b", "--dictionary", "short"], "short, line 1 is 'the house'"),
        (["a", "b", "--dictionary", "latin"], "latin, line 1: .* expected UTF-8"),
        (["a", "b", "--encoder", "nowhere"], "nowhere has no config.json"),
        (["a", "b", "--cross-fit", "2", "--model", "kept"], "--cross-fit trains on the text itself"),
    ],
)
def test_bad_input(files, arguments, message):
    (files / "short").write_text("the house\n")
    (files / "latin").write_bytes("schöne Häuser\n".encode("latin-1") * 6)
    with pytest.raises(SystemExit, match=message):
        main(arguments)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of memory is read from Linux")
def test_a_pair_of_three_thousand_words_takes_less_than_a_gigabyte(files):
    random = np.random.default_rng(0)
    for name in "ab":
        numbers = random.zipf(1.3, 3000) % 2000
        (files / f"long.{name}").write_text(" ".join(f"{name}{number}" for number in numbers) + "\n")
        lines = random.zipf(1.3, (60, 12)) % 2000
        (files / name).write_text("\n".join(" ".join(f"{name}{number}" for number in line) for line in lines) + "\n")
    arguments = ["long.a", "long.b", "--train", "a", "b", "--out", "links"]
    code = f"from pyro_attention.aligner.__main__ import main; main({arguments}); "
    # not getrusage, whose peak begins with that of the process that starts it
    code += "print(*[line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')])"
    printed = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, capture_output=True,
        text=True,
    ).stdout  # fmt: skip
    assert int(printed.split()[-1]) * 1024 < 1e9
