"""Pictures of graphs, and the benchmark of graph attention."""

from pathlib import Path

import pytest
import torch

from experiments.graph.figures import neighbourhood
from experiments.report import figures


def test_reliability_of_known_predictions() -> None:
    # 80 % sure and right in 80 of 100 cases: the only point lies on the diagonal
    probabilities = torch.tensor([[0.8, 0.2]]).repeat(100, 1)
    labels = torch.tensor([0] * 80 + [1] * 20)
    figure = figures.reliability_diagram({"honest": (probabilities, labels)})
    (line,) = [line for line in figure.axes[0].lines if line.get_label() == "accuracy"]
    assert line.get_xdata()[0] == pytest.approx(0.8)
    assert line.get_ydata()[0] == pytest.approx(0.8)


@pytest.mark.parametrize("with_images", [True, False])
def test_neighbourhood_shows_mean_and_interval(tmp_path: Path, with_images: bool) -> None:
    samples = torch.tensor([[0.1, 0.6, 0.3], [0.3, 0.4, 0.3]])
    figure = neighbourhood(
        samples, node=2, neighbours=[0, 1, 2], images=torch.rand(3, 8, 8) if with_images else None,
        labels=torch.tensor([0, 1, 1]), title="a node",
    )  # fmt: skip
    bars = figure.axes[1]
    assert [bar.get_width() for bar in bars.patches[:3]] == pytest.approx([0.5, 0.3, 0.2])
    assert [label.get_text() for label in bars.get_yticklabels()] == ["1", "itself", "0"]
    assert figures.save(figure, tmp_path / "new" / "figure.png").stat().st_size > 1000
