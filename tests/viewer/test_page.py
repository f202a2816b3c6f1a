"""The page: its parts, what is kept of the samples, and that no word is read as markup."""

import io
import json
from base64 import b64decode
from html.parser import HTMLParser
from itertools import pairwise

import pytest
import torch
from PIL import Image

from pyro_attention.analysis import GoldAlignment, credible_intervals
from pyro_attention.viewer import MOST_SAMPLES, AlignmentView, RegionView, fragment, heads_view, write_viewer
from pyro_attention.viewer.page import index_entry, payload
from tests.viewer.samples import MARKUP, caption, draws, pair


class Page(HTMLParser):
    """The elements of a page with their attributes, and the text of each script by its id."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.data, self.open = [], {}, []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in ("meta", "img", "input"):
            self.open.append((tag, dict(attributes).get("id")))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, text):
        if self.open and self.open[-1][0] == "script" and self.open[-1][1]:
            self.data[self.open[-1][1]] = self.data.get(self.open[-1][1], "") + text

    def all(self, tag):
        return [attributes for found, attributes in self.elements if found == tag]


@pytest.fixture
def written(tmp_path):
    def write(*views, title="A title", **options):
        write_viewer(tmp_path / "page.html", views, title=title, **options)
        assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
        return Page((tmp_path / "page.html").read_text(encoding="utf-8"))

    return write


def test_a_page_is_whole_and_asks_nothing_of_the_network(written):
    page = written(pair(), caption())
    assert page.open == []
    (policy,) = [found["content"] for found in page.all("meta") if "http-equiv" in found]
    assert policy.startswith("default-src 'none'; img-src data:;")
    addresses = [value for _, found in page.elements for name, value in found.items() if name in ("src", "href")]
    assert addresses == []
    assert set(page.data) == {"viewer-index", "viewer-0", "viewer-1"}


def test_words_are_no_markup(written):
    page = written(pair(source=f"das {MARKUP}", target=f"the {MARKUP}"), title=MARKUP, text=MARKUP)
    assert page.open == []
    assert page.all("img") == []
    assert page.all("b") == []
    assert json.loads(page.data["viewer-0"])["source"] == ["das", *MARKUP.split()]


def test_mean_and_interval_are_of_all_samples():
    samples = draws(3, 4, 500)
    (panel,) = payload(AlignmentView(source=list("abcd"), target=list("xyz"), posterior=samples))["panels"]
    found = credible_intervals(samples, level=0.9)
    assert torch.tensor(panel["mean"]).equal((1000 * found.mean).round().long())
    for row, links in enumerate(panel["links"]):
        for column, low, high, text in links:
            assert [low, high] == [round(1000 * end[row, column].item()) for end in (found.low, found.high)]
            assert len(text) == MOST_SAMPLES
    kept = {(row, link[0]) for row, links in enumerate(panel["links"]) for link in links}
    assert kept == {(row, column) for row, column in (found.high >= 0.01).nonzero().tolist()}


@pytest.mark.parametrize("count", [2, 41, 1000])
def test_samples_are_drawn_evenly(count):
    ramp = torch.linspace(0, 1, count).view(-1, 1, 1)
    view = AlignmentView(source=["a", "b"], target=["x"], posterior=torch.cat([ramp, 1 - ramp], -1))
    digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    drawn = [digits.index(letter) for letter in payload(view)["panels"][0]["links"][0][0][3]]
    assert len(drawn) == min(count, MOST_SAMPLES)
    assert (drawn[0], drawn[-1]) == (0, 63)
    assert drawn == sorted(drawn)
    steps = [after - before for before, after in pairwise(drawn)]
    assert max(steps) - min(steps) <= 2


def test_small_samples_are_as_exact_as_large_ones():
    samples = torch.linspace(0.02, 0.05, 30).view(-1, 1, 1).expand(-1, 1, 20)
    view = RegionView(words=["dog"], picture=torch.zeros(4, 5, dtype=torch.uint8), grid=(4, 5), posterior=samples)
    (panel,) = payload(view)["panels"]
    assert panel["largest"] == 50
    assert len(set(panel["links"][0][0][3])) == 30


def test_numbers_of_the_list():
    sure, unsure = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.5]])
    words = {"source": ["a", "b"], "target": ["x"]}
    view = AlignmentView(**words, posterior={"one": sure, "two": unsure}, prior={"one": unsure})
    assert index_entry(view) == {
        "title": "", "text": "a b", "words": "a b x", "uncertainty": 0.5, "most": 0.5, "width": None, "difference": 0.5,
    }  # fmt: skip
    alone = index_entry(AlignmentView(**words, posterior=torch.stack([sure, unsure])))
    assert alone["width"] == pytest.approx(0.45)
    assert alone["difference"] is None
    against_prior = index_entry(AlignmentView(**words, posterior=sure, prior=unsure))
    assert (against_prior["uncertainty"], against_prior["difference"]) == (0, 0.5)


@pytest.mark.parametrize("channels", [(), (3,)], ids=["grey", "colour"])
def test_pictures_are_kept_as_they_are(channels):
    picture = torch.randint(0, 256, (*channels, 5, 7), dtype=torch.uint8)
    view = RegionView(words=["a"], picture=picture, grid=(1, 2), posterior=draws(1, 2))
    address = payload(view)["picture"]
    with Image.open(io.BytesIO(b64decode(address.removeprefix("data:image/png;base64,")))) as image:
        pixels = torch.tensor(list(image.tobytes()), dtype=torch.uint8)
        assert image.size == (7, 5)
    assert pixels.equal((picture.permute(1, 2, 0) if channels else picture).flatten())


WEIGHTS = draws(2, 3)
REGIONS = {"words": ["dog"], "grid": (1, 2), "posterior": draws(1, 2)}
HEADS = {"encoder.0": torch.full((5, 1, 2, 3, 3), 1 / 3)}


BEFORE = GoldAlignment(frozenset({(-1, 0), (0, 0)}))  # as of links counted from 1 that were counted from 0
OUTSIDE = GoldAlignment(frozenset({(2, 1)}), frozenset({(3, 0)}))  # of three source words and two target words


def alignment(**options):
    return AlignmentView(**{"source": ["a", "b", "c"], "target": ["x", "y"]} | options)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: alignment(posterior=draws(2, 4)), ValueError,
         r"posterior has weights of shape \(30, 2, 4\), expected \[S, 2, 3\]"),
        (lambda: alignment(posterior={"a": WEIGHTS}, prior={"b": WEIGHTS}), ValueError, r"prior has \['b'\]"),
        (lambda: alignment(posterior=WEIGHTS, source="abc"), TypeError, "columns are 'abc', expected a sequence"),
        (lambda: RegionView(picture=torch.zeros(4, 4), **REGIONS), ValueError, "picture has torch.float32"),
        (lambda: heads_view(HEADS, ["a", "b", "c"], item=1), ValueError, "with an item 1 in the batch"),
        (lambda: heads_view(HEADS, ["a", "b", "c"], mask=torch.zeros(3)), ValueError, "with one True"),
        (lambda: fragment([]), ValueError, "views are empty"),
        (lambda: alignment(posterior=WEIGHTS, gold=OUTSIDE), ValueError, r"gold has the link \(3, 0\), expected"),
        (lambda: alignment(posterior=WEIGHTS, gold=BEFORE), ValueError, r"gold has the link \(-1, 0\), expected"),
    ],
)  # fmt: skip
def test_wrong_views(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_an_unknown_kind_of_view_is_refused():
    with pytest.raises(ValueError, match="kind is 'link', expected 'attention' or 'links'"):
        AlignmentView(source=["a"], target=["b"], posterior=torch.ones(1, 1), kind="link")


def test_the_lead_of_a_page_is_that_of_its_kind(tmp_path):
    for kind, words in (("links", "probability of a link"), ("attention", "attention weight")):
        view = AlignmentView(source=["a"], target=["b"], posterior=torch.ones(1, 1), kind=kind)
        write_viewer(tmp_path / f"{kind}.html", [view], title="A title")
        assert f"the larger the {words} between both" in (tmp_path / f"{kind}.html").read_text()


def test_heads_of_a_bare_tensor_are_refused():
    with pytest.raises(TypeError, match="samples are a tensor, expected the dict of sample_posterior"):
        heads_view(torch.rand(5, 1, 2, 3, 3), ["a", "b", "c"])
