"""Questions about photographs that are encoded: easy-VQA and DAQUAR, in the formats of their files."""

import json

import numpy as np
import pytest
import torch

from experiments.datasets.questions import load as load_module
from experiments.datasets.questions.data import Entry, Regions, as_questions, cell_positions
from experiments.datasets.questions.load import PhotographOptions, load_photo_questions
from tests.experiments.datasets.questions.tiny_questions import (
    DAQUAR,
    VQA,
    rows_of,
    write_daquar,
    write_easy_vqa,
    write_vqa_v2,
)


def load(name, root, **options):
    return load_photo_questions(name, PhotographOptions(epochs=1, **options), data_root=root)


@pytest.fixture
def encoders(monkeypatch):
    """The pictures and captions that own encoders are trained with."""
    seen, original = [], load_module.content_encoder

    def content_encoder(pixels, captions, folder, **options):
        seen.append((pixels, captions))
        return original(pixels, captions, folder, **options)

    monkeypatch.setattr(load_module, "content_encoder", content_encoder)
    return seen


def test_easy_vqa(tmp_path, encoders):
    folder = write_easy_vqa(tmp_path)
    data = load("easy_vqa", tmp_path)
    assert [len(data[part]) for part in ("train", "val", "test")] == [15, 3, 18]
    test = data["test"]
    assert test.questions[0] == ["what", "color", "is", "the", "shape"]
    assert test.answers[:4] == ({"red": 1}, {"yes": 1}, {"yes": 1}, {"green": 1})
    assert test.kinds[:3] == ("color", "exists", "exists")
    assert test.photographs.tolist() == [place for place in range(6) for _ in range(3)]
    assert test.regions.features.shape == (6, 16, 256 + 8)
    assert test.regions.grid == (4, 4)
    assert torch.equal(test.regions.features[3, :, 256:].float(), cell_positions((4, 4)).float())
    assert test.regions.pictures.shape == (6, 3, 64, 64)
    # the encoder learns what is there, and sees no picture that is held out
    ((pixels, captions),) = encoders
    held = set(data["val"].photographs.tolist())
    names = ["red", "green", "blue"] * 2
    assert captions == [[name] for place, name in enumerate(names) if place not in held]
    assert len(pixels) == 5
    # nothing is computed again
    made = sorted(path.name for path in (folder / "cache").iterdir())
    again = load("easy_vqa", tmp_path)
    assert torch.equal(again["test"].regions.features, test.regions.features)
    assert sorted(path.name for path in (folder / "cache").iterdir()) == made


@pytest.mark.parametrize("archive", [False, True])
def test_daquar(tmp_path, archive):
    write_daquar(tmp_path, archive=archive)
    data = load("daquar", tmp_path, size=32)
    assert [len(data[part]) for part in ("train", "val", "test")] == [6, 2, 4]
    test = data["test"]
    assert test.questions[:2] == (["what", "is", "on", "the", "desk"], ["how", "many", "chairs", "are", "there"])
    assert test.answers[:2] == ({"lamp, table": 1}, {"2": 1})
    assert test.kinds[:2] == ("object", "count")
    assert test.photographs.tolist() == [0, 0, 1, 1]
    assert len(data["train"].regions) == len(DAQUAR["train"])
    assert test.regions.features.shape == (2, 4, 256 + 4)


@pytest.mark.parametrize(
    ("name", "write", "file", "old", "new", "message"),
    [
        ("easy_vqa", write_easy_vqa, "train_questions.json", '"red"', '"violet"', "question 1 .*answer not in answers"),
        ("daquar", write_daquar, "text/data.csv", "image3", "image99", r"data\.csv: question 5 .*of a listed image"),
        ("daquar", write_daquar, "text/data.csv", ",2,", ", ,", "question 2 .*the question has no answer.*mend it"),
    ],
)
def test_bad_input_is_told(tmp_path, name, write, file, old, new, message):
    path = write(tmp_path) / file
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ValueError, match=message):
        load(name, tmp_path, size=32)


def plain(photographs):
    entries = [Entry(["what"], {"a": 1}, place, "kind") for place in photographs]
    return as_questions("mine", entries, Regions(torch.zeros(max(photographs) + 1, 1), torch.zeros(0)))


@pytest.mark.parametrize(("count", "share", "held"), [(2, 0.1, 1), (40, 0.5, 20)])
def test_photographs_are_held_out_whole(count, share, held):
    data = plain([place for place in range(count) for _ in range(2)])
    kept, other = data.held_out(share, "other")
    assert (other.name, len(other), len(kept)) == ("other", 2 * held, 2 * (count - held))
    assert set(kept.photographs.tolist()).isdisjoint(other.photographs.tolist())
    assert torch.equal(data.held_out(share, "other")[1].photographs, other.photographs)


# VQA v2

QUESTIONS, ANNOTATIONS = "v2_OpenEnded_mscoco_train2014_questions.json", "v2_mscoco_train2014_annotations.json"


@pytest.mark.parametrize("form", ["npy", "npz", "mcan"])
def test_features_of_every_form(tmp_path, form):
    write_vqa_v2(tmp_path, form, packed=form == "mcan")
    data = load("vqa_v2", tmp_path)
    train = data["train"]
    assert train.questions[:2] == (["is", "there", "a", "cat"], ["what", "color", "is", "the", "cat", "'s", "hat"])
    assert train.answers[:2] == ({"yes": 10}, {"red": 6, "dark red": 4})
    assert train.kinds == ("yes/no", "other") * 3
    assert train.regions.mask.sum(-1).tolist() == [2 + number % 2 for number in VQA["train"]]
    for place, number in enumerate(VQA["train"]):
        rows = torch.from_numpy(rows_of(number))
        assert torch.allclose(train.regions.features[place][train.regions.mask[place]].float(), rows, atol=5e-3)
    assert not train.regions.features[~train.regions.mask].any()
    sides = [set(data[part].photographs.tolist()) for part in ("val", "test")]
    assert sides[0].isdisjoint(sides[1])
    assert len(data["val"]) + len(data["test"]) == 2 * len(VQA["val"])


def test_changed_features_are_read_again(tmp_path):
    folder = write_vqa_v2(tmp_path)
    load("vqa_v2", tmp_path)
    np.save(folder / "features" / "train2014" / "9.npy", np.ones((5, 4), np.float32))
    assert load("vqa_v2", tmp_path)["train"].regions.mask.sum(-1).tolist() == [5, 3, 2]


def change(name, key, edit):
    """Edit the entries of one of the JSON files."""

    def spoil(folder):
        content = json.loads((folder / name).read_text())
        edit(content[key])
        (folder / name).write_text(json.dumps(content))

    return spoil


def features(array):
    return lambda folder: np.save(folder / "features" / "train2014" / "25.npy", array)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (change(ANNOTATIONS, "annotations", lambda rows: rows.pop(0)), "question 9000 is in one of"),
        (change(QUESTIONS, "questions", lambda rows: rows.append(rows[0])), f"{QUESTIONS} cannot be read .*one twice"),
        (
            change(ANNOTATIONS, "annotations", lambda rows: rows[1].update(image_id=7)),
            "question 9001 .*another",
        ),
        (features(np.ones((2, 5), np.float32)), r"25\.npy cannot be read .*widths"),
        (features(np.full((2, 4), np.nan)), r"25\.npy cannot be read .*NaN or above 65504"),
        (lambda folder: (folder / "features" / "train2014" / "25.npy").unlink(), "no features of photograph 25"),
    ],
)
def test_bad_input_of_vqa(tmp_path, spoil, message):
    spoil(write_vqa_v2(tmp_path))
    with pytest.raises(ValueError, match=message):
        load("vqa_v2", tmp_path)
