"""Planetoid's original files: what is read, what is refused, and fetching what is missing."""

import io
import os
import pickle
import re
import struct
import urllib.request
from collections import defaultdict
from hashlib import sha256
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from experiments.datasets.graphs.planetoid import read_planetoid
from scipy.sparse import csr_matrix

from experiments.datasets.graphs import planetoid
from experiments.datasets.graphs.load import load_graph

REAL = os.environ.get("PYRO_ATTENTION_DATA")
needs_data = pytest.mark.skipif(not REAL, reason="PYRO_ATTENTION_DATA is not set")

PARTS = ["x", "y", "tx", "ty", "allx", "ally", "graph", "test.index"]


def tiny_content():
    """Ten nodes: 0-2 to train on, 3-6 to validate, 9 and 7 to test; 8 is in no file, 6 has no edges."""
    allx = np.array([[1, 1, 0, 0], [0, 0, 2, 0], [0, 0, 0, 0], [3, 1, 0, 0], [0, 0, 0, 1], [1, 0, 0, 1], [0, 1, 0, 0]])
    ally = np.eye(3, dtype=np.int32)[[2, 0, 1, 1, 0, 2, 0]]
    graph = defaultdict(list, {node: [] for node in range(10)})
    # 0-3 is there twice, 4-9 in one direction only, 5 has a loop
    graph |= {0: [3, 3, 1], 1: [0, 7], 3: [0], 4: [9], 5: [5, 2], 7: [1], 2: [5]}
    return {
        "x": csr_matrix(allx[:3].astype(np.float32)),
        "y": ally[:3],
        "tx": csr_matrix(np.array([[0, 4, 0, 0], [0, 0, 1, 3]], dtype=np.float32)),
        "ty": np.eye(3, dtype=np.int32)[[1, 2]],
        "allx": csr_matrix(allx.astype(np.float32)),
        "ally": ally,
        "graph": graph,
        "test.index": "9\n7\n",
    }


class Python2Pickler(pickle._Pickler):
    """Writes strings and bytes as Python 2 did: both are runs of bytes."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_run(self, value):
        run = value.encode("latin1") if isinstance(value, str) else value
        self.write(pickle.BINSTRING + struct.pack("<i", len(run)) + run)
        self.memoize(value)

    dispatch[str] = dispatch[bytes] = save_run


def python2(value):
    """What Python 2 with the numpy and scipy of its time would have written."""
    file = io.BytesIO()
    Python2Pickler(file, protocol=2).dump(value)
    content = file.getvalue().replace(b"numpy._core.", b"numpy.core.")
    return content.replace(b"scipy.sparse._csr", b"scipy.sparse.csr")


def edge_set(graph):
    return set(map(tuple, graph.edge_index.T.tolist()))


def nodes_of(graph):
    return [mask.nonzero().flatten().tolist() for mask in (graph.train_mask, graph.val_mask, graph.test_mask)]


def check_tiny(graph):
    assert graph.name == "pubmed"
    assert graph.num_classes == 3
    expected = [[0.5, 0.5, 0, 0], [0, 0, 1, 0], [0] * 4, [0.75, 0.25, 0, 0], [0, 0, 0, 1], [0.5, 0, 0, 0.5]]
    expected += [[0, 1, 0, 0], [0, 0, 0.25, 0.75], [0] * 4, [0, 1, 0, 0]]
    assert graph.features.to_dense().tolist() == expected
    assert graph.labels.tolist() == [2, 0, 1, 1, 0, 2, 0, 2, 0, 1]
    assert nodes_of(graph) == [[0, 1, 2], [3, 4, 5, 6], [7, 9]]
    pairs = {(0, 1), (0, 3), (1, 7), (4, 9), (2, 5)}
    assert edge_set(graph) == pairs | {(target, source) for source, target in pairs}


@pytest.fixture
def write(tmp_path):
    """Write the files of a graph; changes are by part: a value to store, bytes as they are, or None for no file."""

    def write(changes=(), *, name="pubmed", folder="planetoid/raw", dump=python2):
        target = tmp_path / folder
        target.mkdir(parents=True, exist_ok=True)
        for part, value in (tiny_content() | dict(changes)).items():
            if isinstance(value, str):
                value = value.encode()
            if value is not None:
                (target / f"ind.{name}.{part}").write_bytes(value if isinstance(value, bytes) else dump(value))
        return tmp_path

    return write


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Folder that the files are fetched from instead of the network; empty at first."""
    folder = tmp_path / "server"
    folder.mkdir()
    monkeypatch.setattr(planetoid, "ADDRESS", folder.as_uri())
    return folder


@pytest.fixture
def published(write, server, monkeypatch):
    """The tiny graph is what is published."""
    write(folder="server")
    sums = {path.name: sha256(path.read_bytes()).hexdigest() for path in server.iterdir()}
    monkeypatch.setattr(planetoid, "SHA256", sums)
    return server


# reading


@pytest.mark.parametrize("folder", ["planetoid/raw", "planetoid", "raw", "."])
def test_pubmed_from_python_2(write, folder):
    check_tiny(load_graph("pubmed", data_root=write(folder=folder)))


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pubmed_from_python_3(write, protocol):
    check_tiny(load_graph("pubmed", data_root=write(dump=lambda value: pickle.dumps(value, protocol))))


def to_type(dtype):
    return lambda matrix: csr_matrix(matrix.toarray().astype(dtype))


@pytest.mark.parametrize(
    ("parts", "change"),
    [
        (("x", "tx", "allx"), to_type(np.float64)),
        (("x", "tx", "allx"), to_type(np.int64)),
        (("ty", "ally"), np.asfortranarray),
        (("ty", "ally"), lambda array: array.astype(">i8")),
        (("ty", "ally"), lambda array: array == 1),
        (("graph",), dict),
    ],
    ids=["float64", "int64", "order", "bytes", "truth", "plain dictionary"],
)
def test_other_types(write, parts, change):
    check_tiny(load_graph("pubmed", data_root=write({part: change(tiny_content()[part]) for part in parts})))


def test_order_of_test_nodes(write):
    swapped = load_graph("pubmed", data_root=write({"test.index": "7\r\n9"}))
    assert swapped.labels[[7, 9]].tolist() == [1, 2]
    assert swapped.features.to_dense()[7].tolist() == [0, 1, 0, 0]


def test_nodes_without_edges_need_no_key(write):
    loaded = load_graph("pubmed", data_root=write({"graph": {0: [8]}, "test.index": "8\n7\n"}))
    assert loaded.num_nodes == 9
    assert edge_set(loaded) == {(0, 8), (8, 0)}


@needs_data
@pytest.mark.parametrize("name", ["cora", "citeseer"])
def test_original_files_equal_the_archive(name):
    archive = load_graph(name)
    original = read_planetoid(Path(REAL) / "planetoid" / "raw", name, num_classes=archive.num_classes)
    assert torch.equal(original.features.to_dense(), archive.features.to_dense())
    assert edge_set(original) == edge_set(archive)
    assert original.edge_index.shape == archive.edge_index.shape
    for field in ("labels", "train_mask", "val_mask", "test_mask"):
        assert torch.equal(getattr(original, field), getattr(archive, field)), field


# bad content


class Call:
    """A pickle that calls something when it is read."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def one_hot(rows):
    return np.array(rows, dtype=np.int32)


def with_column_out_of_range():
    matrix = tiny_content()["allx"]
    matrix.indices[0] = 10**6
    return matrix


def edges(node, others):
    return dict(tiny_content()["graph"]) | {node: others}


NO_FEATURES, NO_LABELS = csr_matrix((0, 4), dtype=np.float32), np.zeros((0, 3), np.int32)
BAD_CONTENT = {
    "a call among lists": (
        {"graph": defaultdict(list, {0: [Call(print, "x")]})},
        "graph",
        "asks for __builtin__.print",
    ),
    "truncated": ({"graph": python2(tiny_content()["graph"])[:-5]}, "graph", "expected a pickle of a dictionary"),
    "matrix out of range": ({"allx": with_column_out_of_range()}, "allx", "expected a whole matrix"),
    "not a matrix": ({"x": np.eye(4)}, "x", "it holds ndarray"),
    "columns": ({"tx": csr_matrix((2, 5), dtype=np.float32)}, "tx", "5 columns; expected 4"),
    "classes": ({"ally": np.eye(7, dtype=np.int32)}, "ally", "shape [7, 7]; expected [nodes, 3]"),
    "two classes": ({"ty": one_hot([[0, 1, 0], [1, 0, 1]])}, "ty", "1 rows such as [[1, 0, 1]]; expected a single 1"),
    "negative": ({"ty": one_hot([[0, 1, 0], [1, 1, -1]])}, "ty", "1 rows such as [[1, 1, -1]]"),
    "rows": ({"ally": tiny_content()["ally"][:6]}, "ally", "6 rows; expected 7, as many as in ind.pubmed.allx"),
    "too large": ({"test.index": "9\n10\n"}, "test.index", "[10]; expected nodes from 7"),
    "too small": ({"test.index": "6\n9\n"}, "test.index", "[6]; expected nodes from 7"),
    "twice": ({"test.index": "9\n9\n"}, "test.index", "1 repeated nodes"),
    "too few": ({"test.index": "9\n"}, "test.index", "1 lines; expected 2, one a row of tx"),
    "neighbor": ({"graph": edges(0, [10, -1])}, "graph", "node [10] and 2 such in all; expected whole numbers from 0"),
    "key": ({"graph": edges(-1, [])}, "graph", "node [-1] and 1 such in all"),
    "none to train on": ({"x": NO_FEATURES, "y": NO_LABELS}, "y", "an empty split"),
}


@pytest.mark.parametrize(("changes", "part", "message"), BAD_CONTENT.values(), ids=BAD_CONTENT.keys())
def test_bad_content(write, changes, part, message):
    root = write(changes)
    path = root / "planetoid" / "raw" / f"ind.pubmed.{part}"
    with pytest.raises(ValueError, match=re.escape(str(path))) as info:
        load_graph("pubmed", data_root=root)
    assert message in str(info.value)


def test_refused_call_is_not_made(write, tmp_path):
    root = write({"graph": Call(os.mkdir, str(tmp_path / "made"))})
    with pytest.raises(ValueError, match="refused"):
        load_graph("pubmed", data_root=root)
    assert not (tmp_path / "made").exists()


# fetching


@pytest.mark.parametrize(
    "there", [(), tuple(part for part in PARTS if part not in ("graph", "ty"))], ids=["none", "some"]
)
def test_missing_files_are_fetched(published, write, tmp_path, there):
    root = write({part: None for part in PARTS if part not in there}) if there else tmp_path / "data"
    check_tiny(load_graph("pubmed", data_root=root))
    fetched = root / "planetoid" / "raw"
    assert sorted(path.name for path in fetched.iterdir()) == sorted(f"ind.pubmed.{part}" for part in PARTS)
    for path in published.iterdir():
        path.unlink()
    check_tiny(load_graph("pubmed", data_root=root))


@pytest.mark.parametrize("part", ["x", "graph"])
def test_rest_is_not_fetched_to_go_with_other_files(published, write, part):
    other = {"x" if part != "x" else "y": b"another"}
    root = write({part: None} | other)
    with pytest.raises(FileNotFoundError) as info:
        load_graph("pubmed", data_root=root)
    message = str(info.value)
    assert f"ind.pubmed.{part} missing; expected all of ind.pubmed.x, " in message
    assert f"because ind.pubmed.{next(iter(other))} differs" in message
    assert "--data-root" in message
    assert not (root / "planetoid" / "raw" / f"ind.pubmed.{part}").exists()


def test_wrong_checksum(published, tmp_path):
    (published / "ind.pubmed.tx").write_bytes(b"changed")
    with pytest.raises(ValueError, match="has the SHA-256 checksum") as info:
        load_graph("pubmed", data_root=tmp_path / "data")
    message = str(info.value)
    expected, found = planetoid.SHA256["ind.pubmed.tx"], sha256(b"changed").hexdigest()
    for part in (str(tmp_path / "data"), published.as_uri(), expected, found, "Nothing of it was kept", "intact copy"):
        assert part in message
    left = sorted(path.name for path in (tmp_path / "data" / "planetoid" / "raw").iterdir())
    assert left == ["ind.pubmed.x", "ind.pubmed.y"]


def test_no_network(tmp_path, server):
    with pytest.raises(FileNotFoundError) as info:
        load_graph("citeseer", data_root=tmp_path / "data")
    places = [str(tmp_path / "data" / place) for place in ("citeseer.npz", "planetoid/raw", "raw")]
    files = [f"ind.citeseer.{part}" for part in PARTS]
    for part in [*places, *files, server.as_uri(), "could not be fetched", "x_indptr", "--data-root"]:
        assert part in str(info.value)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("error", [ConnectionResetError("reset"), KeyboardInterrupt()])
def test_interrupted_download_leaves_nothing(published, tmp_path, monkeypatch, error):
    class Broken(io.BytesIO):
        def read(self, size=-1):
            raise error

    monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: Broken(b"x" * 100))
    with pytest.raises((FileNotFoundError, KeyboardInterrupt)):
        load_graph("pubmed", data_root=tmp_path / "data")
    assert not (tmp_path / "data").exists()
