"""Features of regions from files: their forms, the cache, and the spread."""

import numpy as np
import pytest
import torch

from experiments.data.images.regions import region_features
from tests.experiments.data.questions.tiny_questions import VQA, vqa_rows, write_features

TRAIN = VQA["train"]


def regions(tmp_path):
    return region_features([tmp_path / "features"], "train", TRAIN, tmp_path / "cache")


@pytest.mark.parametrize("form", ["npy", "npz", "mcan"])
def test_features_of_every_form_are_padded_in_the_order_of_the_photographs(tmp_path, form):
    write_features(tmp_path / "features", TRAIN, form)
    read = regions(tmp_path)
    assert read.features.shape == (3, 3, 4)
    for features, mask, number in zip(read.features, read.mask, TRAIN, strict=True):
        assert torch.allclose(features[mask].float(), torch.from_numpy(vqa_rows(number)), atol=5e-3)
    assert not read.features[~read.mask].any()


def test_the_spread_of_many_features_is_that_of_some_photographs(tmp_path, monkeypatch):
    write_features(tmp_path / "features", TRAIN, "npy")
    read = regions(tmp_path)
    whole = torch.cat([torch.from_numpy(vqa_rows(number)) for number in TRAIN])
    assert read.spread == pytest.approx(whole.std().item(), rel=1e-2)
    monkeypatch.setattr("experiments.data.images.regions._SPREAD_OF", 2 * 4 * 4)  # of two photographs
    ends = torch.cat([torch.from_numpy(vqa_rows(TRAIN[place])) for place in (0, 2)])
    assert read.spread == pytest.approx(ends.std().item(), rel=1e-2)


def test_changed_features_are_read_again(tmp_path):
    write_features(tmp_path / "features", TRAIN, "npy")
    regions(tmp_path)
    made = sorted((tmp_path / "cache").iterdir())
    regions(tmp_path)
    assert sorted((tmp_path / "cache").iterdir()) == made
    np.save(tmp_path / "features" / "9.npy", np.ones((5, 4), np.float32))
    assert regions(tmp_path).mask.sum(-1).tolist() == [5, 3, 2]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones((2, 5), np.float32), r"25\.npy cannot be read .*width 5, and 4 in .*9\.npy"),
        (np.full((2, 4), np.nan), r"25\.npy cannot be read .*NaN or above 65504"),
        (None, "no features of photograph 25"),
    ],
)
def test_bad_features_are_told(tmp_path, array, message):
    write_features(tmp_path / "features", TRAIN, "npy")
    path = tmp_path / "features" / "25.npy"
    path.unlink()
    if array is not None:
        np.save(path, array)
    with pytest.raises(ValueError, match=message):
        regions(tmp_path)


def test_missing_features_are_told(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"features is missing.*or --blind to train without them"):
        regions(tmp_path)
