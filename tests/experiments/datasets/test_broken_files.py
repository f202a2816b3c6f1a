"""What holds of every reader: it reads a whole file; any other ends in one error that names it, and runs nothing."""

import gzip
import io
import json
import pickle
import tarfile
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from experiments.datasets.graphs.planetoid import _read_pickle
from experiments.datasets.images.image_files import ImageFile, open_photograph, tar_images
from experiments.datasets.images.karpathy import read_karpathy
from experiments.datasets.images.mobilenet import mobilenet_grid
from experiments.datasets.questions.readers.vqa_v2 import read_json_file
from PIL import Image
from scipy.sparse import csr_matrix

from experiments.datasets.arrays import map_array, read_arrays
from experiments.datasets.images.segmentation import read_maps
from experiments.datasets.text.headlines import read_headlines
from experiments.datasets.text.parallel_text import read_lines
from experiments.datasets.text.squad import read_squad
from experiments.datasets.text.vocabulary import Vocabulary, train_tokenizer
from experiments.files import DamagedFileError, read_json, read_text, read_yaml
from experiments.harness.checkpoints import read_run
from experiments.harness.weights import read_weights


class Canary:
    """Makes a file where it is unpickled."""

    def __reduce__(self):
        return Path.touch, (Path("canary"),)


def written(write, *arguments, **options):
    file = io.BytesIO()
    write(file, *arguments, **options)
    return file.getvalue()


def saved(content):
    return written(lambda file: torch.save(content, file))


def photograph(kind="JPEG"):
    return written(Image.new("RGB", (40, 30), (9, 99, 200)).save, kind)


def archive():
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        member = tarfile.TarInfo("a.jpg")
        member.size = len(photograph())
        tar.addfile(member, io.BytesIO(photograph()))
    return file.getvalue()


CALLBACKS = {name: {} for name in ("EarlyStopping", "History", "RandomState")}
RUN = {"epoch": 0, "state_dict": {"w": torch.zeros(2)}, "callbacks": CALLBACKS, "optimizer_states": [{}]}
LISTED = {"dataset": "coco", "images": [{"filename": "a.jpg", "split": "val", "sentences": [{"raw": "a cat"}]}]}
ASKED = {"id": "q", "question": "who?", "answers": [{"text": "Ada", "answer_start": 3}]}
ARTICLE = {"title": "Ada", "paragraphs": [{"context": "So Ada wrote it.", "qas": [ASKED]}]}
MAPS = {"names": np.array(["a.jpg"]), "classes": np.array(["none", "dog"]), "named": np.zeros((1, 2, 2), int)}


def listed(path):
    (path.parent / "a.jpg").write_bytes(photograph())
    return read_karpathy(path, path.parent, "val")


def as_json(content):
    return json.dumps(content).encode()


# By the name of a file: what is in it, and what reads it.
READERS = {
    "a.npz": (partial(written, np.savez, x=np.ones(9)), read_arrays),
    "a.npy": (partial(written, np.save, np.ones(99)), map_array),
    "maps.npz": (partial(written, np.savez, **MAPS), read_maps),
    "ind.cora.x": (
        lambda: pickle.dumps(csr_matrix(np.eye(4)), 2),
        partial(_read_pickle, kind=csr_matrix, expected="it"),
    ),
    "a.jpg": (photograph, open_photograph),
    "a.png": (partial(photograph, "PNG"), lambda path: ImageFile(path).open()),
    "a.tar": (archive, tar_images),
    "list.json": (lambda: as_json(LISTED), listed),
    "questions.json.gz": (lambda: gzip.compress(as_json(LISTED)), read_json_file),
    "text.gz": (lambda: gzip.compress(b"a line\n"), read_lines),
    "squad.json": (lambda: as_json({"data": [ARTICLE]}), read_squad),
    "a.jsonl": (lambda: as_json({"text": "a", "summaries": ["b"]}), read_headlines),
    "vocabulary.json": (lambda: train_tokenizer(["one two"], size=270).text.encode(), Vocabulary.load),
    "answers.txt": (lambda: "café".encode(), partial(read_text, remedy="train again")),
    "metrics.json": (lambda: as_json({"loss": 1}), partial(read_json, remedy="train again")),
    "config.yaml": (lambda: b"{test_noise: [0.0, 0.5]}", partial(read_yaml, remedy="train again")),
    "last.ckpt": (lambda: saved(RUN), read_run),
    "best.ckpt": (lambda: saved({"state_dict": {"w": torch.zeros(2)}}), read_weights),
    "best.safetensors": (lambda: safetensors.torch.save({"w": torch.zeros(2)}), read_weights),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(path, content, read):
    path.write_bytes(content)
    with pytest.raises(DamagedFileError, match=r" cannot be read \(.*\), expected .*; ") as info:
        read(path)
    assert str(path) in str(info.value)
    assert "\n" not in str(info.value)
    assert len(str(info.value)) < 1000
    assert not Path("canary").exists()


@pytest.mark.parametrize("name", READERS)
def test_every_reader(folder, name):
    make, read = READERS[name]
    (folder / name).write_bytes(make())
    read(folder / name)
    content = make()
    refused(folder / name, content[: 4 if name == "answers.txt" else min(700, 2 * len(content) // 3)], read)
    refused(folder / name, b"\xff" * 99, read)
    (folder / name).unlink()
    if name != "list.json":  # that of a data set says where it comes from
        with pytest.raises(DamagedFileError, match=f"{name} is missing, expected"):
            read(folder / name)


RUNS_CODE = {
    "a.npz": partial(written, np.savez, x=np.array([Canary()])),
    "a.npy": partial(written, np.save, np.array([Canary()])),
    "ind.cora.x": lambda: pickle.dumps(Canary()),
    "last.ckpt": lambda: saved(RUN | {"callbacks": Canary()}),
    "best.ckpt": lambda: saved({"state_dict": Canary()}),
    "best.safetensors": lambda: saved({"w": Canary()}),
    "config.yaml": lambda: b"seed: !!python/object/apply:os.mkdir [canary]",
    "a.jpg": lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(canary) (w) file\n",
}


@pytest.mark.parametrize("name", RUNS_CODE)
def test_code_in_a_file_is_not_run(folder, name):
    refused(folder / name, RUNS_CODE[name](), READERS[name][1])


def test_pixels_are_bounded_by_pillow(folder, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)
    refused(folder / "a.jpg", photograph(), open_photograph)


def test_weights_of_another_network(folder):
    pytest.importorskip("torchvision")
    refused(folder / "a.safetensors", safetensors.torch.save({"w": torch.zeros(2)}), mobilenet_grid)


def test_an_archive_of_something_else(folder):
    with zipfile.ZipFile(folder / "a.npz", "w") as file:
        file.writestr("x.txt", "no array")
    refused(folder / "a.npz", (folder / "a.npz").read_bytes(), read_arrays)
