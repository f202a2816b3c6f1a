"""What a view takes, and what it says of bad input."""

import re

import pyro
import pytest
import torch

from pyro_attention import AttentionGuide, MultiheadAttention, Weibull, sample_posterior
from pyro_attention.viewer import AlignmentView, HeadsView, RegionView, heads_view
from tests.viewer.samples import caption, draws, pair

WORDS = {"source": ["a", "b", "c"], "target": ["x", "y"]}
PICTURE = torch.zeros(4, 4, dtype=torch.uint8)


def test_prior_and_posterior_of_schemes_in_order():
    names = [(panel.group, panel.name, len(panel.samples)) for panel in pair().panels]
    assert names == [("weibull", "prior", 1), ("weibull", "posterior", 30), ("soft", "posterior", 1)]


def test_heads_of_a_model():
    layer = MultiheadAttention(8, 2, name="encoder")
    x = torch.randn(2, 4, 8)

    def model():
        with pyro.plate("data", 2):
            layer(x, x, x)

    guide = AttentionGuide(model, Weibull())
    samples = sample_posterior(guide, num_samples=6)
    tokens, mask = ["<s>", "a", "b", "<pad>"], torch.tensor([True, True, True, False])
    view = heads_view(samples, tokens, item=1, mask=mask, title="one")
    assert view.queries == tokens[:3]
    assert [(panel.group, panel.name) for panel in view.panels] == [("encoder", "head 0"), ("encoder", "head 1")]
    torch.testing.assert_close(view.panels[1].samples, samples["encoder"][:, 1, 1, :3, :3])


WEIGHTS = draws(2, 3)


@pytest.mark.parametrize(
    ("options", "error", "part"),
    [
        ({"posterior": WEIGHTS.mT}, ValueError, "expected"),
        ({"posterior": draws(2, 4)}, ValueError, r"posterior has weights of shape \(30, 2, 4\), expected \[S, 2, 3\]"),
        ({"posterior": {"soft": draws(3, 3)}}, ValueError, "posterior of soft has weights of shape"),
        ({"posterior": WEIGHTS * torch.nan}, ValueError, "180 of 180 posterior weights are NaN"),
        ({"posterior": WEIGHTS - 1}, ValueError, "posterior weights run from"),
        ({"posterior": WEIGHTS.long()}, TypeError, "posterior weights have dtype torch.int64"),
        ({"posterior": [[0.5]]}, TypeError, "posterior weights have type list"),
        ({"posterior": {}}, ValueError, "posterior is an empty mapping"),
        ({"posterior": WEIGHTS, "prior": draws(2, 2)[0]}, ValueError, "prior has weights of shape"),
        ({"posterior": WEIGHTS, "prior": {"soft": WEIGHTS}}, TypeError, "posterior and prior are a Tensor and a dict"),
        ({"posterior": {"a": WEIGHTS}, "prior": {"b": WEIGHTS}}, ValueError, r"prior has \['b'\]"),
        ({"posterior": WEIGHTS, "source": "abc"}, TypeError, "columns are a str, expected a sequence of words"),
        ({"posterior": WEIGHTS, "source": ["a", 1, "c"]}, TypeError, "columns hold 1, expected texts"),
        ({"posterior": WEIGHTS, "target": []}, ValueError, "rows are empty"),
    ],
)
def test_bad_alignments(options, error, part):
    with pytest.raises(error, match=part):
        AlignmentView(**(WORDS | options))


@pytest.mark.parametrize(
    ("options", "error", "part"),
    [
        ({"picture": PICTURE.float()}, TypeError, "picture is of torch.float32"),
        ({"picture": "dog.png"}, TypeError, "picture is of str"),
        ({"picture": PICTURE.expand(4, 4, 4)}, ValueError, r"picture has shape \(4, 4, 4\)"),
        ({"grid": (0, 2)}, ValueError, r"grid is \(0, 2\)"),
        ({"grid": (2, 3)}, ValueError, r"expected \[S, 1, 6\]: caption by region"),
    ],
)
def test_bad_captions(options, error, part):
    with pytest.raises(error, match=part):
        RegionView(**({"words": ["dog"], "picture": PICTURE, "grid": (1, 2), "posterior": draws(1, 2)} | options))


@pytest.mark.parametrize(
    ("shape", "options", "part"),
    [
        ((5, 2, 3, 3), {}, "samples of site 'encoder.0' have shape (5, 2, 3, 3)"),
        ((5, 1, 2, 4, 4), {}, "expected [S, batch, H, 3, 3] with an item 0"),
        ((5, 1, 2, 3, 3), {"item": 1}, "with an item 1 in the batch"),
        ((5, 1, 2, 3, 3), {"mask": torch.tensor([1, 1])}, "mask has shape (2,), expected [3]"),
        ((5, 1, 2, 3, 3), {"mask": torch.tensor([0, 0, 0])}, "with one True"),
    ],
)
def test_bad_samples_of_heads(shape, options, part):
    with pytest.raises(ValueError, match=re.escape(part)):
        heads_view({"encoder.0": torch.full(shape, 1 / 3)}, ["a", "b", "c"], **options)


def test_heads_need_one_text():
    with pytest.raises(ValueError, match=r"posterior of site 'encoder' has shape \(3, 3\)"):
        HeadsView(queries=["a", "b", "c"], posterior={"encoder": torch.full((3, 3), 1 / 3)})


def test_regions_are_named_row_by_row():
    assert caption().columns[3] == "row 2, column 1"
