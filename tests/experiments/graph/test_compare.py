from pathlib import Path

import pytest
import torch

from experiments.benchmarks import graph_attention
from experiments.files import UserError
from experiments.graph.compare import MC_DROPOUT, CompareGraphs, run
from experiments.graph.figures import neighbourhood
from experiments.graph.rows import ROWS
from experiments.harness.results import read_metrics
from experiments.report import figures


def _config(folder: Path, **options: object) -> CompareGraphs:
    sizes = {"seeds": 1, "max_epochs": 2, "num_samples": 2, "workers": 2, "progress": False}
    return CompareGraphs(out=folder, **(sizes | options))  # type: ignore[arg-type]


def test_compare_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "RESULTS.md"
    metrics = run(_config(tmp_path, results=page))
    assert "--task graph" in page.read_text()
    assert "| soft |" in page.read_text()
    printed = capsys.readouterr().out
    for row in [*ROWS, MC_DROPOUT]:
        assert f"\n{row}  " in printed
    assert metrics["soft/kl_gradient_norm"] == 0
    assert metrics["WC/kl_gradient_norm"] > 0
    saved = read_metrics(tmp_path)
    assert saved == pytest.approx(metrics, nan_ok=True)
    for name in ("reliability.png", "neighbourhood.png"):
        assert (tmp_path / "figures" / name).read_bytes().startswith(b"\x89PNG")
    assert "data:image/png;base64," in (tmp_path / "report.html").read_text()
    # the folder is neither overwritten nor mixed
    with pytest.raises(UserError, match="--resume"):
        run(_config(tmp_path))
    with pytest.raises(UserError, match="max_epochs"):
        run(_config(tmp_path, resume=True, max_epochs=3))
    assert run(_config(tmp_path, resume=True)) == pytest.approx(metrics, nan_ok=True)


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


def test_graph_benchmark_runs() -> None:
    timings = graph_attention.run(rounds=1)
    assert [name for name, timing in timings.items() if timing.ratio == 1] == [
        "PyG GATConv, two layers",
        "PyG GATv2Conv, two layers",
    ]
