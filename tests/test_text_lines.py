"""Lines: what ends one and what does not, from characters, bytes and files."""

import gzip

import pytest

from pyro_attention.text_lines import read_lines, split_lines

NO_ENDS = ["\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029", "\u00a0"]


@pytest.mark.parametrize("sign", NO_ENDS, ids=ascii)
def test_nothing_else_ends_a_line(sign, tmp_path):
    lines = [f"one{sign}two", "three", f"{sign}four", ""]
    for end in ("\n", "\r\n"):
        text = "".join(line + end for line in lines)
        assert split_lines(text) == lines
        assert split_lines(text.encode()) == [line.encode() for line in lines]
        (tmp_path / "a").write_bytes(text.encode())
        assert [line for _, line in read_lines(tmp_path / "a")] == lines


@pytest.mark.parametrize(
    ("text", "lines"), [("", []), ("\n", [""]), ("a", ["a"]), ("a\n\n", ["a", ""]), ("\r\n\r\n", ["", ""])]
)
def test_the_last_line_may_lack_its_end(text, lines):
    assert split_lines(text) == lines


def test_places_marks_and_packed_files(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress("\ufeffeins\nzwei".encode()))
    path = tmp_path / "a.gz"
    assert list(read_lines(path)) == [(f"{path}, line 1", "eins"), (f"{path}, line 2", "zwei")]
    (tmp_path / "b.gz").write_bytes(b"eins")
    with pytest.raises(ValueError, match=r"b\.gz cannot be unpacked"):
        list(read_lines(tmp_path / "b.gz"))
    (tmp_path / "c").write_bytes("gut\nschön\n".encode("latin-1"))
    with pytest.raises(ValueError, match="c, line 2: byte 4 is 0xf6; expected UTF-8"):
        list(read_lines(tmp_path / "c"))
