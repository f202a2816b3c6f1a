import io
import json
import os
import tarfile

import numpy as np
import pytest
from experiments.datasets.images.caption_data import CaptionedImages, caption_words
from experiments.datasets.images.image_files import ImageFile
from PIL import Image

from experiments.datasets.images.captions import load_captions

needs_data = pytest.mark.skipif(not os.environ.get("PYRO_ATTENTION_DATA"), reason="PYRO_ATTENTION_DATA is not set")
NAMES = ["b.jpg", "a.jpg", "c.jpg"]
TOKENS = "".join(
    f"{name}#{i}\tA  dog {i} in {name} .\n" for name in ["a.jpg", "b.jpg", "c.jpg", "d.jpg"] for i in (0, 1)
)


def picture(colour=(200, 30, 40), mode="RGB", kind="JPEG", size=(12, 8)):
    file = io.BytesIO()
    Image.new("RGB", size, colour).convert(mode).save(file, kind)
    return file.getvalue()


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.fixture
def flickr8k(tmp_path):
    """A tiny folder in Flickr8k's format; images as files."""
    folder = tmp_path / "flickr8k"
    write(folder / "text" / "Flickr8k.token.txt", TOKENS)
    for stem in ("train", "dev", "test"):
        write(folder / "text" / f"Flickr_8k.{stem}Images.txt", "".join(f"{name}\n" for name in NAMES))
    for name in [*NAMES, "d.jpg"]:
        write(folder / "Flicker8k_Dataset" / name, picture())
    return folder


def pack(archive, names, content=None):
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w") as tar:
        for number, name in enumerate(names):
            data = picture((40 * number, 0, 0)) if content is None else content
            info = tarfile.TarInfo(f"images/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return archive


# Flickr8k


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_flickr8k(flickr8k, split):
    data = load_captions("flickr8k", split, data_root=flickr8k.parent)
    assert [image.name for image in data.images] == NAMES
    assert data.captions[0] == ["A dog 0 in b.jpg .", "A dog 1 in b.jpg ."]
    assert (len(data), data.name, data.split, data.skipped) == (3, "flickr8k", split, {})
    assert data.images[0].open().size == (12, 8)


@pytest.mark.parametrize("place", ["Flickr8k_text", ".", "text"])
def test_places_of_the_text(flickr8k, place):
    write(flickr8k / "text" / "Flickr_8k.devImages.txt", "d.jpg\r\n")
    for path in list((flickr8k / "text").iterdir()):
        (flickr8k / place).mkdir(exist_ok=True)
        path.rename(flickr8k / place / path.name)
    assert len(load_captions("flickr8k", "train", data_root=flickr8k.parent)) == 3
    # the splits are those of their lists
    data = load_captions("flickr8k", "val", data_root=flickr8k.parent)
    assert [image.name for image in data.images] == ["d.jpg"]


def test_images_in_an_archive(flickr8k):
    for path in list((flickr8k / "Flicker8k_Dataset").iterdir()):
        path.unlink()
    (flickr8k / "Flicker8k_Dataset").rmdir()
    pack(flickr8k / "images128_dev.tar", ["a.jpg", "x.jpg", "b.jpg", "c.jpg"])
    data = load_captions("flickr8k", "val", data_root=flickr8k.parent)
    reds = [int(np.asarray(image.open())[0, 0, 0]) for image in data.images]
    assert reds == pytest.approx([80, 0, 120], abs=4)
    assert str(data.images[0]) == f"{flickr8k / 'images128_dev.tar'}, member images/b.jpg"
    with pytest.raises(FileNotFoundError, match=r"no photographs; expected .*Flicker8k_Dataset.*images128_train\.tar"):
        load_captions("flickr8k", "train", data_root=flickr8k.parent)


def without_caption(folder):
    write(folder / "text" / "Flickr8k.token.txt", TOKENS.replace("a.jpg#", "e.jpg#"))


def without_image(folder):
    (folder / "Flicker8k_Dataset" / "a.jpg").unlink()


@pytest.mark.parametrize(
    ("change", "error", "seen", "reason"),
    [
        (without_caption, ValueError, "has no caption", "no caption"),
        (without_image, FileNotFoundError, "is missing", "no image"),
    ],
)
@pytest.mark.parametrize("split", ["train", "test"])
def test_image_or_caption_that_is_not_there(flickr8k, split, change, error, seen, reason):
    change(flickr8k)
    with pytest.raises(error, match=rf"{split}Images\.txt: line 2: a\.jpg {seen}; expected .*--skip-bad"):
        load_captions("flickr8k", split, data_root=flickr8k.parent)
    data = load_captions("flickr8k", split, data_root=flickr8k.parent, skip=True)
    assert ([image.name for image in data.images], data.skipped) == (["b.jpg", "c.jpg"], {reason: 1})


@pytest.mark.parametrize(
    "line",
    [
        "a.jpg a dog\n",
        "a.jpg#0\t \n",
        "a.jpg#x\ta dog\n",
        b"a.jpg#0\tein H\xfcndchen\n",
    ],
)
def test_bad_caption_line(flickr8k, line):
    content = TOKENS.encode() + (line if isinstance(line, bytes) else line.encode())
    write(flickr8k / "text" / "Flickr8k.token.txt", content)
    with pytest.raises(ValueError, match=r"token\.txt: line 9 is b.*; expected IMAGE#NUMBER, a tab and .*--skip-bad"):
        load_captions("flickr8k", "train", data_root=flickr8k.parent)
    data = load_captions("flickr8k", "train", data_root=flickr8k.parent, skip=True)
    assert (len(data), data.skipped) == (3, {"bad line": 1})


# COCO


def entry(number, split, captions=("A cat .", " Two\n cats"), **other):
    sentences = [{"raw": caption, "tokens": caption.split(), "imgid": number} for caption in captions]
    image = {"filepath": "val2014", "filename": f"{number}.jpg", "imgid": number, "split": split}
    return image | {"sentences": sentences, "cocoid": 10 * number} | other


@pytest.fixture
def coco(tmp_path):
    """Write a tiny folder in the format of the Karpathy split; every image of it is there."""

    def coco(images):
        content = json.dumps({"images": images, "dataset": "coco"})
        write(tmp_path / "coco" / "dataset_coco.json", content)
        for image in images:
            write(tmp_path / "coco" / image.get("filepath", "") / image.get("filename", "none"), picture())
        return tmp_path / "coco"

    return coco


@pytest.mark.parametrize(
    ("split", "names"), [("train", ["0.jpg", "2.jpg", "4.jpg"]), ("val", ["3.jpg"]), ("test", ["1.jpg"])]
)
def test_coco(coco, split, names):
    splits = ["train", "test", "restval", "val", "train"]
    folder = coco([entry(number, split) for number, split in enumerate(splits)])
    data = load_captions("coco", split, data_root=folder.parent)
    assert [image.path for image in data.images] == [folder / "val2014" / name for name in names]
    assert data.captions == [["A cat .", "Two cats"]] * len(names)
    assert data.name == "coco"
    assert data.images[0].open().mode == "RGB"


def test_coco_image_missing_or_without_caption(coco):
    folder = coco([entry(0, "val"), entry(1, "val"), entry(2, "val", captions=[" "])])
    with pytest.raises(ValueError, match=r"dataset_coco\.json: image 3: .*2\.jpg has no caption; .*--skip-bad"):
        load_captions("coco", "val", data_root=folder.parent)
    (folder / "val2014" / "1.jpg").unlink()
    with pytest.raises(FileNotFoundError, match=r"image 2: .*val2014.1\.jpg is missing; .*--skip-bad"):
        load_captions("coco", "val", data_root=folder.parent)
    data = load_captions("coco", "val", data_root=folder.parent, skip=True)
    assert (len(data), data.skipped) == (1, {"no image": 1, "no caption": 1})


def test_names_stay_in_the_folder(coco):
    folder = coco([entry(0, "val")])
    for names in ({"filepath": ".."}, {"filename": "../0.jpg"}, {"filename": "/dev/zero"}):
        content = {"images": [entry(0, "val") | names], "dataset": "coco"}
        (folder / "dataset_coco.json").write_text(json.dumps(content))
        with pytest.raises(ValueError, match=r"dataset_coco\.json: image 1 cannot be read \(.* is no plain name"):
            load_captions("coco", "val", data_root=folder.parent)


# photographs


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("L", "JPEG"), ("CMYK", "JPEG"), ("RGB", "JPEG"), ("P", "PNG"), ("RGBA", "PNG"), ("1", "PNG"), ("LA", "PNG")],
)
def test_colours(tmp_path, mode, kind):
    image = ImageFile(write(tmp_path / "a.jpg", picture((255, 255, 255), mode, kind))).open()
    assert (image.mode, image.size) == ("RGB", (12, 8))
    assert np.asarray(image).min() > 240


# what all have in common


def test_without(tmp_path):
    images = [ImageFile(tmp_path / name) for name in NAMES]
    data = CaptionedImages(images, [["b"], ["a"], ["c"]], "mine", "val", {"no image": 2})
    less = data.without([1], "bad image")
    assert (less.images, less.captions) == ([images[0], images[2]], [["b"], ["c"]])
    assert less.skipped == {"no image": 2, "bad image": 1}
    assert len(data) == 3


@pytest.mark.parametrize(
    ("caption", "words"),
    [
        ("A Dog .", ["a", "dog"]),
        ("the men's T-shirts , 2 dogs!", ["the", "men", "'s", "t-shirts", "2", "dogs"]),
        ("the man 's hat", ["the", "man", "'s", "hat"]),
        ("the man’s hat", ["the", "man", "'s", "hat"]),
        ('"Stop" (red) ; -- tug-of-war -', ["stop", "red", "tug-of-war"]),
        (" ... ", []),
    ],
)
def test_caption_words(caption, words):
    assert caption_words(caption) == words


# real data


@needs_data
@pytest.mark.parametrize(("split", "size"), [("train", 6000), ("val", 1000), ("test", 1000)])
def test_real_flickr8k(split, size):
    data = load_captions("flickr8k", split)
    assert (len(data), data.skipped) == (size, {})
    assert {len(captions) for captions in data.captions} == {5}
    assert len({image.name for image in data.images}) == size
    assert all(image.open().mode == "RGB" for image in data.images[::100])
