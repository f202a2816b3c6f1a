"""Two clusters under repeated attention: equations (13) and (14), the known distances, and the script."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

import experiments.report.report
from experiments.mode_collapse.config import ModeCollapseConfig
from experiments.mode_collapse.report import center_distances, clusters, next_distance, run, trajectory
from experiments.options import is_whole


def distances(attention, sizes, distance, *, steps=1, dim=1, deviation=0.0, seed=0):
    points = clusters(sizes, distance, dim=dim, deviation=deviation)
    return center_distances(trajectory(points, attention, steps=steps, seed=seed), sizes[0]).tolist()


@pytest.mark.parametrize(("sizes", "distance"), [((5, 5), 0.5), ((30, 3), 2.0), ((7, 20), 3.0)], ids=str)
@pytest.mark.parametrize("attention", ["softmax", "doubly normalized"])
def test_closed_forms(sizes, distance, attention):
    found = distances(attention, sizes, distance, steps=3)
    for before, after in pairwise(found):
        assert after == pytest.approx(next_distance(before, sizes, doubly="doubly" in attention), abs=1e-10)


@pytest.mark.parametrize(
    ("attention", "one", "four", "low", "high"),
    [("softmax", 2.697, 0.09, 0.0, 0.1), ("doubly normalized", 2.934, 2.64, 2.0, 3.0)],
)  # computed independently
def test_unbalanced_clusters_collapse_under_softmax_alone(attention, one, four, low, high):
    found = distances(attention, (500, 50), 3.0, steps=4)
    assert found[1] == pytest.approx(one, abs=6e-4)
    assert found[-1] == pytest.approx(four, abs=6e-3)
    assert low < distances(attention, (500, 50), 3.0, steps=4, dim=2, deviation=0.3)[-1] < high


def test_sampled_weights_spread_around_the_deterministic_ones():
    found = [distances("softmax, Weibull", (20, 4), 2.0, seed=seed)[-1] for seed in range(20)]
    spread = torch.tensor(found).std().item()
    assert spread > 0.01
    assert sum(found) / len(found) == pytest.approx(distances("softmax", (20, 4), 2.0)[-1], abs=2 * spread)


def test_estimated_variances_are_those_of_a_mixture_by_hand():
    """Two steps of EM for a Gaussian mixture with centers at the points, whose variances are written out."""
    x = clusters((3, 2), 2.0, dim=2, deviation=0.3)
    variances = torch.ones(5)
    for _ in range(2):
        density = torch.stack(
            [
                torch.distributions.MultivariateNormal(center, variance * torch.eye(2).double()).log_prob(x).exp()
                for center, variance in zip(x, variances, strict=True)
            ]
        )
        responsibilities = density / density.sum(0)  # of the centers for a point
        total = responsibilities.sum(1, keepdim=True)
        centers = responsibilities @ x / total
        squared = (x.unsqueeze(0) - centers.unsqueeze(1)).square().sum(-1)
        variances = (responsibilities * squared).sum(1) / total[:, 0] / 2
        x = centers
    trajectories = trajectory(clusters((3, 2), 2.0, dim=2, deviation=0.3), "doubly normalized, variances", steps=2)
    torch.testing.assert_close(trajectories[-1], x)
    assert variances.max() < 0.5


def test_more_updates_of_the_centers_leave_the_points_of_a_step():
    """Two updates by hand: the centers have moved, and the points that they explain have not."""
    points = centers = clusters((3, 2), 2.0, dim=2, deviation=0.3)
    for _ in range(2):
        weights = (-0.5 * torch.cdist(centers, points).square()).exp()
        weights = weights / weights.sum(0)
        centers = weights / weights.sum(1, keepdim=True) @ points
    moved = trajectory(points, "doubly normalized", steps=1, iterations=2)
    torch.testing.assert_close(moved[-1], centers)


def test_estimated_variances_vanish_and_the_clusters_stop_to_move():
    """A center soon explains one point alone: then attention changes nothing, and stays finite."""
    sizes = (500, 50)
    positions = distances("doubly normalized, variances", sizes, 3.0, steps=8, dim=2, deviation=0.3)
    assert positions[1] == distances("doubly normalized", sizes, 3.0, dim=2, deviation=0.3)[1]  # variance one
    assert positions[8] == pytest.approx(positions[3], abs=1e-3)


def test_other_options_leave_the_published_numbers(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(experiments.report.report, "RESULTS", tmp_path / "published")
    config = ModeCollapseConfig(steps=1, iterations=3, seeds=1, out=tmp_path / "run")
    assert "2d/500 + 50/softmax/step1" in run(config)
    assert (tmp_path / "run" / "figures" / "mode_collapse.png").is_file()
    assert not (tmp_path / "published").exists()
    assert "Use --results FOLDER" in capsys.readouterr().out
    assert is_whole(replace(ModeCollapseConfig(), out=tmp_path, resume=True))
    run(replace(config, results=tmp_path / "mine", overwrite=True))
    assert {path.name for path in (tmp_path / "mine").rglob("*.*")} == {"mode-collapse.json", "mode_collapse.png"}
