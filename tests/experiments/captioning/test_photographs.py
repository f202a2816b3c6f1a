"""Captioning of photographs from files, and bad input, one line each."""

import json

import pytest

from experiments.captioning.config import COMMANDS
from experiments.captioning.data import load_images
from experiments.captioning.evaluation import describe
from experiments.captioning.model import load_trained
from experiments.harness.cli import run_commands
from tests.experiments.captioning.tiny_captions import small_scenes, tiny_options, write_flickr8k


def command_line(*arguments):
    return run_commands(COMMANDS, name="experiments.captioning", arguments=arguments)


@pytest.fixture(autouse=True)
def few_scenes(monkeypatch):
    small_scenes(monkeypatch)


PHOTOGRAPHS = ["--dataset", "flickr8k", "--size", "32", "--encoder-epochs", "1", "--max-epochs", "1"]


def photograph_options(root, out):
    return [*tiny_options(), *PHOTOGRAPHS, "--data-root", str(root), "--out", str(out)]


def test_photographs(tmp_path):
    write_flickr8k(tmp_path)
    options = photograph_options(tmp_path, tmp_path / "run")
    assert command_line("train", *options, "--guide", "weibull") == 0
    saved = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert "content-encoder-seed0" in saved["definitions"]["parameters"]
    assert saved["skipped"] == 0
    assert "test_pointing" not in saved
    made = sorted(path.name for path in (tmp_path / "flickr8k" / "cache").iterdir())
    assert command_line("show", str(tmp_path / "run"), "--images", "[1]") == 0
    # another row takes the same features
    other = photograph_options(tmp_path, tmp_path / "soft")
    assert command_line("train", *other, "--guide", "soft") == 0
    assert sorted(path.name for path in (tmp_path / "flickr8k" / "cache").iterdir()) == made
    trained = load_trained(tmp_path / "run", 256)
    assert len(describe(trained, load_images(trained.config)["test"])) == 3


def assert_one_line(capsys, *parts):
    error = capsys.readouterr().err
    for part in parts:
        assert part in error
    assert error.strip().count("\n") == 0, error


def cut_off(folder):
    path = folder / "Flicker8k_Dataset" / "test1.jpg"
    path.write_bytes(path.read_bytes()[:300])


def without_caption(folder):
    tokens = folder / "text" / "Flickr8k.token.txt"
    tokens.write_text(
        "".join(line for line in tokens.read_text().splitlines(keepends=True) if not line.startswith("test1.jpg"))
    )


def missing(folder):
    (folder / "Flicker8k_Dataset" / "test1.jpg").unlink()


@pytest.mark.parametrize(
    ("spoil", "parts"),
    [
        (cut_off, ["test1.jpg", "damaged"]),
        (without_caption, ["test1.jpg", "no caption"]),
        (missing, ["test1.jpg", "missing"]),
    ],
)
def test_bad_images_stop_the_run_before_it_starts_or_are_counted(spoil, parts, tmp_path, capsys):
    folder, out = write_flickr8k(tmp_path), tmp_path / "run"
    spoil(folder)
    options = photograph_options(tmp_path, out)
    assert command_line("train", *options) == 1
    assert_one_line(capsys, *parts, "--skip-bad")
    assert not out.exists()
    assert command_line("train", *options, "--skip-bad") == 0
    assert json.loads((out / "metrics.json").read_text())["skipped"] == 1
    assert len((out / "captions.txt").read_text().splitlines()) == 2


def test_a_features_cache_of_another_encoder(tmp_path, capsys):
    write_flickr8k(tmp_path)
    options = photograph_options(tmp_path, tmp_path / "run")
    assert command_line("train", *options) == 0
    capsys.readouterr()
    record = sorted((tmp_path / "flickr8k" / "cache").glob("content-encoder-seed0-*.json"))[0]
    record.write_text(record.read_text().replace("content-encoder-seed0", "other-encoder"))
    again = photograph_options(tmp_path, tmp_path / "again")
    assert command_line("train", *again) == 1
    assert_one_line(capsys, "other-encoder", record.stem, "Remove the file")
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--guide", "softly"], "guide"),
        (["--dataset", "flickr8k", "--data-root", "nowhere"], "Flickr8k.token.txt"),
        (["--dataset", "coco", "--data-root", "nowhere"], "dataset_coco.json"),
        (["--vocabulary", "10"], "size"),
        (["--hidden", "7", "--guide", "categorical_enum"], "hidden"),
    ],
)
def test_bad_options(arguments, part, tmp_path, capsys):
    assert command_line("train", *arguments, "--no-progress", "--out", str(tmp_path / "run")) in (1, 2)
    assert_one_line(capsys, part)
