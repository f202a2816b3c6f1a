"""Pictures of the experiments can be read: all texts inside, axes named, a title, and the number of what is shown."""

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.legend import Legend

from experiments.mode_collapse.report import points_figure
from experiments.normalizer_report import hybrid_figure, mass_counts, mass_figure
from experiments.report.figures import level_curves, reliability_panels
from pyro_attention.plots import intervals, patches, reliability
from tests.pictures import faults


def every_text(figure: Figure) -> str:
    """All that is written in a figure, in one line."""
    figure.canvas.draw()
    texts = [text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))]
    return " ".join(" ".join(texts).split())


def probabilities(count: int = 50) -> tuple[torch.Tensor, torch.Tensor]:
    confidence = torch.rand(count)
    return confidence, torch.rand(count) < confidence


@pytest.mark.parametrize(
    "names", [["a"], ["soft", "an aligner with a long name, not trained on the test text"], "abcde"]
)
def test_reliability_panels(names):
    figure = reliability_panels({name: probabilities() for name in names}, confidence="probability", right="right")
    assert faults(figure) == []
    shown = every_text(figure)
    assert shown.count("(50 items)") == len(names)
    for words in ("as it should be", "share that is right", "share of the items"):
        assert words in shown


@pytest.mark.parametrize("rows", [2, 6])
@pytest.mark.parametrize("metrics", [1, 2, 3, 4, 5])
def test_curves_over_levels(metrics, rows):
    values = [[0.5, 0.6, 0.8], [0.7, 0.8, 0.9]]
    shown = {f"metric {n}": {f"row {row}, with words": values for row in range(rows)} for n in range(metrics)}
    title = "Node classification with few labels, on a graph whose neighbors often have different classes"
    figure = level_curves(shown, ["2", "5"], axis="labels per class", title=title, aims={"metric 0": 0.9})
    assert faults(figure) == []
    texts = every_text(figure)
    assert "3 seeds" in texts
    assert "metric 0 (dashed: 0.9)" in texts
    assert title in texts
    (legend,) = figure.findobj(Legend)
    assert [text.get_text() for text in legend.get_texts()] == [f"row {row}, with words" for row in range(rows)]
    dashed = [line for axes in figure.axes for line in axes.get_lines() if line.get_linestyle() == "--"]
    assert [line.get_ydata()[0] for line in dashed] == [0.9]


def test_curves_of_one_seed_have_no_errors():
    figure = level_curves({"accuracy": {"soft": [[0.5], []]}}, ["a", "b"], axis="level", title="title")
    assert faults(figure) == []
    assert "one seed" in every_text(figure)


def test_pictures_of_a_pretraining():
    counts = mass_counts([np.array([[0.0, 0.5, 1.5]], np.float32)])
    figure = mass_figure({"softmax": counts, "hybrid": counts})
    assert faults(figure) == []
    assert "hybrid: 3 keys" in every_text(figure)
    figure = hybrid_figure({"layers.0": [0.5], "layers.1": [0.4]})
    assert faults(figure) == []
    assert all(float(tick).is_integer() for tick in figure.axes[0].get_xticks())


def test_the_clusters():
    figure = points_figure({"softmax": torch.randn(3, 20, 2), "softmax, Weibull": torch.randn(3, 20, 2)}, (15, 5))
    assert faults(figure) == []
    assert "15 points" in every_text(figure)


def test_plots_of_the_library_name_what_they_show():
    axes = Figure(layout="constrained").subplots(1, 3)
    reliability(*probabilities(), axes=axes[0]).set_title("reliability")
    intervals(torch.rand(20, 3).softmax(-1), ["a", "b", "c"], axes=axes[1]).set(title="intervals", xlabel="key")
    patches(torch.rand(8, 8), torch.rand(4).softmax(-1), (2, 2), axes=axes[2]).set_title("patches")
    assert faults(axes[0].figure) == []
    assert "share of the 50 items" in every_text(axes[0].figure)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_plots_of_the_library_stay_on_the_device_of_what_they_show(dtype):
    """In any precision; tensors here lie elsewhere than what is made without a device."""
    weights, draws = torch.rand(4).softmax(-1).to(dtype), torch.rand(20, 3).softmax(-1).to(dtype)
    confidence, ink, photograph = torch.rand(50).to(dtype), torch.rand(8, 8).to(dtype), torch.zeros(3, 8, 8)
    axes = Figure(layout="constrained").subplots(1, 4)
    with torch.device("meta"):
        reliability(confidence, confidence > 0.5, axes=axes[0])
        intervals(draws, ["a", "b", "c"], axes=axes[1])
        patches(ink, weights, (2, 2), axes=axes[2])
        patches(photograph.to(torch.uint8), weights, (2, 2), axes=axes[3])


@pytest.mark.parametrize("confidence", [[0.5, float("nan")], [0.5, 1.5], [-0.5, 0.5], [0.5, 0.5, 0.5]])
def test_what_is_no_confidence_is_refused(confidence):
    with pytest.raises(ValueError, match=r"confidence and right have shapes .* and probabilities in \[0, 1\]"):
        reliability(torch.tensor(confidence), torch.ones(2))
    reliability(torch.tensor([0.0, 1.0000001]), torch.ones(2))  # a mean that is rounded up
