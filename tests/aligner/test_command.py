"""``pyro-align``: files in, links out, a line for every pair."""

import re

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
    assert set(Aligner.load("kept").vocabularies[0].words) == set(GERMAN.lower().split())
    first = (files / "links.txt").read_text()
    monkeypatch.setattr(Aligner, "fit", None)  # it is not trained again
    main(["a", "b", "--model", "kept", "--anchors", "links.txt"])
    assert (files / "links.txt").read_text() == first
    with pytest.raises(SystemExit, match="swap the two files"):
        main(["b", "a", "--model", "kept"])


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
        (["a", "b", "--dictionary", "latin"], "latin: .* expected UTF-8"),
        (["a", "b", "--encoder", "nowhere"], "nowhere has no config.json"),
        (["a", "b", "--cross-fit", "2", "--model", "kept"], "--cross-fit trains on the text itself"),
    ],
)
def test_bad_input(files, arguments, message):
    (files / "short").write_text("the house\n")
    (files / "latin").write_bytes("schöne Häuser\n".encode("latin-1") * 6)
    with pytest.raises(SystemExit, match=message):
        main(arguments)
