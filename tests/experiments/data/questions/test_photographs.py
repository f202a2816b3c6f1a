"""Questions about photographs that are encoded: easy-VQA and DAQUAR, in the formats of their files."""

import json

import pytest
import torch

from experiments.data.images import image_features
from experiments.data.images.digit_scenes import cell_positions
from experiments.data.images.region_options import RegionOptions
from experiments.data.images.regions import Regions
from experiments.data.questions.load import Entry, as_questions, load_photo_questions
from experiments.files import DamagedFileError
from tests.experiments.data.questions.tiny_questions import DAQUAR, write_daquar, write_easy_vqa


def load(name, root, **options):
    return load_photo_questions(name, RegionOptions(encoder_epochs=1, **options), data_root=root)


@pytest.fixture
def encoders(monkeypatch):
    """The pictures and captions that own encoders are trained with."""
    seen, original = [], image_features.content_encoder

    def content_encoder(pixels, captions, folder, **options):
        seen.append((pixels, captions))
        return original(pixels, captions, folder, **options)

    monkeypatch.setattr(image_features, "content_encoder", content_encoder)
    return seen


def test_easy_vqa(tmp_path, encoders):
    folder = write_easy_vqa(tmp_path)
    data = load("easy_vqa", tmp_path)
    assert [len(data[part]) for part in ("train", "val", "test")] == [15, 3, 18]
    test = data["test"]
    assert test.questions[0] == ["what", "color", "is", "the", "shape"]
    assert test.answers[:4] == ("red", "yes", "yes", "green")
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
    assert test.answers[:2] == ("lamp, table", "2")
    assert test.kinds[:2] == ("object", "count")
    assert test.photographs.tolist() == [0, 0, 1, 1]
    assert len(data["train"].regions) == len(DAQUAR["train"])
    assert test.regions.features.shape == (2, 4, 256 + 4)


@pytest.mark.parametrize(
    ("name", "write", "file", "old", "new", "message"),
    [
        (
            "easy_vqa",
            write_easy_vqa,
            "train_questions.json",
            '"red"',
            '"violet"',
            "question 1 .*answer that is not in answers",
        ),
        ("daquar", write_daquar, "text/data.csv", "image3", "image99", r"data\.csv: question 5 .*of a listed image"),
        ("daquar", write_daquar, "text/data.csv", ",2,", ", ,", "question 2 .*the question has no answer.*correct it"),
    ],
)
def test_bad_input_is_told(tmp_path, name, write, file, old, new, message):
    path = write(tmp_path) / file
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ValueError, match=message):
        load(name, tmp_path, size=32)


def test_capital_letters_make_no_other_answer(tmp_path):
    path = write_daquar(tmp_path) / "text" / "data.csv"
    path.write_text(path.read_text().replace('"lamp, table",image5', '"Lamp,  Table",image5'))
    assert load("daquar", tmp_path, size=32)["test"].answers[::2] == ("lamp, table", "lamp, table")


def test_a_photograph_that_is_not_clear(tmp_path):
    """In both lists it would be tested on alone; of two files with its name one would be taken."""
    folder = write_daquar(tmp_path)
    lists = [folder / "text" / f"{split}_images_list.txt" for split in ("train", "test")]
    before = lists[1].read_text()
    lists[1].write_text(f"{before}\nimage2")
    with pytest.raises(ValueError, match=r"image2 is in train_images_list.txt and in test_images_list.txt; expected"):
        load("daquar", tmp_path, size=32)
    lists[1].write_text(before)
    (folder / "images" / "image2.jpg").write_bytes((folder / "images" / "image1.png").read_bytes())
    (folder / "images" / "image99.jpg").write_bytes(b"")  # no question is about it
    (folder / "images" / "image99.txt").write_bytes(b"")
    with pytest.raises(ValueError, match=r"images: image2 may be image2.jpg, image2.png; expected one file"):
        load("daquar", tmp_path, size=32)


@pytest.mark.parametrize("question", [b"what is in the caf\xe9", b"what" * 50_000], ids=["latin-1", "long"])
def test_a_table_that_cannot_be_read_is_named(tmp_path, question):
    path = write_daquar(tmp_path) / "text" / "data.csv"
    path.write_bytes(path.read_bytes() + question + b",lamp,image1\n")
    with pytest.raises(DamagedFileError, match=r"data\.csv cannot be read .*a table in UTF-8 with the columns"):
        load("daquar", tmp_path, size=32)


def plain(photographs):
    entries = [Entry(["what"], "a", place, "kind") for place in photographs]
    nothing = torch.zeros(0)
    return as_questions("mine", entries, Regions(torch.zeros(max(photographs) + 1, 1), nothing, (1, 1), nothing))


@pytest.mark.parametrize(("count", "share", "held"), [(2, 0.1, 1), (40, 0.5, 20)])
def test_photographs_are_held_out_whole(count, share, held):
    data = plain([place for place in range(count) for _ in range(2)])
    kept, other = data.held_out(share, "other")
    assert (other.name, len(other), len(kept)) == ("other", 2 * held, 2 * (count - held))
    assert set(kept.photographs.tolist()).isdisjoint(other.photographs.tolist())
    assert torch.equal(data.held_out(share, "other")[1].photographs, other.photographs)


SEPARATORS = ["\r", "\u2028", "\x85", "\x0c"]


@pytest.mark.parametrize("separator", SEPARATORS)
def test_only_line_feeds_part_answers(tmp_path, encoders, separator):
    folder, answer = write_easy_vqa(tmp_path), f"dark{separator}red"
    for path in (folder / "train_questions.json", folder / "test_questions.json"):
        path.write_text(path.read_text().replace('"red"', json.dumps(answer)))
    (folder / "answers.txt").write_text(f"{answer}\ngreen\nblue\nyes\nno\n", newline="")
    assert load("easy_vqa", tmp_path)["test"].answers[:2] == (answer, "yes")


@pytest.mark.parametrize("separator", SEPARATORS)
def test_only_line_feeds_part_listed_images(tmp_path, separator):
    path = write_daquar(tmp_path) / "text" / "test_images_list.txt"
    path.write_text(f"image5{separator}image6\n", newline="")
    with pytest.raises(ValueError, match=r"data\.csv: question 9 .*of a listed image"):
        load("daquar", tmp_path, size=32)
