"""Headlines of files of one's own: lines that have none, files that must stay, and words as in the training."""

import pytest

from experiments.datasets.text.word_rules import join_words
from experiments.harness.cli import run_commands
from experiments.harness.folder import saved_config
from experiments.headlines import summarize
from experiments.headlines.config import COMMANDS, HeadlineConfig
from experiments.headlines.evaluation import Written, write_headlines
from experiments.headlines.train import HeadlineTask
from experiments.run import load_trained, run
from tests.experiments.headlines.tiny_headlines import TINY, write_texts

TEXTS = ["Police met officials in Rome, they said.", 'The president left town on June 12 ("today").']
AS_IN_TRAINING = [
    "police met officials in rome , they said .",
    "the president left town on june ## ( `` today '' ) .",
]


@pytest.fixture(scope="module")
def headline_run(tmp_path_factory):
    """A finished run."""
    folder = tmp_path_factory.mktemp("headlines")
    run(HeadlineTask(), HeadlineConfig(**TINY, data_root=write_texts(folder / "data"), out=folder / "run"))
    return folder / "run"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "news.txt"
    path.write_text("".join(f"{text}\n" for text in TEXTS))
    return path


def command_line(*arguments):
    return run_commands(COMMANDS, name="experiments.headlines", arguments=["summarize", *map(str, arguments)])


def test_headlines_of_a_file(headline_run, file, capsys):
    assert command_line(headline_run, file) == 0
    trained = load_trained(HeadlineTask(), saved_config(headline_run, HeadlineConfig, script="experiments.headlines"))
    expected = [join_words(one.text, "nltk") for one in write_headlines(trained, AS_IN_TRAINING)]
    assert (file.parent / "news.headlines").read_text().split("\n") == [*expected, ""]
    assert (
        f"2 headlines, in small letters, with # for digits: {file.parent / 'news.headlines'}" in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("options", "texts", "joined"),
    [
        ([], AS_IN_TRAINING, "can't say"),
        (["--tokenize", "none"], [TEXTS[0].lower(), TEXTS[1].lower().replace("12", "##")], "ca n't say"),
    ],
    ids=["nltk", "none"],
)
def test_words_and_options_reach_the_search(headline_run, file, monkeypatch, options, texts, joined):
    asked = []

    def recorded(trained, texts, **given):
        asked.append((list(texts), given))
        return [Written("ca n't say", cut=False)] * len(texts)

    monkeypatch.setattr(summarize, "write_headlines", recorded)
    search = ["--beam", "7", "--no-repeat", "2", "--max-length", "9"]
    assert command_line(headline_run, file, *options, *search) == 0
    assert asked == [(texts, {"beam": 7, "no_repeat": 2, "max_length": 9, "progress": True})]
    assert (file.parent / "news.headlines").read_text() == f"{joined}\n" * 2


def test_bad_lines_become_empty_lines(headline_run, tmp_path, capsys):
    lines = [TEXTS[0].encode(), b"", b"word " * 1001, b"gr\xfcn", TEXTS[1].encode()]
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"\n".join(lines) + b"\n")
    assert command_line(headline_run, bad, "--max-length", "3") == 0
    written = (tmp_path / "bad.headlines").read_text().split("\n")
    assert len(written) == 6
    assert written[1:4] == [""] * 3
    error = capsys.readouterr().err
    for part in ("line 2 is empty", "line 3 has 1001 words; expected 1000 at most", "line 4 is not UTF-8"):
        assert f"bad.txt: {part}" in error
    assert error.count("its headline is an empty line") == 3


def test_cut_headlines_are_said(headline_run, file, monkeypatch, capsys):
    monkeypatch.setattr(
        summarize, "write_headlines", lambda *_, **__: [Written("a", cut=place == 1) for place in (0, 1)]
    )
    assert command_line(headline_run, file) == 0
    error = capsys.readouterr().err
    assert "news.txt: the headline of line 2 was cut at its largest length" in error
    assert "line 1" not in error


@pytest.mark.parametrize("out", [[], ["--out", "named.txt"]], ids=["beside the file", "named"])
def test_headlines_replace_no_file_unasked(headline_run, file, out, capsys, monkeypatch):
    monkeypatch.chdir(file.parent)
    there = file.parent / (out[1] if out else "news.headlines")
    there.write_text("my own\n")
    assert command_line(headline_run, file, *out) == 1
    assert there.read_text() == "my own\n"
    error = capsys.readouterr().err
    assert there.name in error
    assert "--overwrite" in error
    assert command_line(headline_run, file, *out, "--overwrite") == 0
    assert len(there.read_text().split("\n")) == 3


@pytest.mark.parametrize(
    ("change", "options", "parts"),
    [
        (lambda file: file.write_text(""), [], ["news.txt has no sentence to summarize"]),
        (lambda file: file.write_text("\n\n"), [], ["2 lines can not be summarized, the first: ", "line 1 is empty"]),
        (lambda file: file.unlink(), [], ["news.txt is missing"]),
        (lambda file: None, ["--max-length", "99"], ["max_length is 99, expected 12 at most"]),
        (lambda file: None, ["--out", "news.txt"], ["would replace"]),
    ],
    ids=["nothing", "empty lines", "missing", "too long", "itself"],
)
def test_bad_input(headline_run, file, change, options, parts, capsys, monkeypatch):
    monkeypatch.chdir(file.parent)
    monkeypatch.setattr(summarize, "write_headlines", None)  # refused before
    change(file)
    assert command_line(headline_run, file, *options) == 1
    error = capsys.readouterr().err
    assert all(part in error for part in parts), error


def test_no_run(tmp_path, file, capsys):
    assert command_line(tmp_path / "nothing", file) == 1
    assert "config.yaml is missing); train one: python -m experiments.headlines train" in capsys.readouterr().err
