"""A tiny graph in Planetoid's original format."""

import io
import pickle
import struct
from collections import defaultdict
from typing import ClassVar

import numpy as np
from scipy.sparse import csr_matrix

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
