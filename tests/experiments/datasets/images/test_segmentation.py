"""Files of segmentation maps: what a class has of the cells of a grid, and bad files."""

import numpy as np
import pytest
import torch

from experiments.datasets.images.segmentation import SegmentationMaps, read_maps

CLASSES = np.array(["background", "dog", "cat"])


def masks(*at):
    """Two photographs of 2 x 3 points, with a dog and a cat; True at some places."""
    found = np.zeros((2, 2, 2, 3), bool)
    for place in at:
        found[place] = True
    return found


def entries(**changes):
    found = {"names": np.array([b"a.jpg", b"b.jpg"]), "classes": CLASSES, "named": np.zeros((2, 2, 3), np.uint8)}
    found |= changes
    return {name: value for name, value in found.items() if value is not None}


@pytest.fixture
def written(tmp_path):
    def write(**changes):
        np.savez(tmp_path / "maps.npz", **entries(**changes))
        return tmp_path / "maps.npz"

    return write


@pytest.mark.parametrize("kind", ["named", "masks"])
def test_both_kinds_of_files(written, kind):
    if kind == "masks":
        maps = read_maps(written(named=None, masks=masks((0, 0, 1, 2), (1, 1, 0, 0))))
    else:
        points = np.zeros((2, 2, 3), np.uint8)
        points[0, 1, 2], points[1, 0, 0] = 1, 2
        maps = read_maps(written(named=points))
    assert maps.classes == CLASSES.tolist()
    dog, cat = maps.shares("a.jpg", (2, 2))[1], maps.shares("b.jpg", (1, 1))[2]
    assert dog.tolist() == [0, 0, 0, 0.5]
    assert cat.item() == pytest.approx(0.5 * 0.25)


@pytest.mark.parametrize("grid", [(6, 6), (1, 1), (21, 21), (4, 7), (30, 5)])
def test_shares_are_areas(grid):
    points = np.zeros((1, 21, 21), np.uint8)
    points[:, :, :10] = 1
    maps = SegmentationMaps(["a.jpg"], CLASSES.tolist(), points)
    shares = maps.shares("a.jpg", grid)
    torch.testing.assert_close(shares.sum(0), torch.ones(grid[0] * grid[1]))
    # the points stand 1 / 20 apart, and the last dog's point reaches half as far
    assert shares[1].mean().item() == pytest.approx(9.5 / 20)
    left = shares[1].view(grid)[:, : grid[1] // 3]
    torch.testing.assert_close(left, torch.ones_like(left))


def test_one_point_is_the_whole_photograph():
    maps = SegmentationMaps(["a.jpg"], CLASSES.tolist(), np.full((1, 1, 1), 2))
    torch.testing.assert_close(maps.shares("a.jpg", (2, 3))[2], torch.ones(6))


@pytest.mark.parametrize(
    "changes",
    [
        {"named": None, "masks": masks((1, 0, 1, 2), (1, 1, 1, 2))},  # overlap
        {"named": None, "masks": masks()[:, :1]},
        {"named": None},
        {"named": np.full((2, 2, 3), 3)},
        {"names": np.array([b"a.jpg", b"a.jpg"])},
    ],
)
def test_bad_maps(written, changes):
    with pytest.raises(ValueError, match=r"maps\.npz cannot be read .*--maps"):
        read_maps(written(**changes))
