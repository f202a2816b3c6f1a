"""Asking a trained network, also about a photograph of one's own: answers with intervals, and where it looks."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from experiments.datasets.images.captions import open_photograph
from experiments.datasets.images.image_features import GridEncoder, Scale, encode
from experiments.datasets.questions import load
from experiments.datasets.questions.data import Regions
from experiments.datasets.questions.load import regions_of
from experiments.vqa.ask import ask, draw_questions, load_trained, looking_figure, reply_to
from experiments.vqa.config import AskConfig, VQAConfig
from experiments.vqa.data import load_questions, own_photograph
from tests.experiments.datasets.questions.tiny_questions import write_daquar
from tests.experiments.vqa.tiny_questions import command, run_tiny


def test_ask(weibull_run, tmp_path, capsys):
    picture = tmp_path / "picture.png"
    options = ("--place", 2, "--num-samples", 50, "--answers", 3, "--out", picture)
    assert command("ask", weibull_run, "What digit is left of the Zebra?", *options) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0] == "what digit is left of the zebra?"
    assert lines[2].split() == ["answer", "probability", "95%", "interval"]
    rows = [line.split() for line in lines[3:6]]
    for _, probability, low, high in rows:
        assert float(low.strip("[,")) <= float(probability) <= float(high.strip("]"))
    assert [float(row[1]) for row in rows] == sorted((float(row[1]) for row in rows), reverse=True)
    assert "mutual information with the attention" in printed.out
    assert printed.err == "not among the words of the training questions: zebra\n"
    with Image.open(picture) as image:
        assert image.size[0] > 1000  # the scene and two maps


def test_the_intervals_are_those_of_the_samples(weibull_run):
    trained, questions = load_trained(weibull_run)
    reply = reply_to(trained, questions["test"].regions, ["how", "many"], 1, num_samples=30)
    assert reply.weights.shape == (30, 9)
    torch.testing.assert_close(reply.weights.sum(-1), torch.ones(30))
    samples = reply.outputs.logits.softmax(-1)[:, 0].numpy()
    (row,) = reply.rows(trained.words.answers, 1)
    place = trained.words.answers.index(row["answer"])
    assert place == samples.mean(0).argmax()
    low, high = np.quantile(samples[:, place], [0.025, 0.975])
    assert row["95% interval"] == f"[{low:.3f}, {high:.3f}]"
    entropy = -sum(p * math.log(p) for p in samples.mean(0).tolist())
    assert f"entropy {entropy:.3f} nats" in reply.uncertainty()


@pytest.mark.parametrize(
    ("options", "said", "drawn"),
    [
        ({"model": "bottom_up", "guide": "marginal"}, "there are no intervals", True),
        ({"model": "multi_view", "guide": "weibull"}, "no picture", False),
    ],
)
def test_other_networks(options, said, drawn, tmp_path, capsys):
    run_tiny(tmp_path, test_noise=(0.0,), num_samples=1, **options)
    reply = ask(AskConfig(run=tmp_path, question="how many", num_samples=4))
    assert said in capsys.readouterr().out
    assert (tmp_path / "figures" / "asked.png").is_file() == drawn == (reply.weights is not None)
    assert len(draw_questions(tmp_path, 2)) == 2 * drawn


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["  ?"], "has no word"),
        (["how many", "--place", "6"], "expected numbers from 0 to 5"),
        (["how many", "--photo", "mine.jpg"], "which a photograph is not (dataset is digits); ask about its test part"),
    ],
)
def test_bad_questions(arguments, message, weibull_run, capsys):
    assert command("ask", weibull_run, *arguments) == 1
    assert message in capsys.readouterr().err


def test_a_folder_without_a_run(tmp_path, capsys):
    assert command("evaluate", tmp_path) == 1
    assert "experiments.vqa train" in capsys.readouterr().err


def test_evaluation_with_other_options(weibull_run, capsys):
    assert command("evaluate", weibull_run, "--num-samples", 2, "--test-noise", "[0.25]") == 0
    printed = capsys.readouterr().out
    assert "test_nll/both/noise_0.25" in printed
    assert "noise_0.5" not in printed


@pytest.mark.parametrize("samples", [1, 5])
def test_boxes_are_bars_and_photographs_are_photographs(samples):
    weights = torch.full((samples, 6), 1 / 6)
    boxes = Regions(torch.zeros(1, 6, 2), torch.ones(1, 6, dtype=torch.bool))
    (bars,) = looking_figure(weights, boxes, 0).axes
    assert [patch.get_height() for patch in bars.patches] == pytest.approx([1 / 6] * 6)
    cells = replace(boxes, grid=(2, 3), pictures=torch.zeros(1, 3, 4, 6, dtype=torch.uint8))
    maps = looking_figure(weights, cells, 0).axes
    assert len(maps) == (3 if samples == 1 else 5)  # panels, and a scale for every map


# photographs of one's own


def test_a_test_picture_is_answered_as_at_its_place(easy_run, tmp_path):
    with np.load(easy_run.parent / "easy-vqa" / "test_images.npz") as arrays:
        Image.fromarray(arrays["images"][4]).save(tmp_path / "green.png")
    cache = easy_run.parent / "easy-vqa" / "cache"
    made = sorted(cache.iterdir())
    options = {"run": easy_run, "question": "What color is the shape?", "num_samples": 5, "out": tmp_path / "asked.png"}
    other, same = (ask(AskConfig(place=place, **options)) for place in (0, 4))
    own = ask(AskConfig(photo=tmp_path / "green.png", **options))
    torch.testing.assert_close(own.outputs.logits, same.outputs.logits)
    torch.testing.assert_close(own.weights, same.weights)
    assert not torch.allclose(own.outputs.logits, other.outputs.logits, rtol=1e-3)
    assert sorted(cache.iterdir()) == made


def test_regions_of_a_test_photograph_with_mobilenet(tmp_path, monkeypatch):
    torch.manual_seed(0)
    encoder = GridEncoder("tiny", torch.nn.Conv2d(3, 5, 32, stride=32), Scale((0.5, 0.4, 0.3), (0.5, 0.5, 0.5)))
    monkeypatch.setattr(load, "mobilenet_grid", {tmp_path / "weights": encoder}.get)
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
    assert not own_photograph(open_photograph(photo), replace(config, blind=True), test).features.any()


def test_regions_of_one_photograph():
    encoder = GridEncoder("tiny", torch.nn.Conv2d(3, 5, 4, stride=4), Scale())
    like = Regions(torch.zeros(0, 4, 9), torch.zeros(0, 4), (2, 2), torch.zeros(0, 3, 8, 8), encoder)
    image = Image.new("RGB", (1280, 320), (200, 30, 40))
    regions = regions_of(image, like)
    assert regions.pictures.shape == (1, 3, 160, 640)
    assert regions.pictures[0, :, 9, 9].tolist() == [200, 30, 40]
    plain = torch.tensor([200, 30, 40], dtype=torch.uint8).view(1, 3, 1, 1).expand(1, 3, 8, 8)
    assert regions.grid == (2, 2)
    assert regions.mask.all()
    assert torch.equal(regions.features[..., :5], encode(encoder, plain))
    assert torch.equal(
        regions.features[0, :, 5:], torch.tensor([[1, 0, 1, 0], [1, 0, 0, 1], [0, 1, 1, 0], [0, 1, 0, 1]])
    )
    with pytest.raises(ValueError, match="those of another one cannot be made"):
        regions_of(image, replace(like, encoder=None))


def test_photographs_are_turned_upright(tmp_path):
    image, exif = Image.new("RGB", (20, 10)), Image.Exif()
    exif[0x0112] = 6  # the top is at the right
    image.save(tmp_path / "a.jpg", exif=exif)
    assert open_photograph(tmp_path / "a.jpg").size == (10, 20)


def test_photographs_that_cannot_be_asked_about(easy_run, weibull_run, tmp_path, capsys):
    def said(folder, photo):
        assert command("ask", folder, "Is there a shape?", "--photo", photo) == 1
        (line,) = capsys.readouterr().err.splitlines()
        return line

    photo = tmp_path / "a.png"
    photo.write_bytes(b"none")
    line = said(easy_run, photo)
    assert "a.png cannot be read" in line
    assert "--skip-bad" not in line
    text = (weibull_run / "config.yaml").read_text()
    (tmp_path / "config.yaml").write_text(text.replace("dataset: digits", "dataset: vqa_v2"))
    assert "the detector that has made them is not at hand (dataset is vqa_v2)" in said(tmp_path, photo)
    # an encoder that is lost is not trained again
    Image.new("RGB", (9, 9)).save(photo)
    (weights,) = (easy_run.parent / "easy-vqa" / "cache").glob("content-encoder-*.npz")
    kept = weights.rename(tmp_path / "weights")
    try:
        assert "is missing; expected the weights of the encoder" in said(easy_run, photo)
        assert not weights.exists()
    finally:
        kept.rename(weights)
