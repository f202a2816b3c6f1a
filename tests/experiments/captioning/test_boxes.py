"""Captions of photographs whose regions are features of boxes in files."""

import json

import numpy as np
import pytest
import torch

from experiments.captioning.config import CaptioningConfig
from experiments.captioning.task import CaptioningTask, load_boxes
from experiments.files import UserError
from experiments.folder import read_metrics
from tests.experiments.captioning.tiny_captions import COLOURS, TINY, command_line, photograph, tiny_options

BOXES, WIDTH = 4, 5


def write_coco(root, name="COCO_val2014_{:012d}.jpg"):
    """Photographs of COCO with captions, and a folder of boxes."""
    folder, boxes, images = root / "coco", root / "boxes", []
    for made in (folder, boxes):
        made.mkdir()
    for number, split in enumerate(["train"] * 6 + ["val"] * 2 + ["test"] * 3):
        color = list(COLOURS)[number % 3]
        sentences = [{"raw": f"A {color} picture."}, {"raw": f"A {color} square."}]
        images.append({"filename": name.format(number), "split": split, "sentences": sentences})
        (folder / images[-1]["filename"]).write_bytes(photograph(COLOURS[color]))
        np.save(boxes / f"{number}.npy", np.full((BOXES, WIDTH), number, np.float32))
    (folder / "dataset_coco.json").write_text(json.dumps({"dataset": "coco", "images": images}))
    return boxes


def config_of(root, **options):
    return CaptioningConfig(**TINY | {"dataset": "coco", "data_root": root, "features": root / "boxes"} | options)


def test_regions_are_those_of_the_files_in_the_order_of_the_photographs(tmp_path):
    config = config_of(tmp_path, images=5)
    data = load_boxes(config, write_coco(tmp_path))
    assert {split: part.regions.shape for split, part in data.items()} == {
        "train": (5, BOXES, WIDTH), "val": (2, BOXES, WIDTH), "test": (3, BOXES, WIDTH),
    }  # fmt: skip
    assert data["train"].regions[:, 0, 0].tolist() == [0, 1, 2, 3, 4]
    assert data["test"].regions[:, 2, 3].tolist() == [8, 9, 10]
    assert data["train"].captions[0] == ["a red picture", "a red square"]


def test_it_trains_and_is_restored_and_no_page_shows_boxes(tmp_path, capsys):
    write_coco(tmp_path)
    run = tmp_path / "run"
    line = ["train", "--dataset", "coco", "--data-root", tmp_path, "--features", tmp_path / "boxes", "--out", run]
    assert command_line(*line, *tiny_options()) == 0
    assert read_metrics(run)["test_ppl"] > 1
    config = config_of(tmp_path, out=run)
    task = CaptioningTask()
    network = task.restore(config, run)
    assert network.model.region[0].in_features == WIDTH
    assert torch.is_tensor(task.load(config).splits["test"].regions)
    assert task.load(config).maps is None
    capsys.readouterr()
    assert command_line("show", run) == 1
    assert "regions from --features, which are no grid" in capsys.readouterr().err


def test_a_map_of_the_photographs_is_refused(tmp_path):
    write_coco(tmp_path)
    with pytest.raises(UserError, match=r"regions of --features are no grid .*; leave out --maps"):
        CaptioningTask().run(config_of(tmp_path, out=tmp_path / "run", maps=tmp_path / "maps.npz"))
    assert not (tmp_path / "run").exists()


def test_a_file_in_place_of_the_folder_of_features(tmp_path):
    """The answer names no option that only questions have, such as --blind."""
    boxes = write_coco(tmp_path)
    with pytest.raises(UserError, match=r"features is .*3\.npy, expected a folder with a file of features for every"):
        CaptioningTask().run(config_of(tmp_path, features=boxes / "3.npy", out=tmp_path / "run"))


def other(boxes, number, shape):
    np.save(boxes / f"{number}.npy", np.ones(shape, np.float32))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda boxes: (boxes / "3.npy").unlink(), "no features of photograph 3"),
        (lambda boxes: other(boxes, 2, (3, WIDTH)), r"000002.jpg has 3 regions, and another 4; expected as many"),
        (lambda boxes: other(boxes, 2, (BOXES, 6)), r"2\.npy cannot be read .*width 6, and 5"),
        (
            lambda boxes: [other(boxes, number, (BOXES, 6)) for number in (8, 9, 10)],
            r"features of the widths \{'train': 5, 'val': 5, 'test': 6\}",
        ),
    ],
)
def test_bad_features(tmp_path, spoil, message):
    spoil(write_coco(tmp_path))
    with pytest.raises(UserError, match=message):
        CaptioningTask().run(config_of(tmp_path, out=tmp_path / "run"))


def test_photographs_without_a_number(tmp_path):
    write_coco(tmp_path, "{:03d}x.jpg")
    with pytest.raises(UserError, match=r"000x\.jpg of train has no number at the end.*leave out --features"):
        CaptioningTask().run(config_of(tmp_path, out=tmp_path / "run"))
