"""Two clusters under repeated attention: equations (13) and (14), the known distances, and the script."""

from itertools import pairwise

import pytest
import torch

from experiments.mode_collapse.report import center_distances, clusters, next_distance, trajectory


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
