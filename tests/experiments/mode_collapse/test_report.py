"""Two clusters under repeated attention: equations (13) and (14), the known distances, and the script."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from experiments.harness.cli import run_script
from experiments.harness.results import read_metrics
from experiments.mode_collapse import report as mode_collapse
from experiments.mode_collapse.clusters import ATTENTIONS, centre_distances, clusters, next_distance, trajectory
from experiments.mode_collapse.config import ModeCollapseConfig
from experiments.mode_collapse.report import run
from experiments.report.results import read_results

SOFTMAX, DOUBLY = ATTENTIONS["softmax"], ATTENTIONS["doubly normalised"]


def distances(attention, sizes, distance, *, steps=1, dim=1, deviation=0.0, seed=0):
    points = clusters(sizes, distance, dim=dim, deviation=deviation)
    return centre_distances(trajectory(points, attention, steps=steps, seed=seed), sizes[0]).tolist()


@pytest.mark.parametrize("sizes", [(5, 5), (30, 3), (7, 20)], ids=str)
@pytest.mark.parametrize("distance", [0.5, 2.0, 3.0])
@pytest.mark.parametrize("attention", [SOFTMAX, DOUBLY], ids=str)
def test_closed_forms(sizes, distance, attention):
    found = distances(attention, sizes, distance, steps=3)
    for before, after in pairwise(found):
        assert after == pytest.approx(next_distance(before, sizes, doubly=attention.doubly), abs=1e-10)


@pytest.mark.parametrize(
    ("distance", "softmax", "doubly"), [(2.0, 0.823, 1.412), (3.0, 2.697, 2.934)]
)  # computed independently
def test_known_distances_after_one_step(distance, softmax, doubly):
    for attention, expected in ((SOFTMAX, softmax), (DOUBLY, doubly)):
        assert distances(attention, (500, 50), distance)[-1] == pytest.approx(expected, abs=6e-4)


@pytest.mark.parametrize(
    ("attention", "expected", "low", "high"), [(SOFTMAX, 0.09, 0.0, 0.1), (DOUBLY, 2.64, 2.0, 3.0)], ids=str
)
def test_unbalanced_clusters_collapse_under_softmax_alone(attention, expected, low, high):
    assert distances(attention, (500, 50), 3.0, steps=4)[-1] == pytest.approx(expected, abs=6e-3)
    assert low < distances(attention, (500, 50), 3.0, steps=4, dim=2, deviation=0.3)[-1] < high


def test_sampled_weights_spread_around_the_deterministic_ones():
    found = [distances(ATTENTIONS["softmax, Weibull"], (20, 4), 2.0, seed=seed)[-1] for seed in range(20)]
    spread = torch.tensor(found).std().item()
    assert spread > 0.01
    assert sum(found) / len(found) == pytest.approx(distances(SOFTMAX, (20, 4), 2.0)[-1], abs=2 * spread)


def test_script(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mode_collapse, "CASES", {"6 + 6": (6, 6), "10 + 2": (10, 2)})
    config = ModeCollapseConfig(out=tmp_path / "run", results=tmp_path / "results", seeds=2, steps=2)
    metrics = run(config)
    assert read_metrics(tmp_path / "run") == pytest.approx(metrics)
    assert metrics["1d/10 + 2/softmax/step2"] < metrics["1d/10 + 2/doubly normalised/step2"]
    assert metrics["2d/6 + 6/softmax, Weibull/step1/spread"] > 0
    assert metrics["closed_form_error"] < 1e-10
    report, source = read_results(tmp_path / "results" / "mode-collapse.json")
    assert source.command == "python -m experiments.mode_collapse --steps 2 --seeds 2"
    table, picture = report.parts
    row = next(row for row in table.rows if row["clusters"] == "1-D, 10 + 2" and row["attention"] == "softmax")
    assert (row["start"].mean, row["step 2"].mean) == pytest.approx((3.0, metrics["1d/10 + 2/softmax/step2"]))
    assert picture.picture.is_file()
    assert len(list((tmp_path / "run" / "figures").iterdir())) == 3
    assert (tmp_path / "run" / "report.html").read_text().count("data:image/png;base64,") == 4
    options = [f"--out={tmp_path / 'run'}", f"--results={tmp_path / 'results'}", "--seeds=2", "--steps=2"]
    assert run_script(ModeCollapseConfig, run, name="experiments.mode_collapse", arguments=options) == 1
    assert "--resume" in capsys.readouterr().err
