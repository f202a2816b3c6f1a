"""Captioning of photographs from files, and bad input, one line each."""

import json
import math

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from experiments.captioning import data
from experiments.captioning.data import load_images
from experiments.captioning.evaluation import describe
from experiments.captioning.model import load_trained, read_config
from experiments.datasets.images.image_features import encode
from experiments.datasets.images.region_captions import own_photograph
from tests.experiments.captioning.tiny_captions import (
    colour_encoder,
    command_line,
    small_scenes,
    tiny_options,
    write_flickr8k,
)

# an untrained network writes any character, and not every font has it
pytestmark = pytest.mark.filterwarnings("ignore:Glyph")


@pytest.fixture(autouse=True)
def few_scenes(monkeypatch):
    small_scenes(monkeypatch)


PHOTOGRAPHS = ["--dataset", "flickr8k", "--size", "32", "--max-epochs", "1"]


def photograph_options(root, out, *encoder):
    encoder = encoder or ("--encoder-epochs", "1")
    return [*tiny_options(), *PHOTOGRAPHS, "--data-root", str(root), "--out", str(out), *encoder]


def test_photographs(tmp_path):
    write_flickr8k(tmp_path)
    options = photograph_options(tmp_path, tmp_path / "run")
    assert command_line("train", *options, "--guide", "weibull") == 0
    saved = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert saved["skipped"] == 0
    assert "test_pointing" not in saved
    made = sorted(path.name for path in (tmp_path / "flickr8k" / "cache").iterdir())
    assert any(name.startswith("content-encoder-seed0") for name in made)
    assert command_line("show", tmp_path / "run", "--images", "[1]") == 0
    # another row takes the same features
    other = photograph_options(tmp_path, tmp_path / "soft")
    assert command_line("train", *other, "--guide", "soft") == 0
    assert sorted(path.name for path in (tmp_path / "flickr8k" / "cache").iterdir()) == made
    trained = load_trained(tmp_path / "run", 256)
    assert len(describe(trained, load_images(trained.config)["test"])) == 3


@pytest.fixture
def described(tmp_path, monkeypatch):
    """A finished run on photographs with maps of them: left a person, right a dog."""
    monkeypatch.setattr(data, "mobilenet_grid", colour_encoder)
    folder = write_flickr8k(tmp_path)
    tokens = folder / "text" / "Flickr8k.token.txt"
    tokens.write_text(tokens.read_text().replace("picture .", "man with a dog ."))
    names = sorted(path.name for path in (folder / "Flicker8k_Dataset").iterdir())
    points = np.zeros((len(names), 3, 4), np.uint8)
    points[..., :2], points[..., 2:] = 1, 2
    np.savez(tmp_path / "maps.npz", names=names, classes=["background", "person", "dog"], named=points)
    options = photograph_options(tmp_path, tmp_path / "run", "--encoder", "mobilenet_v2", "--size", "64")
    assert command_line("train", *options, "--maps", tmp_path / "maps.npz", "--guide", "weibull") == 0
    return tmp_path / "run"


def test_a_pretrained_encoder_with_maps(described):
    metrics = json.loads((described / "metrics.json").read_text())
    assert metrics["test_map_nouns_person"] == metrics["test_map_nouns_dog"] == 3  # one of two captions names both
    # the photograph is one half person, one half dog, in a grid of 2 x 2
    assert metrics["test_map_mass_uniform"] == pytest.approx(0.5)
    assert metrics["test_map_mass_centre"] == pytest.approx(0.5)
    for name in ("mass", "mass_prior", "point"):
        assert 0 <= metrics[f"test_map_{name}"] <= 1
    # as both halves are named as often as each other, and the prior is the same for all words
    assert metrics["test_map_mass_prior"] == pytest.approx(0.5)
    assert metrics["test_distinct_1_posterior"] <= 1
    assert all(math.isfinite(value) for value in metrics.values() if isinstance(value, float))


def test_a_photograph_of_ones_own(described, tmp_path, capsys):
    # one of the test photographs, so that its caption is known
    photo = described.parent / "flickr8k" / "Flicker8k_Dataset" / "test1.jpg"
    made = sorted((described.parent / "flickr8k" / "cache").iterdir())
    capsys.readouterr()
    assert command_line("show", described, "--photo", photo, "--out", tmp_path / "own") == 0
    said, *files = capsys.readouterr().out.splitlines()
    assert said == (described / "captions.txt").read_text().splitlines()[1]
    names = [f"weibull-photo-0-{kind}.png" for kind in ("attention", "uncertainty")]
    assert [path.rpartition("/")[2] for path in files] == names
    assert sorted((described.parent / "flickr8k" / "cache").iterdir()) == made


def test_pictures_have_the_shape_of_the_photograph(described):
    test = load_images(read_config(described))["test"]
    assert test.pictures.shape == (3, 3, 64, 64)
    assert test.shown(0).shape == (3, 40, 32)
    own = own_photograph(Image.new("RGB", (1280, 320)), test)
    assert own.shown(0).shape == (3, 160, 640)
    torch.testing.assert_close(own.regions, encode(colour_encoder(None), torch.zeros(1, 3, 64, 64)))


def test_a_bad_photograph_of_ones_own(tmp_path, capsys):
    (tmp_path / "config.yaml").write_text("dataset: flickr8k\n")
    (tmp_path / "a.jpg").write_bytes(b"text")
    assert command_line("show", tmp_path, "--photo", tmp_path / "a.jpg") == 1
    assert_one_line(capsys, "a.jpg cannot be read")


def weights_of_another(path):
    safetensors.torch.save_file({"conv1.weight": torch.zeros(64, 3, 7, 7)}, path)


def overlapping_masks(path):
    classes, masks = ["background", "person", "dog"], np.ones((1, 2, 3, 3), bool)
    np.savez(path, names=["test1.jpg"], classes=classes, masks=masks)


@pytest.mark.parametrize(
    ("write", "arguments", "message"),
    [
        (weights_of_another, ["--encoder", "mobilenet_v2", "--encoder-weights"], "expected MobileNetV2's weights"),
        (weights_of_another, ["--encoder-weights"], "encoder_weights are of mobilenet_v2, but encoder is own"),
        (overlapping_masks, ["--maps"], "masks of person and dog overlap in test1.jpg at row 0, column 0"),
        (lambda path: None, ["--maps"], "file.npz is missing"),
    ],
    ids=["architecture", "encoder", "masks", "missing"],
)
def test_bad_weights_and_maps_stop_the_run_before_it_starts(write, arguments, message, tmp_path, capsys):
    write_flickr8k(tmp_path)
    write(tmp_path / "file.npz")
    options = photograph_options(tmp_path, tmp_path / "run", *arguments, tmp_path / "file.npz")
    assert command_line("train", *options) == 1
    assert_one_line(capsys, message)
    assert not (tmp_path / "run").exists()


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
        (cut_off, ["test1.jpg", "cannot be read"]),
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
    assert command_line("train", *arguments, "--no-progress", "--out", tmp_path / "run") in (1, 2)
    assert_one_line(capsys, part)
