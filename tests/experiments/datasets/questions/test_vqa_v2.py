"""Questions, answers and features of VQA v2 in the published formats, and what can be wrong with them."""

import json

import numpy as np
import pytest
import torch

from experiments.datasets.questions.load import PhotographOptions, load_photo_questions
from tests.experiments.datasets.questions.tiny_questions import VQA, rows_of, write_vqa_v2

QUESTIONS, ANNOTATIONS = "v2_OpenEnded_mscoco_train2014_questions.json", "v2_mscoco_train2014_annotations.json"


def load(root):
    return load_photo_questions("vqa_v2", PhotographOptions(), data_root=root)


@pytest.mark.parametrize("form", ["npy", "npz", "mcan", "whole npz", "whole npy"])
def test_questions_and_features_of_every_form(tmp_path, form):
    write_vqa_v2(tmp_path, form, packed=form == "mcan")
    data = load(tmp_path)
    train = data["train"]
    assert train.questions[:2] == (["is", "there", "a", "cat"], ["what", "color", "is", "the", "cat", "'s", "hat"])
    assert train.answers[:2] == ({"yes": 10}, {"red": 6, "dark red": 4})
    assert train.kinds == ("yes/no", "other") * 3
    assert train.regions.mask.sum(-1).tolist() == [2 + number % 2 for number in VQA["train"]]
    for place, number in enumerate(VQA["train"]):
        rows = torch.from_numpy(rows_of(number))
        assert torch.allclose(train.regions.features[place][train.regions.mask[place]].float(), rows, atol=5e-3)
    assert not train.regions.features[~train.regions.mask].any()
    assert data["val"].regions is data["test"].regions
    sides = [set(data[part].photographs.tolist()) for part in ("val", "test")]
    assert sides[0].isdisjoint(sides[1])
    assert len(sides[0]) == len(sides[1]) == 2
    assert len(data["val"]) + len(data["test"]) == 2 * len(VQA["val"])


def test_features_are_read_once(tmp_path, monkeypatch):
    folder = write_vqa_v2(tmp_path)
    first = load(tmp_path)["train"].regions
    made = sorted((folder / "cache").iterdir())
    with monkeypatch.context() as patch:
        patch.setattr("experiments.datasets.questions.region_files.map_array", lambda path: pytest.fail("read again"))
        again = load(tmp_path)["train"].regions
    assert torch.equal(first.features, again.features)
    assert sorted((folder / "cache").iterdir()) == made
    np.save(folder / "features" / "train2014" / "9.npy", np.ones((5, 4), np.float32))
    assert load(tmp_path)["train"].regions.mask.sum(-1).tolist() == [5, 3, 2]


def change(name, key, edit):
    """Edit the entries of one of the JSON files."""

    def spoil(folder):
        content = json.loads((folder / name).read_text())
        edit(content[key])
        (folder / name).write_text(json.dumps(content))

    return spoil


def question(edit):
    return change(QUESTIONS, "questions", edit)


def annotation(edit):
    return change(ANNOTATIONS, "annotations", edit)


def features(array):
    return lambda folder: np.save(folder / "features" / "train2014" / "25.npy", array)


def cut_off(name):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-40])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (annotation(lambda rows: rows.pop(0)), rf"{QUESTIONS}: question 9000 is not in {ANNOTATIONS} \(1 of 6"),
        (question(lambda rows: rows.pop(0)), rf"{ANNOTATIONS}: question 9000 is not in {QUESTIONS} \(1 of 6"),
        (question(lambda rows: rows.append(rows[0])), rf"{QUESTIONS} .*question 9000 is there twice"),
        (question(lambda rows: rows[1].pop("question_id")), rf"{QUESTIONS} .*KeyError: 'question_id'"),
        (annotation(lambda rows: rows[1].update(image_id=7)), "9001 .*it is about photograph 7, the question about 9"),
        (annotation(lambda rows: rows[1].update(answers=[3])), r"question 9001 .*answers are \[3\]"),
        (
            features(np.ones((2, 5), np.float32)),
            r"25\.npy: photograph 25: features have width 5; expected 4 as before\.",
        ),
        (features(np.full((2, 4), np.nan)), r"25\.npy: photograph 25: features are NaN or above 65504"),
        (features(np.ones((2, 4)) * 1e6), r"25\.npy: photograph 25: features are NaN or above 65504"),
        (features(np.ones(4)), r"25\.npy: photograph 25: features are float64 \[4\]; expected \[regions, width\]"),
        (
            lambda folder: (folder / "features" / "train2014" / "25.npy").unlink(),
            r"train2014: no features of photograph 25 \(1 of 3 photographs have none\).*Add them, or remove",
        ),
        (
            lambda folder: np.savez(folder / "features" / "train2014" / "0025.npz", x=np.ones((1, 4))),
            r"25\.npy: photograph 25 has features in 0025\.npz too",
        ),
    ],
)
def test_bad_input_is_told_in_a_line(tmp_path, spoil, message):
    spoil(write_vqa_v2(tmp_path))
    with pytest.raises(ValueError, match=message) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        ({"features": np.ones((3, 3))}, r"train2014\.npz: features \[3, 3\]; expected features \[photographs, regions"),
        (
            {"features": np.ones((3, 3, 4)), "image_ids": np.array(VQA["train"]), "num_regions": np.array([1, 4, 1])},
            r"num_regions is int64 \[3\]; expected of every photograph a number from 1 to 3",
        ),
        (
            {"features": np.ones((2, 3, 4)), "image_ids": np.array([9, 9])},
            r"2 image_ids of 1 photographs; expected each once",
        ),
    ],
)
def test_a_bad_file_of_all_photographs(tmp_path, array, message):
    folder = write_vqa_v2(tmp_path, "whole npz")
    np.savez(folder / "features" / "train2014.npz", **array)
    with pytest.raises(ValueError, match=message):
        load(tmp_path)
