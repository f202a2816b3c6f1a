"""What all data sets share: registries, arrays that are made once, and published files that are fetched."""

import gzip
from hashlib import sha256
from typing import get_args

import numpy as np
import pytest
import torch

from experiments.data.dataset_names import CaptionsName, GraphName, ParallelName, PhotoQuestionsName
from experiments.data.graphs.load import GRAPHS
from experiments.data.images.captions import CAPTIONS
from experiments.data.questions.load import QUESTIONS
from experiments.data.storage import CHECKSUMS, cached_array, fetch_missing, read_arrays
from experiments.data.text.masked_text import ENGLISH
from experiments.data.text.parallel import PARALLEL


def test_options_name_what_is_registered():
    for registry, names in (
        (GRAPHS, GraphName), (CAPTIONS, CaptionsName), (PARALLEL, ParallelName), (QUESTIONS, PhotoQuestionsName)
    ):  # fmt: skip
        assert set(get_args(names)) == set(registry)
    assert {name for names in ENGLISH.values() for name in names} <= set(PARALLEL)


# arrays


def test_an_array_is_made_once_and_only_whole(tmp_path):
    def fails():
        assert list(tmp_path.glob("*.npy")) == []
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        cached_array(tmp_path, "x", {"a": 1}, fails)
    first = cached_array(tmp_path, "x", {"a": 1}, lambda: np.ones((2, 3), np.float32))
    assert first.tolist() == [[1.0] * 3] * 2
    first.zero_()  # in memory only
    assert cached_array(tmp_path, "x", {"a": 1}, lambda: pytest.fail("made twice")).tolist() == [[1.0] * 3] * 2
    assert cached_array(tmp_path, "x", {"a": 2}, lambda: np.zeros((1, 3))).tolist() == [[0.0] * 3]


def test_arrays_of_another_byte_order(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(3, dtype=">i8"))
    assert torch.from_numpy(read_arrays(tmp_path / "a.npz")["x"]).tolist() == [0, 1, 2]


# fetching


@pytest.fixture
def fetch(tmp_path, monkeypatch):
    """Fetch a and b, of which the folder may have some, from a folder of packed files."""
    server = tmp_path / "server"
    server.mkdir()
    for name in ("a", "b"):
        (server / f"{name}.gz").write_bytes(gzip.compress(name.encode()))
        monkeypatch.setitem(CHECKSUMS, name, sha256(name.encode()).hexdigest())
    return lambda: fetch_missing(tmp_path / "data", ["a", "b"], server.as_uri(), ".gz")


@pytest.mark.parametrize("there", [False, True])
def test_missing_files_are_fetched(fetch, tmp_path, there):
    if there:
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "a").write_bytes(b"a")
    fetch()
    assert {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()} == {"a": b"a", "b": b"b"}


@pytest.mark.parametrize("content", [gzip.compress(b"other"), b"<html>"], ids=["other", "page"])
def test_nothing_is_kept_of_a_damaged_download(fetch, tmp_path, content):
    (tmp_path / "server" / "a.gz").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.gz cannot be read .*intact copy"):
        fetch()
    assert not (tmp_path / "data").exists()
