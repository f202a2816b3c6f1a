"""Files of segmentation maps: what a class has of the cells of a grid, and bad files."""

import numpy as np
import pytest
import torch

from experiments.datasets.images.region_captions import SegmentationMaps, read_maps

CLASSES = np.array(["background", "dog", "cat"])


def read(folder, **changes):
    found = {"names": np.array([b"a.jpg", b"b.jpg"]), "classes": CLASSES, "named": np.zeros((2, 2, 3), np.uint8)}
    entries = {name: value for name, value in (found | changes).items() if value is not None}
    np.savez(folder / "maps.npz", **entries)
    return read_maps(folder / "maps.npz")


NAMED = np.zeros((2, 2, 3), np.uint8)
NAMED[0, 1, 2], NAMED[1, 0, 0] = 1, 2


def test_a_file(tmp_path):
    maps = read(tmp_path, named=NAMED)
    assert maps.classes == CLASSES.tolist()
    assert maps.shares("a.jpg", (2, 2))[1].tolist() == [0, 0, 0, 0.5]
    assert maps.shares("b.jpg", (1, 1))[2].item() == pytest.approx(0.5 * 0.25)


@pytest.mark.parametrize("grid", [(6, 6), (4, 7), (30, 5)])
def test_shares_are_areas(grid):
    points = np.zeros((1, 21, 21), np.uint8)
    points[:, :, :10] = 1
    shares = SegmentationMaps(["a.jpg"], CLASSES.tolist(), points).shares("a.jpg", grid)
    torch.testing.assert_close(shares.sum(0), torch.ones(grid[0] * grid[1]))
    # the points stand 1 / 20 apart, and the last dog's point reaches half as far
    assert shares[1].mean().item() == pytest.approx(9.5 / 20)
    left = shares[1].view(grid)[:, : grid[1] // 3]
    torch.testing.assert_close(left, torch.ones_like(left))


def test_bad_maps(tmp_path):
    with pytest.raises(ValueError, match=r"maps\.npz cannot be read .*--maps"):
        read(tmp_path, named=np.full((2, 2, 3), 3))
