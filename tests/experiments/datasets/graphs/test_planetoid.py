"""Planetoid's original files: what is read, and what is refused."""

import math
import os
import pickle
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from experiments.datasets.graphs import safe_pickle
from experiments.datasets.graphs.load import load_graph
from experiments.datasets.graphs.planetoid import read_planetoid
from experiments.graph.train import GraphConfig, load_trained, run
from tests.experiments.datasets.graphs.tiny_planetoid import check_tiny, edge_set, python2, tiny_content

REAL = os.environ.get("PYRO_ATTENTION_DATA")
needs_data = pytest.mark.skipif(not REAL, reason="PYRO_ATTENTION_DATA is not set")


@pytest.mark.parametrize("guide", ["soft", "weibull"])
def test_the_graph_script_trains_on_the_original_files(write, tmp_path, guide):
    root, out = write(), tmp_path / "run"
    options = {"dataset": "pubmed", "data_root": root, "guide": guide, "max_epochs": 3, "num_samples": 3}
    metrics = run(GraphConfig(**options, out=out, progress=False))
    assert math.isfinite(metrics["val_loss"])
    trained = load_trained(GraphConfig(**options, out=out, progress=False))
    assert [layer.heads for layer in trained.module.objective.model.layers] == [8, 8]


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


def too_wide():
    changes = {part: csr_matrix(tiny_content()[part]) for part in ("x", "tx", "allx")}
    for matrix in changes.values():
        matrix._shape = (matrix.shape[0], 10**12)
    return changes


NO_FEATURES, NO_LABELS = csr_matrix((0, 4), dtype=np.float32), np.zeros((0, 3), np.int32)
EIGHT = {"x": csr_matrix(np.ones((8, 4), np.float32)), "y": np.eye(3, dtype=np.int32)[[0] * 8]}
EMPTY = "an empty split; expected at least one node"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": NO_FEATURES, "y": NO_LABELS}, f"ind.pubmed.y: {EMPTY}"),
        ({"x": tiny_content()["allx"], "y": tiny_content()["ally"]}, f"ind.pubmed.ally: {EMPTY}"),
        ({"tx": NO_FEATURES, "ty": NO_LABELS, "test.index": ""}, f"ind.pubmed.test.index: {EMPTY}"),
        (EIGHT, "ind.pubmed.y: 8 rows, more than the 7 of ind.pubmed.ally"),
        (too_wide(), "allx: 1000000000000 columns; expected at most 1048576"),
    ],
    ids=["train", "validation", "test", "more to train on than nodes", "columns"],
)
def test_bad_sizes(write, changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        load_graph("pubmed", data_root=write(changes))


def test_refused_call_is_not_made(write, tmp_path):
    root = write({"graph": Call(os.mkdir, str(tmp_path / "made"))})
    with pytest.raises(ValueError, match="refused"):
        load_graph("pubmed", data_root=root)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(Call(bytes.fromhex, "00"), 2),
        pickle.dumps(Call(bytes.fromhex, "00"), 5),
        b"\x80\x02c_codecs\nencode\n(X\x01\x00\x00\x00aX\x05\x00\x00\x00rot13tR.",
    ],
    ids=["protocol 2", "protocol 5", "rot13"],
)
def test_bytes_by_another_codec(write, content):
    with pytest.raises(ValueError, match=r"(refused|rot13)"):
        load_graph("pubmed", data_root=write({"ty": content}))
