"""Headlines of files of one's own: lines that have none, files that must stay, and words as in the training."""

import pytest

from experiments.datasets.text.word_rules import join_words
from experiments.harness.cli import run_commands
from experiments.headlines.config import COMMANDS
from experiments.headlines.train import HeadlineTask, write_headlines
from experiments.run import load_trained

TEXTS = ["Police met officials in Rome, they said.", 'The president left town on June 12 ("today").']
AS_IN_TRAINING = [
    "police met officials in rome , they said .",
    "the president left town on june ## ( `` today '' ) .",
]


@pytest.fixture
def command_line(finished):
    def call(*arguments):
        words = ["summarize", str(finished("softmax")[0].out), *map(str, arguments)]
        return run_commands(COMMANDS, name="experiments.headlines", arguments=words)

    return call


def test_headlines_of_a_file(finished, command_line, tmp_path, capsys):
    """Bad lines become empty ones; the files that are there stay."""
    file, out = tmp_path / "news.txt", tmp_path / "news.headlines"
    lines = [TEXTS[0].encode(), b"", b"word " * 1001, b"gr\xfcn", TEXTS[1].encode()]
    file.write_bytes(b"\n".join(lines) + b"\n")
    assert command_line(file) == 0
    shown = capsys.readouterr()
    assert f"2 headlines, in small letters, with # for digits: {out}" in shown.out
    for part in ("line 2 is empty", "line 3 has 1001 words; expected 1000 at most", "line 4 is not UTF-8"):
        assert f"news.txt: {part}" in shown.err
    trained = load_trained(HeadlineTask(), finished("softmax")[0])
    first, last = (join_words(one.text, "nltk") for one in write_headlines(trained, AS_IN_TRAINING))
    assert out.read_text() == f"{first}\n\n\n\n{last}\n"
    out.write_text("my own\n")
    assert command_line(file) == 1
    assert "--overwrite" in capsys.readouterr().err
    assert out.read_text() == "my own\n"
    assert command_line(file, "--overwrite", "--tokenize", "none") == 0
    assert out.read_text() != f"{first}\n\n\n\n{last}\n"
    assert command_line(file, "--out", file) == 1
    assert "would replace" in capsys.readouterr().err
