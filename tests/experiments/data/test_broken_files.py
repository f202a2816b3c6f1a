"""What holds of every reader: it reads a whole file; any other ends in one error that names it, and runs nothing."""

import gzip
import io
import pickle
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from scipy.sparse import csr_matrix

from experiments.callbacks import read_run, read_weights
from experiments.data.graphs.load import read_pickle
from experiments.data.images.captions import open_photograph, tar_images
from experiments.data.images.region_captions import read_maps
from experiments.data.storage import read_arrays
from experiments.data.text.batches import Vocabulary, train_tokenizer
from experiments.data.text.parallel_text import read_lines
from experiments.files import DamagedFileError, read_yaml
from tests.experiments.data.tiny_files import packed_photographs, photograph


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


CALLBACKS = {name: {} for name in ("EarlyStopping", "History", "RandomState")}
RUN = {"epoch": 0, "state_dict": {"w": torch.zeros(2)}, "callbacks": CALLBACKS, "optimizer_states": [{}]}
MAPS = {"names": np.array(["a.jpg"]), "classes": np.array(["none", "dog"]), "named": np.zeros((1, 2, 2), int)}

# By the name of a file: what is in it, and what reads it.
READERS = {
    "a.npz": (partial(written, np.savez, x=np.ones(9)), read_arrays),
    "maps.npz": (partial(written, np.savez, **MAPS), read_maps),
    "ind.cora.x": (lambda: pickle.dumps(csr_matrix(np.eye(4)), 2), read_pickle),
    "a.jpg": (photograph, open_photograph),
    "a.tar": (partial(packed_photographs, ["a.jpg"]), tar_images),
    "text.gz": (lambda: gzip.compress(b"a line\n"), read_lines),
    "vocabulary.json": (lambda: train_tokenizer(["one two"], size=270).text.encode(), Vocabulary.load),
    "config.yaml": (lambda: b"{test_noise: [0.0, 0.5]}", partial(read_yaml, remedy="train again")),
    "last.ckpt": (lambda: saved(RUN), read_run),
    "best.safetensors": (lambda: safetensors.torch.save({"w": torch.zeros(2)}), read_weights),
}
RUNS_CODE = {
    "a.npz": partial(written, np.savez, x=np.array([Canary()])),
    "ind.cora.x": lambda: pickle.dumps(Canary()),
    "last.ckpt": lambda: saved(RUN | {"callbacks": Canary()}),
    "best.safetensors": lambda: saved({"w": Canary()}),
    "config.yaml": lambda: b"seed: !!python/object/apply:os.mkdir [canary]",
    "a.jpg": lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(canary) (w) file\n",
}


@pytest.mark.parametrize("name", READERS)
def test_every_reader(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    make, read = READERS[name]
    path, content = tmp_path / name, make()
    path.write_bytes(content)
    read(path)
    for broken in (b"\xff" * 99, *(RUNS_CODE[name]() for _ in range(name in RUNS_CODE))):
        path.write_bytes(broken)
        with pytest.raises(DamagedFileError, match=r" cannot be read \(.*\), expected .*; ") as info:
            read(path)
        assert str(path) in str(info.value)
        assert "\n" not in str(info.value)
        assert not Path("canary").exists()
    path.unlink()
    with pytest.raises(DamagedFileError, match=f"{name} is missing, expected"):
        read(path)


def test_pixels_are_bounded_by_pillow(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)
    (tmp_path / "a.jpg").write_bytes(photograph())
    with pytest.raises(DamagedFileError, match=r"a\.jpg cannot be read"):
        open_photograph(tmp_path / "a.jpg")
