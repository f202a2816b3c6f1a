"""Captioned images: photographs and their captions, scenes of digits, and maps of what is where."""

import json
from hashlib import sha256
from itertools import permutations, product

import numpy as np
import pytest
import torch

from experiments.data.images.captions import ImageFile, caption_words, load_captions
from experiments.data.images.digit_scenes import DIGIT_NAMES, NO_CELL, digit_scenes, word_cells
from experiments.data.images.region_captions import SegmentationMaps, read_maps
from tests.experiments.data.tiny_files import packed_photographs, photograph, write

NAMES = ["b.jpg", "a.jpg", "c.jpg"]
TOKENS = "".join(f"{name}#{i}\tA  dog {i} in {name} .\n" for name in sorted(NAMES) for i in (0, 1))


@pytest.fixture
def flickr8k(tmp_path):
    """A tiny folder in Flickr8k's format; images as files."""
    folder = tmp_path / "flickr8k"
    write(folder / "text" / "Flickr8k.token.txt", TOKENS)
    for stem in ("train", "dev", "test"):
        write(folder / "text" / f"Flickr_8k.{stem}Images.txt", "".join(f"{name}\n" for name in NAMES))
    for name in NAMES:
        write(folder / "Flicker8k_Dataset" / name, photograph())
    return folder


@pytest.mark.parametrize("split", ["train", "val"])
def test_flickr8k(flickr8k, split):
    write(flickr8k / "text" / "Flickr_8k.devImages.txt", "c.jpg\r\n")
    data = load_captions("flickr8k", split, data_root=flickr8k.parent)
    assert [image.name for image in data.images] == (NAMES if split == "train" else ["c.jpg"])
    assert data.captions[-1] == ["A dog 0 in c.jpg .", "A dog 1 in c.jpg ."]


def test_images_in_an_archive(flickr8k):
    (flickr8k / "Flicker8k_Dataset").rename(flickr8k / "elsewhere")
    write(flickr8k / "images128_dev.tar", packed_photographs(["a.jpg", "x.jpg", "b.jpg", "c.jpg"]))
    data = load_captions("flickr8k", "val", data_root=flickr8k.parent)
    reds = [int(np.asarray(image.open())[0, 0, 0]) for image in data.images]
    assert reds == pytest.approx([80, 0, 120], abs=4)
    with pytest.raises(FileNotFoundError, match=r"Flicker8k_Dataset is missing; expected .*images128_train\.tar"):
        load_captions("flickr8k", "train", data_root=flickr8k.parent)


def test_an_image_without_a_caption_is_told(flickr8k):
    write(flickr8k / "text" / "Flickr8k.token.txt", TOKENS.replace("a.jpg#", "e.jpg#"))
    with pytest.raises(ValueError, match=r"a\.jpg has no photograph or no caption"):
        load_captions("flickr8k", "train", data_root=flickr8k.parent)


@pytest.fixture
def coco(tmp_path):
    """Write a tiny folder in the format of the Karpathy split, an image of every split that is named."""

    def coco(*splits, **changes):
        images = [
            {
                "filepath": "val2014", "filename": f"{number}.jpg", "split": split,
                "sentences": [{"raw": "A cat ."}, {"raw": " Two\n cats"}, {"raw": " "}],
            } | changes
            for number, split in enumerate(splits)
        ]  # fmt: skip
        write(tmp_path / "coco" / "dataset_coco.json", json.dumps({"images": images, "dataset": "coco"}))
        for number in range(len(splits)):
            write(tmp_path / "coco" / "val2014" / f"{number}.jpg", photograph())
        return lambda split: load_captions("coco", split, data_root=tmp_path)

    return coco


@pytest.mark.parametrize(
    ("split", "names"), [("train", ["0.jpg", "2.jpg", "4.jpg"]), ("val", ["3.jpg"]), ("test", ["1.jpg"])]
)
def test_coco(coco, split, names):
    data = coco("train", "test", "restval", "val", "train")(split)
    assert [image.name for image in data.images] == names
    assert data.captions == [["A cat .", "Two cats"]] * len(names)
    assert data.images[0].open().size == (12, 10)


@pytest.mark.parametrize("names", [{"filepath": ".."}, {"filename": "/dev/zero"}])
def test_names_stay_in_the_folder(coco, names):
    with pytest.raises(ValueError, match=r"dataset_coco\.json: image 1 cannot be read \(.* is no plain name"):
        coco("val", **names)("val")


@pytest.mark.parametrize(("mode", "kind"), [("CMYK", "JPEG"), ("P", "PNG")])
def test_colors(tmp_path, mode, kind):
    image = ImageFile(write(tmp_path / "a.jpg", photograph((255, 255, 255), mode, kind))).open()
    assert (image.mode, image.size) == ("RGB", (12, 10))
    assert np.asarray(image).min() > 240


@pytest.mark.parametrize(
    ("caption", "words"),
    [
        ("the men's T-shirts , 2 dogs!", ["the", "men", "'s", "t-shirts", "2", "dogs"]),
        ("the man’s hat", ["the", "man", "'s", "hat"]),
        ('"Stop" (red) ; -- tug-of-war -', ["stop", "red", "tug-of-war"]),
    ],
)
def test_caption_words(caption, words):
    assert caption_words(caption) == words


SPLITS = digit_scenes(0, train=300, val=60, test=60)
RELATIONS = {
    "left of": lambda place, other: place[1] < other[1],
    "right of": lambda place, other: place[1] > other[1],
    "above": lambda place, other: place[0] < other[0],
    "below": lambda place, other: place[0] > other[0],
}


def with_article(digit):
    return ("an " if digit == 8 else "a ") + DIGIT_NAMES[digit]


def sayable_and_true(places):
    """Every caption the grammar has of these digits, kept when it is true."""
    if len(places) == 1:
        (name,) = map(with_article, places)
        return {f"nothing but {name}", f"{name} and nothing else"}
    captions = set()
    for first, *others in permutations(places):
        for relations in product(RELATIONS, repeat=len(others)):
            pairs = list(zip(relations, others, strict=True))
            if all(RELATIONS[relation](places[first], places[other]) for relation, other in pairs):
                rest = " and ".join(f"{relation} {with_article(other)}" for relation, other in pairs)
                captions.add(f"{with_article(first)} {rest}")
    return captions


def test_same_everywhere():
    """Results of different machines and releases of Python are about the same scenes."""
    content = "".join(f"{scenes.captions} {scenes.digits.tolist()}" for scenes in SPLITS.values())
    pixels = (SPLITS["train"].regions * 16).round().to(torch.uint8).numpy().tobytes()
    assert sha256(content.encode() + pixels).hexdigest()[:16] == "5285825fb5a7c200"


def test_seed_and_size():
    small, other = digit_scenes(0, train=5, val=60, test=9), digit_scenes(1, train=5, val=1, test=1)
    assert small["train"].captions == SPLITS["train"].captions[:5]
    assert torch.equal(small["test"].regions, SPLITS["test"].regions[:9])
    assert torch.equal(small["val"].regions, SPLITS["val"].regions)
    assert other["train"].captions != small["train"].captions


@pytest.mark.parametrize("split", SPLITS)
def test_references_are_the_true_captions_and_words_have_cells(split):
    """All of them, in training those that name digits in falling order."""
    scenes = SPLITS[split]
    for scene, captions in enumerate(scenes.captions):
        digits = scenes.digits[scene].tolist()
        sayable = sayable_and_true({digit: divmod(cell, 3) for cell, digit in enumerate(digits) if digit != NO_CELL})
        if split == "train":
            named = {
                text: [DIGIT_NAMES.index(word) for word in text.split() if word in DIGIT_NAMES] for text in sayable
            }
            sayable = {text for text in sayable if named[text] == sorted(named[text], reverse=True)}
        assert sorted(captions) == sorted(sayable)
        words, cells = captions[0].split(), word_cells(scenes.digits[scene], captions[0])
        for word, cell in zip(words, cells, strict=True):
            assert cell == NO_CELL if word not in DIGIT_NAMES else DIGIT_NAMES[digits[cell]] == word
    absent = next(name for digit, name in enumerate(DIGIT_NAMES) if digit not in scenes.digits[0])
    assert word_cells(scenes.digits[0], f"a {absent} and banana") == [NO_CELL] * 4


def test_regions_are_pixels_and_position():
    scenes = SPLITS["train"]
    pixels, rows, columns = scenes.regions.split([64, 3, 3], -1)
    assert torch.equal((pixels > 0).any(-1), scenes.digits != NO_CELL)
    assert (pixels.min(), pixels.max()) == (0, 1)
    assert rows.argmax(-1)[0].tolist() == [0] * 3 + [1] * 3 + [2] * 3
    assert columns.argmax(-1)[0].tolist() == [0, 1, 2] * 3
    for cell in range(9):
        row, column = divmod(cell, 3)
        part = scenes.pictures[:, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8]
        assert torch.equal(part.flatten(1), scenes.regions[:, cell, :64])


def test_splits_share_no_handwriting():
    images = [set(map(tuple, scenes.regions[scenes.digits >= 0][:, :64].tolist())) for scenes in SPLITS.values()]
    assert len(set.union(*images)) == sum(map(len, images))
    assert len(images[0]) > 300


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
