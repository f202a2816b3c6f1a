import io
import math
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
from scipy.sparse import csr_matrix

from experiments.datasets.graphs import planetoid_files, safe_pickle
from experiments.datasets.graphs.load import load_graph
from experiments.datasets.graphs.planetoid import read_planetoid
from experiments.files import UserError
from experiments.graph.train import GraphConfig, load_trained, run

PARTS = ["x", "y", "tx", "ty", "allx", "ally", "graph", "test.index"]
REAL = os.environ.get("PYRO_ATTENTION_DATA")
needs_data = pytest.mark.skipif(not REAL, reason="PYRO_ATTENTION_DATA is not set")


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


@pytest.fixture(autouse=True)
def server(tmp_path, monkeypatch):
    """Folder that the files are fetched from instead of the network; empty at first."""
    folder = tmp_path / "server"
    folder.mkdir()
    monkeypatch.setattr(planetoid_files, "ADDRESS", folder.as_uri())
    return folder


@pytest.fixture
def published(write, server, monkeypatch):
    """The tiny graph is what is published."""
    write(folder="server")
    sums = {path.name: sha256(path.read_bytes()).hexdigest() for path in server.iterdir()}
    monkeypatch.setattr(planetoid_files, "SHA256", sums)
    return server


def edge_set(graph):
    return set(map(tuple, graph.edge_index.T.tolist()))


def nodes_of(graph):
    return [mask.nonzero().flatten().tolist() for mask in (graph.train_mask, graph.val_mask, graph.test_mask)]


@pytest.mark.parametrize("guide", ["soft", "weibull"])
def test_the_graph_script_trains_on_the_original_files(write, tmp_path, guide):
    root, out = write(), tmp_path / "run"
    options = {"dataset": "pubmed", "data_root": root, "guide": guide, "max_epochs": 3, "num_samples": 3}
    metrics = run(GraphConfig(**options, out=out, progress=False))
    assert math.isfinite(metrics["val_loss"])
    trained = load_trained(GraphConfig(**options, out=out, progress=False))
    assert [layer.heads for layer in trained.module.objective.model.layers] == [8, 8]


# reading


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


@pytest.mark.parametrize("folder", ["planetoid/raw", "planetoid", "raw", "."])
def test_pubmed_from_python_2(write, folder):
    check_tiny(load_graph("pubmed", data_root=write(folder=folder)))


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pubmed_from_python_3(write, protocol):
    check_tiny(load_graph("pubmed", data_root=write(dump=lambda value: pickle.dumps(value, protocol))))


@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_types_of_features(write, dtype):
    changes = {part: csr_matrix(tiny_content()[part].toarray().astype(dtype)) for part in ("x", "tx", "allx")}
    check_tiny(load_graph("pubmed", data_root=write(changes)))


@pytest.mark.parametrize("change", [np.asfortranarray, lambda array: array.astype(">i8"), lambda array: array == 1])
def test_types_of_labels(write, change):
    check_tiny(load_graph("pubmed", data_root=write({part: change(tiny_content()[part]) for part in ("ty", "ally")})))


def test_plain_dictionary_and_order_of_test_nodes(write):
    graph = dict(tiny_content()["graph"])
    check_tiny(load_graph("pubmed", data_root=write({"graph": graph})))
    swapped = load_graph("pubmed", data_root=write({"test.index": "7\r\n9"}))
    assert swapped.labels[[7, 9]].tolist() == [1, 2]
    assert swapped.features.to_dense()[7].tolist() == [0, 1, 0, 0]


def test_nodes_without_edges_need_no_key(write):
    loaded = load_graph("pubmed", data_root=write({"graph": {0: [8]}, "test.index": "8\n7\n"}))
    assert loaded.num_nodes == 9
    assert edge_set(loaded) == {(0, 8), (8, 0)}


def test_archive_comes_first(write, tmp_path):
    root = write()
    (root / "planetoid" / "pubmed.npz").write_bytes(b"")
    with pytest.raises(ValueError, match=re.escape("pubmed.npz")):
        load_graph("pubmed", data_root=root)


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


def edges(**changes):
    return {"graph": dict(tiny_content()["graph"]) | {int(key[1:]): value for key, value in changes.items()}}


def with_nan():
    matrix = tiny_content()["tx"]
    matrix.data[0] = np.nan
    return matrix


def with_column_out_of_range():
    matrix = tiny_content()["allx"]
    matrix.indices[0] = 10**6
    return matrix


TY = tiny_content()["ty"]
BAD_CONTENT = {
    "system": ("graph", Call(os.system, "true"), f"asks for {os.name}.system, which was refused"),
    "eval": ("ty", Call(eval, "1"), "asks for __builtin__.eval, which was refused"),
    "nested": ("graph", defaultdict(list, {0: [Call(print, "x")]}), "asks for __builtin__.print"),
    "factory": ("graph", defaultdict(set, {0: []}), "asks for __builtin__.set"),
    "truncated matrix": ("allx", python2(tiny_content()["allx"])[:-40], "expected a pickle of"),
    "truncated graph": ("graph", python2(tiny_content()["graph"])[:-5], "expected a pickle of"),
    "empty": ("y", b"", "pickle exhausted before seeing STOP; expected a pickle of"),
    "web page": ("tx", b"<html>not found</html>", "expected a pickle of"),
    "objects": ("ty", np.array([["a"]], dtype=object), "an array of type 'O8', expected numbers"),
    "bytes missing": ("ty", python2(TY).replace(b"K\x02K\x03", b"K\x07K\x03"), "24 bytes for the shape (7, 3)"),
    "matrix out of range": ("allx", with_column_out_of_range(), "expected a pickle of"),
    "not a matrix": ("x", np.eye(4), "ndarray; expected a scipy.sparse.csr_matrix"),
    "nan": ("tx", with_nan(), "NaN or infinite values; expected finite values"),
    "columns": ("tx", csr_matrix((2, 5), dtype=np.float32), "5 columns; expected 4, as many as in ind.pubmed.allx"),
    "not an array": ("y", [[1, 0, 0]], "list; expected a numpy array"),
    "classes": ("ally", np.eye(7, dtype=np.int32), "shape [7, 7]; expected [nodes, 3], one column a class"),
    "one dimension": ("ty", np.array([1, 2]), "shape [2]; expected [nodes, 3]"),
    "no class": ("ty", one_hot([[0, 1, 0], [0, 0, 0]]), "1 rows such as [[0, 0, 0]]; expected a single 1"),
    "two classes": ("ty", one_hot([[0, 1, 0], [1, 0, 1]]), "1 rows such as [[1, 0, 1]]; expected a single 1"),
    "not ones": ("ally", 2 * tiny_content()["ally"], "7 rows such as [[0, 0, 2]]; expected a single 1"),
    "negative": ("ty", one_hot([[0, 1, 0], [1, 1, -1]]), "1 rows such as [[1, 1, -1]]; expected a single 1"),
    "rows": ("ally", tiny_content()["ally"][:6], "6 rows; expected 7, as many as in ind.pubmed.allx"),
    "garbage": ("test.index", "9\nseven\n", "'seven' in line 2; expected one whole number a line"),
    "binary": ("test.index", b"\x80\x02\xff", "in line 1; expected one whole number a line"),
    "too large": ("test.index", "9\n10\n", "[10]; expected nodes from 7 (the number of rows of allx) to 9"),
    "too small": ("test.index", "6\n9\n", "[6]; expected nodes from 7"),
    "twice": ("test.index", "9\n9\n", "1 repeated nodes; expected each node once"),
    "too few": ("test.index", "9\n", "1 lines; expected 2, one a row of tx"),
    "no dictionary": ("graph", [[1], [0]], "list; expected a dictionary of lists"),
    "no list": ("graph", edges(_0=3)["graph"], "int of node 0; expected a list of neighbours"),
    "neighbour": (
        "graph",
        edges(_0=[10, -1])["graph"],
        "node [10] and 2 such in all; expected whole numbers from 0 to 9",
    ),
    "huge": ("graph", edges(_0=[10**30])["graph"], "a number of 100 bits, expected numbers of nodes"),
    "key": ("graph", edges(_0=[1])["graph"] | {-1: []}, "node [-1] and 1 such in all; expected whole numbers"),
    "name": ("graph", edges(_0=["a"])["graph"], "node ['a'] and 1 such"),
}


@pytest.mark.parametrize(("part", "value", "message"), BAD_CONTENT.values(), ids=BAD_CONTENT.keys())
def test_bad_content(write, part, value, message):
    root = write({part: value})
    path = root / "planetoid" / "raw" / f"ind.pubmed.{part}"
    with pytest.raises(ValueError, match=re.escape(str(path))) as info:
        load_graph("pubmed", data_root=root)
    for wanted in (message, "; expected ", "Replace the file", "--data-root", "PYRO_ATTENTION_DATA"):
        assert wanted in str(info.value)


@pytest.mark.parametrize(
    ("part", "value"),
    [("graph", [[0] * 99] * 10**5), ("graph", {0: [0] * 10**5}), ("ty", pickle.dumps([0] * 10**5))],
    ids=["lists", "neighbours", "numbers"],
)
def test_number_of_instructions_is_bounded(write, monkeypatch, part, value):
    root = write({part: value})
    monkeypatch.setattr(safe_pickle, "MOST_INSTRUCTIONS", 1000)
    with pytest.raises(ValueError, match=r"ind\.pubmed\.\w+: more than 1000 instructions \(MOST_INSTRUCTIONS\)"):
        load_graph("pubmed", data_root=root)


@pytest.mark.parametrize("content", [b"defaultdict\nN}U\x04evilK\x01s\x86b.", b"defaultdict\n}U\x04evilK\x01sb."])
def test_classes_of_records_cannot_be_changed(write, content):
    """A state is given to an object; a class of ours would take it for attributes that stay."""
    with pytest.raises(ValueError, match=r"ind\.pubmed\.graph: "):
        load_graph("pubmed", data_root=write({"graph": b"\x80\x02ccollections\n" + content}))
    assert not hasattr(safe_pickle._Dictionary, "evil")


def test_features_of_too_many_columns(write):
    changes = {part: csr_matrix(tiny_content()[part]) for part in ("x", "tx", "allx")}
    for matrix in changes.values():
        matrix._shape = (matrix.shape[0], 10**12)
    with pytest.raises(ValueError, match=r"allx: 1000000000000 columns; expected at most 1048576"):
        load_graph("pubmed", data_root=write(changes))


def test_refused_call_is_not_made(write, tmp_path):
    root = write({"graph": Call(os.mkdir, str(tmp_path / "made"))})
    with pytest.raises(ValueError, match="refused"):
        load_graph("pubmed", data_root=root)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("protocol", [2, 5])
def test_bytes_by_another_codec(write, protocol):
    call = pickle.dumps(Call(bytes.fromhex, "00"), protocol)
    encode = b"\x80\x02c_codecs\nencode\n(X\x01\x00\x00\x00aX\x05\x00\x00\x00rot13tR."
    for content in (call, encode):
        with pytest.raises(ValueError, match=r"(refused|rot13)"):
            load_graph("pubmed", data_root=write({"ty": content}))


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"x": csr_matrix((0, 4), dtype=np.float32), "y": np.zeros((0, 3), np.int32)}, "y"),
        ({"x": tiny_content()["allx"], "y": tiny_content()["ally"]}, "ally"),
        (
            {"tx": csr_matrix((0, 4), dtype=np.float32), "ty": np.zeros((0, 3), np.int32), "test.index": ""},
            "test.index",
        ),
    ],
    ids=["train", "validation", "test"],
)
def test_empty_split(write, changes, part):
    with pytest.raises(ValueError, match=re.escape(f"ind.pubmed.{part}: an empty split; expected at least one node")):
        load_graph("pubmed", data_root=write(changes))


def test_more_training_nodes_than_nodes(write):
    changes = {"x": csr_matrix(np.ones((8, 4), np.float32)), "y": np.eye(3, dtype=np.int32)[[0] * 8]}
    with pytest.raises(ValueError, match=r"ind\.pubmed\.y: 8 rows, more than the 7 of ind\.pubmed\.ally"):
        load_graph("pubmed", data_root=write(changes))


# fetching


def test_missing_files_are_fetched(published, tmp_path):
    root = tmp_path / "data"
    check_tiny(load_graph("pubmed", data_root=root))
    fetched = root / "planetoid" / "raw"
    assert sorted(path.name for path in fetched.iterdir()) == sorted(f"ind.pubmed.{part}" for part in PARTS)
    for path in published.iterdir():
        path.unlink()
    check_tiny(load_graph("pubmed", data_root=root))


def test_rest_is_fetched(published, write):
    root = write({part: None for part in ("graph", "ty")})
    check_tiny(load_graph("pubmed", data_root=root))


@pytest.mark.parametrize("part", PARTS)
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
    expected, found = planetoid_files.SHA256["ind.pubmed.tx"], sha256(b"changed").hexdigest()
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


def test_folder_that_cannot_be_made(published, tmp_path):
    (tmp_path / "data").write_text("a file")
    with pytest.raises(UserError, match="cannot be written"):
        load_graph("pubmed", data_root=tmp_path / "data")


@pytest.mark.parametrize("error", [ConnectionResetError("reset"), KeyboardInterrupt()])
def test_interrupted_download_leaves_nothing(published, tmp_path, monkeypatch, error):
    class Broken(io.BytesIO):
        def read(self, size=-1):
            raise error

    monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: Broken(b"x" * 100))
    with pytest.raises((FileNotFoundError, KeyboardInterrupt)):
        load_graph("pubmed", data_root=tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_checksums_are_known_for_every_file():
    names = {f"ind.{name}.{part}" for name in ("cora", "citeseer", "pubmed") for part in PARTS}
    assert planetoid_files.SHA256.keys() == names
    assert all(re.fullmatch("[0-9a-f]{64}", value) for value in planetoid_files.SHA256.values())


@needs_data
@pytest.mark.parametrize("name", ["cora", "citeseer"])
def test_checksums_are_those_of_the_real_files(name, tmp_path, monkeypatch):
    monkeypatch.setattr(planetoid_files, "ADDRESS", (Path(REAL) / "planetoid" / "raw").resolve().as_uri())
    assert load_graph(name, data_root=tmp_path).num_nodes == load_graph(name).num_nodes
