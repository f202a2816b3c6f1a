"""Pictures of alignments; how they look was judged by eye."""

import pytest
import torch
from matplotlib.patches import Rectangle

from experiments.nmt.alignments import PairAlignment
from experiments.nmt.figures import agreement_heatmap, pair_figure
from experiments.report.figures import save
from pyro_attention.analysis import GoldAlignment
from tests.analysis.random_inputs import aligned, weights_of

SOURCE = ["Über", "Donaudampfschifffahrtsgesellschaften", "kostet", "$5", "daß", "."]
TARGET = ["On", "{steam}", "$5", "_that^", "."]
GOLD = GoldAlignment(frozenset({(0, 0), (3, 2)}), frozenset({(1, 1)}))


def labels(axis, which):
    return [text.get_text() for text in getattr(axis, f"get_{which}ticklabels")()]


def boxes(axis):
    """(x, y) and line style of each outlined cell."""
    patches = [patch for patch in axis.patches if isinstance(patch, Rectangle)]
    return {(round(patch.get_x()), round(patch.get_y()), patch.get_linestyle()) for patch in patches}


@pytest.mark.parametrize("prior", [weights_of(5, 6), None], ids=["beside the prior", "weights alone"])
def test_the_posterior(prior, tmp_path):
    posterior = weights_of(1, 5, 6, seed=1)
    pair = PairAlignment(SOURCE, TARGET, prior, posterior)
    figure = pair_figure(pair, gold=GOLD, title="one", languages=("de", "en"))
    shown = [posterior[0]] if prior is None else [prior, posterior[0]]
    assert len(figure.axes) == 2 * len(shown)  # and the colour bars
    for axis, weights in zip(figure.axes, shown, strict=False):
        assert torch.tensor(axis.images[0].get_array()).equal(weights.float())
        assert axis.images[0].get_clim() == (0, 1)
        assert labels(axis, "x") == ["Über", "Donaudampfschifff…", "kostet", r"\$5", "daß", "."]
        assert labels(axis, "y") == ["On", "{steam}", r"\$5", "_that^", "."]
        assert boxes(axis) == {(0, 0, "-"), (3, 2, "-"), (1, 1, ":")}
        assert (axis.get_xlabel(), axis.get_ylabel()) == ("de", "en")
        # half of the colours are of weights below a quarter, as most are in a long sentence
        assert axis.images[0].norm(0.25) == pytest.approx(0.5)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["sure gold link", "possible gold link"]
    assert save(figure, tmp_path / "figure.png").stat().st_size > 10_000


def test_title_stands_above_the_words(tmp_path):
    words = ["Beruhigungsmittel"] * 12
    figure = pair_figure(PairAlignment(words, words, weights_of(12, 12), weights_of(1, 12, 12)), title="Title")
    save(figure, tmp_path / "figure.png")
    title = figure._suptitle.get_window_extent()
    assert all(axis.get_tightbbox().y1 <= title.y0 for axis in figure.axes[:2])


def test_intervals():
    samples = weights_of(50, 5, 6)
    figure = pair_figure(PairAlignment(SOURCE, TARGET, None, samples))
    left, right = figure.axes[:2]
    assert (left.get_title(), right.get_title()) == ("mean weight", "width of the 90% credible interval")
    expected = samples.quantile(0.95, dim=0) - samples.quantile(0.05, dim=0)
    torch.testing.assert_close(torch.tensor(right.images[0].get_array()), expected.float())
    assert not figure.legends
    assert boxes(left) == set()


@pytest.mark.parametrize("shape", [(1, 1), (40, 3), (3, 40), (40, 40)])
def test_sizes(shape, tmp_path):
    target, source = (["Wort"] * count for count in shape)
    figure = pair_figure(PairAlignment(source, target, weights_of(*shape), weights_of(1, *shape)))
    save(figure, tmp_path / "figure.png")
    assert max(figure.get_size_inches()) < 30


def test_agreement(tmp_path):
    alignments = {"soft": [aligned("0-0 1-1")], "categorical_enumerated_long": [aligned("0-0")]}
    figure = agreement_heatmap(alignments, title="Agreement")
    axis = figure.axes[0]
    assert [text.get_text() for text in axis.texts] == ["1.00", "0.67", "0.67", "1.00"]
    assert labels(axis, "y") == ["soft", "categorical_enume…"]
    save(figure, tmp_path / "figure.png")


def test_wrong_words():
    with pytest.raises(ValueError, match=r"'posterior' has weights of shape \(5, 4\) for 5 target and 6 source words"):
        pair_figure(PairAlignment(SOURCE, TARGET, weights_of(5, 6), weights_of(1, 5, 4)))
