"""Questions about photographs that are encoded: easy-VQA and DAQUAR, in the formats of their files."""

import json
import os

import numpy as np
import pytest
import torch
from experiments.datasets.questions.entries import Entry, as_questions, held_out

from experiments.datasets.questions.data import Regions, cell_positions
from experiments.datasets.questions.load import PhotographOptions, load_photo_questions
from tests.experiments.datasets.questions.tiny_questions import DAQUAR, write_daquar, write_easy_vqa

REAL = os.environ.get("PYRO_ATTENTION_DATA")
needs_data = pytest.mark.skipif(not REAL, reason="PYRO_ATTENTION_DATA is not set")


def load(name, root, **options):
    return load_photo_questions(name, PhotographOptions(epochs=1, **options), data_root=root)


@pytest.fixture
def encoders(monkeypatch):
    """The pictures and captions that own encoders are trained with."""
    from experiments.datasets.questions import photographs

    seen, original = [], photographs.content_encoder

    def content_encoder(pixels, captions, folder, **options):
        seen.append((pixels, captions))
        return original(pixels, captions, folder, **options)

    monkeypatch.setattr(photographs, "content_encoder", content_encoder)
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


@pytest.mark.parametrize("form", [{}, {"original": True}, {"archive": True}], ids=["table", "original", "archive"])
def test_daquar(tmp_path, form):
    write_daquar(tmp_path, **form)
    data = load("daquar", tmp_path, size=32)
    assert [len(data[part]) for part in ("train", "val", "test")] == [6, 2, 4]
    test = data["test"]
    assert test.questions[:2] == (["what", "is", "on", "the", "desk"], ["how", "many", "chairs", "are", "there"])
    assert test.answers[:2] == ({"lamp, table": 1}, {"2": 1})
    assert test.kinds[:2] == ("object", "count")
    assert test.photographs.tolist() == [0, 0, 1, 1]
    assert len(data["train"].regions) == len(DAQUAR["train"])
    assert test.regions.features.shape == (2, 4, 256 + 4)


def easy(edit):
    def spoil(folder):
        path = folder / "train_questions.json"
        rows = json.loads(path.read_text())
        path.write_text(json.dumps(edit(rows)))

    return spoil


EASY = {
    "answer": (easy(lambda rows: [["what?", "violet", 0]]), "question 1 cannot be read .*an answer not in answers"),
    "picture": (easy(lambda rows: [["what?", "red", 6]]), "question 1 cannot be read .*no picture of 6"),
    "empty": (easy(lambda rows: [*rows, ["?", "red", 0]]), r"question 19: the question is '\?'; expected a text"),
    "pictures": (
        lambda folder: np.savez(folder / "train_images.npz", images=np.zeros((6, 64, 64))),
        r"train_images\.npz .*images is float64 \[6, 64, 64\]",
    ),
}


def daquar(old, new):
    def spoil(folder):
        path = folder / "text" / "data.csv"
        path.write_text(path.read_text().replace(old, new, 1))

    return spoil


def unreadable(folder):
    (folder / "images" / "image2.png").write_bytes(b"none")


def gone(folder):
    (folder / "images" / "image2.png").unlink()


ROOMS = {
    "list": (daquar("image3", "image99"), "line 6: image99 is in neither list of images"),
    "answer": (daquar(",2,", ", ,"), "line 3: the question has no answer; expected one. Add it, or remove"),
    "quote": (daquar('"lamp, table"', '"lamp" table'), r"data\.csv cannot be read .*lines of question,answer,image_id"),
    "unreadable": (unreadable, r"image2\.png cannot be read .* --skip-bad"),
    "gone": (gone, r"data\.csv: line 4: image2 is missing; expected a photograph of this name.* --skip-bad"),
}


@pytest.mark.parametrize(
    ("name", "write", "spoil", "message"),
    [("easy_vqa", write_easy_vqa, *case) for case in EASY.values()]
    + [("daquar", write_daquar, *case) for case in ROOMS.values()],
    ids=[*EASY, *(f"rooms-{name}" for name in ROOMS)],
)
def test_bad_input_is_told_in_a_line(tmp_path, name, write, spoil, message):
    spoil(write(tmp_path))
    with pytest.raises((ValueError, FileNotFoundError), match=message) as caught:
        load(name, tmp_path, size=32)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("spoil", [unreadable, gone])
def test_bad_photographs_are_left_out_with_their_questions(tmp_path, spoil):
    spoil(write_daquar(tmp_path))
    data = load("daquar", tmp_path, size=32, skip=True)
    assert len(data["train"]) + len(data["val"]) == 6
    assert len(data["train"].regions) == 3


def plain(photographs):
    entries = [Entry(["what"], {"a": 1}, place, "kind") for place in photographs]
    return as_questions("mine", entries, Regions(torch.zeros(max(photographs) + 1, 1), torch.zeros(0)))


@pytest.mark.parametrize(("count", "share", "held"), [(2, 0.1, 1), (40, 0.1, 4), (40, 0.5, 20)])
def test_photographs_are_held_out_whole(count, share, held):
    data = plain([place for place in range(count) for _ in range(2)])
    kept, other = held_out(data, share, "other")
    assert (other.name, len(other), len(kept)) == ("other", 2 * held, 2 * (count - held))
    assert set(kept.photographs.tolist()).isdisjoint(other.photographs.tolist())
    assert torch.equal(held_out(data, share, "other")[1].photographs, other.photographs)


@needs_data
@pytest.mark.parametrize(
    ("name", "questions", "photographs"),
    [("easy_vqa", (38575, 9673), (4000, 1000)), ("daquar", (6795, 5673), (794, 653))],
)
def test_real_sets(tmp_path, monkeypatch, name, questions, photographs):
    reader = f"experiments.datasets.questions.readers.{name}.encoded"
    monkeypatch.setattr(reader, lambda train, test, *options: (train, test))
    found = load(name, REAL, size=64, cache=tmp_path)
    assert tuple(len(part.entries) for part in found) == questions
    assert tuple(len(part.pixels) for part in found) == photographs
