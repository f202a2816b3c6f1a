"""Asking about a photograph of one's own: the run's encoder makes its regions, and bad input."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from experiments.datasets.images.image_features import GridEncoder, Scale, encode
from experiments.datasets.images.image_files import ImageFile, open_photograph
from experiments.datasets.questions import photographs
from experiments.datasets.questions.data import Regions
from experiments.datasets.questions.photographs import regions_of
from experiments.harness.cli import run_commands
from experiments.vqa.ask import ask
from experiments.vqa.config import AskConfig, VQAConfig
from experiments.vqa.data import load_questions, own_photograph
from experiments.vqa.train import run
from tests.experiments.datasets.questions.tiny_questions import write_daquar, write_easy_vqa
from tests.experiments.vqa.tiny_questions import tiny_config


def trained_on(name, folder, **options):
    """Folder of a finished run on a tiny data set in the same folder."""
    shared = {"encoder_epochs": 1, "test_noise": (0.0,), "num_samples": 2, "data_root": folder}
    run(tiny_config(folder / "run", dataset=name, **shared, **options))
    return folder / "run"


@pytest.fixture(scope="module")
def easy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("easy")
    write_easy_vqa(folder)
    return trained_on("easy_vqa", folder, guide="weibull")


def test_a_test_picture_is_answered_as_at_its_place(easy, tmp_path, capsys):
    with np.load(easy.parent / "easy-vqa" / "test_images.npz") as arrays:
        Image.fromarray(arrays["images"][4]).save(tmp_path / "green.png")
    cache = easy.parent / "easy-vqa" / "cache"
    made = sorted(cache.iterdir())
    options = {"run": easy, "question": "What color is the shape?", "num_samples": 5, "out": tmp_path / "asked.png"}
    other, same = (ask(AskConfig(place=place, **options)) for place in (0, 4))
    capsys.readouterr()
    own = ask(AskConfig(photo=tmp_path / "green.png", **options))
    torch.testing.assert_close(own.outputs.logits, same.outputs.logits)
    torch.testing.assert_close(own.weights, same.weights)
    assert not torch.allclose(own.outputs.logits, other.outputs.logits, rtol=1e-3)
    printed = capsys.readouterr().out
    assert "95% interval" in printed
    assert "mutual information with the attention" in printed
    with Image.open(tmp_path / "asked.png") as picture:
        assert picture.size[0] > 1000  # the photograph and two maps
    assert sorted(cache.iterdir()) == made


def test_regions_of_a_test_photograph_with_mobilenet(tmp_path, monkeypatch):
    torch.manual_seed(0)
    encoder = GridEncoder("tiny", torch.nn.Conv2d(3, 5, 32, stride=32), Scale((0.5, 0.4, 0.3), (0.5, 0.5, 0.5)))
    monkeypatch.setattr(photographs, "mobilenet_grid", {tmp_path / "weights": encoder}.get)
    photo = write_daquar(tmp_path) / "images" / "image6.png"
    config = VQAConfig(
        dataset="daquar", encoder="mobilenet_v2", encoder_weights=tmp_path / "weights", data_root=tmp_path, size=64,
        progress=False,
    )  # fmt: skip
    test = load_questions(config)["test"].regions
    regions = own_photograph(open_photograph(photo), config, test)
    torch.testing.assert_close(regions.features[0], test.features[1])
    assert not torch.allclose(regions.features[0], test.features[0], rtol=1e-2)
    assert regions.grid == test.grid
    assert regions.pictures.shape == (1, 3, 30, 40)  # its own shape, and not the square's


def test_regions_of_one_photograph():
    encoder = GridEncoder("tiny", torch.nn.Conv2d(3, 5, 4, stride=4), Scale())
    like = Regions(torch.zeros(0, 4, 9), torch.zeros(0, 4), (2, 2), torch.zeros(0, 3, 8, 8), encoder)
    image = Image.new("RGB", (1280, 320), (200, 30, 40))
    regions = regions_of(image, like)
    assert regions.pictures.shape == (1, 3, 160, 640)
    assert regions.pictures[0, :, 9, 9].tolist() == [200, 30, 40]
    assert image.size == (1280, 320)
    plain = torch.tensor([200, 30, 40], dtype=torch.uint8).view(1, 3, 1, 1).expand(1, 3, 8, 8)
    assert regions.grid == (2, 2)
    assert regions.mask.all()
    assert torch.equal(regions.features[..., :5], encode(encoder, plain))
    assert torch.equal(
        regions.features[0, :, 5:], torch.tensor([[1, 0, 1, 0], [1, 0, 0, 1], [0, 1, 1, 0], [0, 1, 0, 1]])
    )
    with pytest.raises(ValueError, match="those of another one cannot be made"):
        regions_of(image, replace(like, encoder=None))


def test_blind_runs_see_no_photograph(easy):
    config = VQAConfig(dataset="easy_vqa", data_root=easy.parent, encoder_epochs=1, progress=False)
    like, image = load_questions(config)["test"].regions, Image.new("RGB", (9, 9), (200, 30, 40))
    seen, blind = (own_photograph(image, replace(config, blind=value), like) for value in (False, True))
    assert seen.features.any()
    assert not blind.features.any()
    assert blind.features.shape == seen.features.shape == (1, 16, 264)


def test_photographs_are_turned_upright(tmp_path):
    image, exif = Image.new("RGB", (20, 10)), Image.Exif()
    exif[0x0112] = 6  # the top is at the right
    image.save(tmp_path / "a.jpg", exif=exif)
    assert open_photograph(tmp_path / "a.jpg").size == (10, 20)
    assert ImageFile(tmp_path / "a.jpg").open().size == (20, 10)


def asked(folder, photo, capsys):
    """What is said of a photograph that cannot be asked about, in one line."""
    arguments = ["ask", str(folder), "Is there a shape?", "--photo", str(photo)]
    assert run_commands("experiments.vqa.config:COMMANDS", name="experiments.vqa", arguments=arguments) == 1
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_a_bad_photograph(easy, tmp_path, capsys):
    (tmp_path / "a.jpg").write_bytes(b"text")
    line = asked(easy, tmp_path / "a.jpg", capsys)
    assert "a.jpg cannot be read" in line
    assert "--skip-bad" not in line


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.unlink(), "is missing; expected the weights of the encoder"),
        (lambda path: path.write_bytes(b"none"), "expected a numpy archive without pickles"),
    ],
    ids=["missing", "damaged"],
)
def test_an_encoder_that_is_lost_is_not_trained_again(spoil, message, tmp_path, capsys):
    data = write_easy_vqa(tmp_path)
    folder = trained_on("easy_vqa", tmp_path, guide="soft")
    (weights,) = (data / "cache").glob("content-encoder-*.npz")
    spoil(weights)
    before = sorted((data / "cache").iterdir())
    Image.new("RGB", (9, 9)).save(tmp_path / "a.png")
    assert message in asked(folder, tmp_path / "a.png", capsys)
    assert sorted((data / "cache").iterdir()) == before


def test_regions_of_a_detector_cannot_be_made(weibull_run, tmp_path, capsys):
    text = (weibull_run / "config.yaml").read_text()
    (tmp_path / "config.yaml").write_text(text.replace("dataset: digits", "dataset: vqa_v2"))
    assert "the detector that has made them is not at hand (dataset is vqa_v2)" in asked(tmp_path, "a.jpg", capsys)
