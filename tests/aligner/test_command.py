"""``pyro-align``: files in, links out, a line for every pair."""

import re
from pathlib import Path

import pytest

from pyro_attention.aligner import Aligner
from pyro_attention.aligner.__main__ import main

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
    assert (files / "table").read_text().splitlines()[1].startswith("1\t0\t0\tdas\tthe\t")
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
    assert set(Aligner.load("kept").members[0].vocabularies[0].words) == set(GERMAN.lower().split())
    first = (files / "links.txt").read_text()
    monkeypatch.setattr(Aligner, "fit", None)  # it is not trained again
    main(["a", "b", "--model", "kept", "--anchors", "links.txt", "--out", "again.txt"])
    assert (files / "again.txt").read_text() == first
    with pytest.raises(SystemExit, match="swap the two files"):
        main(["b", "a", "--model", "kept", "--overwrite"])


def test_every_line_has_its_line(files):
    """Right-to-left script, empty lines, separators that are no newlines, a side that is twice as long, a long line."""
    hebrew = GERMAN.lower().translate(str.maketrans("abcdeghinstu", "אבגדהוזחטיכל"))
    source = hebrew + "\n" + "הכה זבלכ\u2028\x85 " * 3 + "\r\n" + (hebrew.split("\n")[0] + " ") * 500 + "\n"
    (files / "c").write_bytes(source.encode())
    (files / "d").write_text(ENGLISH + "a line\nthe house the house the house the house\n" + "the house " * 500)
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
        (["--encoder", "nowhere"], "nowhere has no config.json"),
        (["--anchors", "outside"], "outside, line 2: link 0-5 lies outside of 2 source and 2 target words"),
        (["--dictionary", "a"], "a, line 1 is 'das haus'"),
        (["--train", "a", "there"], "a has 6 lines and there 1"),
        (["--train", "long", "long"], "long and long, line 2 has 10000 source and 10000 target words"),
    ],
)
def test_everything_is_checked_before_the_training(files, untrained, arguments, message):
    (files / "there").write_text("mine\n")
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
