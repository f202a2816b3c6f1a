"""The captioning script end to end, on tiny scenes and photographs: schemes, numbers, pictures, and bad input."""

import math

import numpy as np
import pytest
import torch
from PIL import Image

from experiments.captioning.attention import map_scores, pointing
from experiments.captioning.batches import batches
from experiments.captioning.config import CaptioningConfig
from experiments.captioning.task import CaptioningTask, load_images, load_trained, read_config, view_caption
from experiments.data.images import image_features
from experiments.data.images.captions import ImageFile
from experiments.data.images.digit_scenes import word_cells
from experiments.data.images.image_features import encode
from experiments.data.images.region_captions import (
    EncodedCaptions,
    RegionCaptions,
    SegmentationMaps,
    photograph_regions,
)
from experiments.data.text.batches import train_tokenizer
from experiments.folder import read_metrics
from experiments.sequence.alignments import BatchAlignment
from experiments.sequence.evaluation import word_uncertainty
from experiments.sequence.model import predictive_perplexity
from models.decoding import Inference
from models.decoding.next_word import next_word_mixture
from pyro_attention.analysis import decompose_uncertainty
from tests.experiments.captioning.tiny_captions import (
    SIZES,
    TINY,
    color_encoder,
    command_line,
    small_scenes,
    tiny_options,
    write_flickr8k,
)

CAPTION = "a seven left of a two"
# an untrained network writes any character, and not every font has it
pytestmark = pytest.mark.filterwarnings("ignore:Glyph")


@pytest.fixture(autouse=True)
def few_scenes(monkeypatch):
    small_scenes(monkeypatch)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished run of a scheme, which is trained once."""
    folders = {}

    def train(guide):
        if guide not in folders:
            folders[guide] = tmp_path_factory.mktemp(guide)
            CaptioningTask().run(CaptioningConfig(**TINY, guide=guide, warm_start=1, out=folders[guide]))
        return folders[guide]

    return train


def trained_and_data(folder):
    trained = load_trained(folder, 70)
    return trained, load_images(trained.config)["test"]


@pytest.mark.parametrize("guide", ["soft", "weibull", "categorical_enum"])
def test_a_scheme_trains_and_evaluates(guide, finished):
    metrics = read_metrics(finished(guide))
    assert all(math.isfinite(value) for value in metrics.values())
    assert 1 < metrics["test_ppl"] < 400
    assert 0 <= metrics["test_entropy"] <= math.log(9) + 1e-4
    assert metrics["updates"] == SIZES["train"] / TINY["batch_size"]
    trained, data = trained_and_data(finished(guide))
    # the same numbers from the checkpoint
    assert predictive_perplexity(trained, batches(trained, data, references=1)) == pytest.approx(
        metrics["test_ppl"], rel=1e-5
    )


def test_show(finished, tmp_path, capsys):
    page = tmp_path / "captions.html"
    assert command_line("show", finished("soft"), "--images", "[2]", "--out", page) == 0
    assert page.read_text().count('type="application/json"') == 2
    assert "image 2" in page.read_text()
    assert command_line("show", finished("soft"), "--images", "[99]") == 1
    assert "no test image 99" in capsys.readouterr().err
    assert command_line("show", finished("soft"), "--images", "[]") == 1
    assert "--images is empty, expected the number of a test image" in capsys.readouterr().err


@pytest.mark.parametrize("test", [5, 7])
def test_show_after_the_data_have_changed(test, finished, tmp_path, monkeypatch, capsys):
    folder = finished("soft")
    small_scenes(monkeypatch, test=test)
    assert command_line("show", folder, "--images", "[2]", "--out", tmp_path / "captions.html") == 1
    assert f"captions.txt has 6 captions, and the test part {test} images" in capsys.readouterr().err


# where attention is


@pytest.mark.parametrize("wrong", [0, 1])
def test_pointing_of_known_weights(wrong, monkeypatch, finished):
    """All weight is on the right cell, but for one digit on the next one; .6 of it in the prior."""
    trained, data = trained_and_data(finished("weibull"))
    captions = [texts[0] for texts in data.captions]
    absent = next(name for name in ("one", "two", "three", "four") if name not in captions[0])
    captions[0] = f"a {absent}"  # a digit that is not there counts as missed
    cells = [word_cells(data.digits[image], caption) for image, caption in enumerate(captions)]
    assert cells[0] == [-1, -1]

    def align(trained, batch, *, num_samples):
        posterior, missed = torch.zeros(1, *batch.target_out.shape, 9), wrong
        for row, image in enumerate(batch.indices.tolist()):
            words = trained.vocabulary.words(batch.target_out[row, : batch.target_mask[row].sum()].tolist())
            first = next((word for word, cell in enumerate(cells[image]) if cell >= 0), None)
            for place, word in enumerate(words):
                cell = 0 if word is None else max(0, cells[image][word])
                posterior[0, row, place, (cell + (missed and image == 1 and word == first)) % 9] = 1
        return BatchAlignment(0.6 * posterior[0] + 0.4 / 9, posterior)

    monkeypatch.setattr("experiments.captioning.attention.align_batch", align)
    found = pointing(trained, data, captions)
    count = 1 + sum(cell >= 0 for row in cells for cell in row)
    expected = (count - 1 - wrong) / count
    for name in ("", "_samples", "_prior", "_mass"):
        assert found[f"test_pointing{name}"] == pytest.approx(expected)
    assert found["test_pointing_prior_mass"] == pytest.approx(0.6 * expected + 0.4 / 9 * (count - 1) / count)


def test_mass_on_the_class_of_a_noun(tmp_path):
    """A photograph of 1 x 3 cells: a dog in the first, a person in half of the second."""
    captions, files = ["a dog runs", "two red cars and a man"], [ImageFile(tmp_path / "a.jpg")]
    vocabulary = train_tokenizer(captions, size=300)
    data = RegionCaptions(torch.zeros(1, 3, 2), [captions], (1, 3), torch.zeros(1, 3, 4, 4), "t", files=files)
    points = np.zeros((1, 2, 61), int)
    points[:, :, :20], points[:, 0, 20:40] = 1, 2
    maps = SegmentationMaps(["a.jpg"], ["background", "dog", "person"], points)
    pairs = EncodedCaptions(data, vocabulary)
    batch = pairs[[0, 1]]
    weights = torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.2, 0.3]])[:, None, None].expand(2, *batch.target_out.shape, 3)
    prior = torch.tensor([0.1, 0.8, 0.1]).expand(*batch.target_out.shape, 3)
    found = {}
    for name, value in map_scores(maps, data, pairs, vocabulary, batch, BatchAlignment(prior, weights)):
        found.setdefault(name.removeprefix("test_map_"), []).append(value)
    shares = {"dog": torch.tensor([39 / 40, 0, 0]), "person": torch.tensor([1 / 80, 39 / 80, 0])}  # no car in the maps
    for end, values in (("", [0.6, 0.2, 0.2]), ("_prior", [0.1, 0.8, 0.1]), ("_uniform", [1 / 3] * 3),
                        ("_center", [0.0, 1.0, 0.0])):  # fmt: skip
        expected = {name: (torch.tensor(values) @ share).item() for name, share in shares.items()}
        assert found[f"mass{end}"] == pytest.approx([*expected.values()])
        assert found[f"mass{end}_person"] == pytest.approx([expected["person"]])
    assert found["point"] == pytest.approx([39 / 40, 1 / 80], rel=1e-5)  # of the first cell
    assert found["point_prior"] == pytest.approx([0, 39 / 80], rel=1e-5)  # of the second
    assert found["nouns_dog"] == found["nouns_person"] == [1]
    assert "nouns_car" not in found
    soft = BatchAlignment(None, weights[:1])
    assert not any("prior" in name for name, _ in map_scores(maps, data, pairs, vocabulary, batch, soft))
    other = SegmentationMaps(["b.jpg"], maps.classes, points)
    assert not [*map_scores(other, data, pairs, vocabulary, batch, soft)]


def test_the_page_shows_the_weights(finished):
    trained, data = trained_and_data(finished("weibull"))
    view, other = (view_caption(trained, data, place, CAPTION, num_samples=20) for place in (1, 2))
    assert view.rows == [*CAPTION.split(), "(end)"]
    (prior, posterior), (changed, _) = ([panel.samples for panel in one.panels] for one in (view, other))
    assert posterior.shape == (20, 7, data.regions.size(1))
    for weights in (posterior, prior):
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    # the scene is that of the caption; paper is white and ink is black
    assert view.picture.equal((255 * (1 - data.pictures[1])).round().byte())
    assert not torch.allclose(prior, changed, atol=1e-5)


def test_uncertainty_splits(finished):
    trained, data = trained_and_data(finished("weibull"))
    for parameter in trained.model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    batch = next(batches(trained, data, references=1))
    found = word_uncertainty(trained, batch, num_samples=7)
    torch.testing.assert_close(found.total, found.word + found.attention)
    # the library's own split of the first word
    model = trained.model.eval()
    state = model.start(model.encode(batch.source, batch.source_mask), batch.source_mask)
    step = model.step(state, model.embed(batch.target_in[:, 0]))
    torch.manual_seed(trained.config.seed)
    log_probs, _ = next_word_mixture(model, step, Inference(family=trained.family, samples=7))
    parts = decompose_uncertainty(log_probs.exp().transpose(0, 1))
    torch.testing.assert_close(found.total[:, 0], parts.total.float(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found.attention[:, 0], parts.mutual_information.float(), atol=1e-5, rtol=1e-3)
    soft, data = trained_and_data(finished("soft"))
    assert word_uncertainty(soft, next(batches(soft, data, references=1))).attention.abs().max() < 1e-5


# photographs


def photograph_options(root, *given):
    sizes = ["--dataset", "flickr8k", "--size", "64", "--max-epochs", "1", "--data-root", root, "--out", root / "run"]
    return [*tiny_options(), *sizes, *given]


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    """A finished run on photographs with maps of them: left a person, right a dog."""
    root = tmp_path_factory.mktemp("photographs")
    folder = write_flickr8k(root)
    tokens = folder / "text" / "Flickr8k.token.txt"
    tokens.write_text(tokens.read_text().replace("picture .", "man with a dog ."))
    names = sorted(path.name for path in (folder / "Flicker8k_Dataset").iterdir())
    points = np.zeros((len(names), 3, 4), np.uint8)
    points[..., :2], points[..., 2:] = 1, 2
    np.savez(root / "maps.npz", names=names, classes=["background", "person", "dog"], named=points)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(image_features, "mobilenet_grid", color_encoder)
        options = photograph_options(root, "--encoder", "mobilenet_v2", "--maps", root / "maps.npz")
        assert command_line("train", *options, "--guide", "weibull") == 0
    return root / "run"


def test_a_pretrained_encoder_with_maps(described):
    metrics = read_metrics(described)
    assert metrics["test_map_nouns_person"] == metrics["test_map_nouns_dog"] == 3  # one of two captions names both
    # the photograph is one half person, one half dog, in a grid of 2 x 2; both are named as often as each other, and
    # the prior is the same for all words
    for name in ("uniform", "center", "prior"):
        assert metrics[f"test_map_mass_{name}"] == pytest.approx(0.5)
    for name in ("map_mass", "map_point", "distinct_1_posterior"):
        assert 0 <= metrics[f"test_{name}"] <= 1
    assert all(math.isfinite(value) for value in metrics.values())
    assert "test_pointing" not in metrics


def test_a_page_takes_not_the_place_of_the_photograph(tmp_path, capsys):
    photo = tmp_path / "mine.png"
    Image.new("RGB", (8, 8)).save(photo)
    before = photo.read_bytes()
    assert command_line("show", tmp_path, "--photo", photo, "--out", photo, "--overwrite") == 1
    assert "mine.png; name another file by --out" in capsys.readouterr().err
    assert command_line("show", tmp_path, "--out", photo) == 1
    assert "mine.png is there already" in capsys.readouterr().err
    assert photo.read_bytes() == before


def test_a_photograph_of_ones_own(described, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(image_features, "mobilenet_grid", color_encoder)
    # one of the test photographs, so that its caption is known
    photo = described.parent / "flickr8k" / "Flicker8k_Dataset" / "test1.jpg"
    cache = described.parent / "flickr8k" / "cache"
    made = sorted(cache.iterdir())
    assert command_line("show", described, "--photo", photo, "--out", tmp_path / "own.html") == 0
    said, page = capsys.readouterr().out.splitlines()
    assert said == (described / "captions.txt").read_text().splitlines()[1]
    assert page == str(tmp_path / "own.html")
    assert sorted(cache.iterdir()) == made
    test = load_images(read_config(described))["test"]
    assert test.shown(0).shape == (3, 40, 32)  # the shape of the photograph
    own = photograph_regions(Image.new("RGB", (1280, 320)), test)
    assert own.shown(0).shape == (3, 160, 640)
    torch.testing.assert_close(own.regions, encode(color_encoder(None), torch.zeros(1, 3, 64, 64)))
