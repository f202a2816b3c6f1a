"""The page of captions: what a view holds of a network's attention."""

import pytest
import torch
from experiments.captioning.page import region_view, write_page

from experiments.captioning.config import CaptioningConfig
from experiments.captioning.data import load_images
from experiments.captioning.model import build
from experiments.datasets.text.vocabulary import train_tokenizer
from experiments.files import UserError
from tests.experiments.captioning.tiny_captions import TINY, small_scenes

CAPTION = "a seven left of a two"


@pytest.fixture
def network(monkeypatch):
    """A network that is not trained, and the images that it describes."""
    small_scenes(monkeypatch)

    def network(guide):
        config = CaptioningConfig(**TINY, guide=guide, device="cpu")
        data = load_images(config)["test"]
        vocabulary = train_tokenizer([caption for texts in data.captions for caption in texts], size=300)
        return build(config, vocabulary, data.regions.size(2)), data

    return network


@pytest.mark.parametrize(("guide", "count", "has_prior"), [("weibull", 200, True), ("soft", 1, False)])
def test_a_view_has_the_weights_of_every_word(network, guide, count, has_prior):
    trained, data = network(guide)
    view = region_view(trained, data, 1, CAPTION)
    assert view.words == [*CAPTION.split(), "(end)"]
    assert view.posterior.shape == (count, 7, data.regions.size(1))
    torch.testing.assert_close(view.posterior.sum(-1), torch.ones(count, 7))
    assert (view.prior is not None) == has_prior
    # paper is white and ink is black
    assert view.picture.equal((255 * (1 - data.pictures[1])).round().byte())


def test_a_page_of_some_images(network, tmp_path):
    trained, data = network("soft")
    page = write_page(trained, data, [CAPTION] * len(data), [0, 2], tmp_path / "captions.html").read_text()
    assert page.count('type="application/json"') == 3
    assert "image 2" in page


def test_negative_weights_have_no_page(network, tmp_path):
    trained, data = network("gaussian")
    with pytest.raises(UserError, match="expected 0 to 1"):
        write_page(trained, data, [CAPTION] * len(data), [0], tmp_path / "captions.html")
    assert list(tmp_path.iterdir()) == []
