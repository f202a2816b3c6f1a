"""Photographs and their captions: every place where they may lie, what is left out, and what is refused."""

import json

import numpy as np
import pytest

from experiments.datasets.images.captions import ImageFile, caption_words, load_captions
from tests.experiments.datasets.tiny_files import packed_photographs, photograph, write

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
def test_colours(tmp_path, mode, kind):
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
