"""Archives of numpy arrays that hold a graph, and a cache of arrays."""

import io
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

from experiments.datasets.graphs.archive import read_graph_archive
from experiments.datasets.images.image_features import GridEncoder, Scale, grid_features
from tests.experiments.datasets.hostile.case import Case, Content, Run, anywhere, later


def npy(descr: str = "'<f8'", shape: str = "(2,)", content: bytes = bytes(16), *, version: int = 1) -> bytes:
    """A .npy file with any header."""
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    length = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + length + header + content


def npz(*members: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return file.getvalue()


def entry(*arguments: object, **options: object) -> bytes:
    """An archive of one such file."""
    return npz(("y.npy", npy(*arguments, **options)))


def telling(archive: bytes, size: int) -> bytes:
    """An archive of one member with another size in its directory."""
    place = archive.rindex(b"PK\x01\x02") + 24
    return archive[:place] + struct.pack("<I", size) + archive[place + 4 :]


def encrypted(archive: bytes) -> bytes:
    place = archive.rindex(b"PK\x01\x02") + 8
    return archive[:place] + b"\x01\x00" + archive[place + 2 :]


def arrays(**changes: object) -> bytes:
    """A graph of six nodes, with changes."""
    values = {
        "x_data": np.ones(6, np.float32),
        "x_indices": np.zeros(6, np.int32),
        "x_indptr": np.arange(7),
        "x_shape": np.array([6, 4]),
        "y": np.zeros(6, int),
        "y_known": np.ones(6, bool),
        "edge_index": np.array([[0, 1], [1, 0]]),
        "train_idx": np.array([0]),
        "val_idx": np.array([1]),
        "test_idx": np.array([2]),
    }
    file = io.BytesIO()
    np.savez(file, **values | changes)
    return file.getvalue()


def objects() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([Run()], dtype=object), allow_pickle=True)
    return file.getvalue()


PROMISES = "its header promises"


def read_graph(root: Path) -> object:
    return read_graph_archive(root / "cora.npz", "cora", num_classes=7)


NUMBERS = "expected numbers, truth values or text"
ARCHIVES = [
    Case(f"npz: {name}", read_graph, {"cora.npz": content}, "cora.npz", seen)
    for name, content, seen in [
        ("terabytes", entry(shape=f"({10**12},)"), PROMISES),
        ("shape that overflows", entry(shape=f"({2**32}, {2**32})"), PROMISES),
        ("shape of 4000 digits", entry(shape=f"({'9' * 4000},)"), PROMISES),
        ("shape below 0", entry(shape="(-1, -2)"), PROMISES),
        ("99 dimensions", entry(shape=str((1,) * 99), content=bytes(8)), PROMISES),
        ("no numbers but 10 ** 30 rows", entry(shape=f"(0, {10**30})", content=b""), "entry 'y'"),
        ("more bytes than the header says", entry(content=bytes(999)), PROMISES),
        ("shape that is no tuple", entry(shape="'a'"), "entry 'y'"),
        ("objects", npz(("y.npy", objects())), "Python objects"),
        ("objects in a structure", entry(descr="[('a', '|O')]"), "Python objects"),
        ("structure", entry(descr="[('a', '<f8')]"), NUMBERS),
        ("type inside a type", entry(descr="('<f8', (1000000000,))"), "entry 'y'"),
        ("raw bytes", entry(descr="'|V16'", shape="(1,)"), NUMBERS),
        ("text without characters", entry(descr="'<U0'", shape=f"({10**12},)", content=b""), "expected numbers"),
        ("dates", entry(descr="'<M8[s]'"), NUMBERS),
        ("type that is none", entry(descr="'<z9'"), "entry 'y'"),
        ("truth of neither kind", entry(descr="'|b1'", content=b"\x02\x01"), "truth values that are neither"),
        ("text of no characters", entry(descr="'<U1'", shape="(1,)", content=b"\xff" * 4), "characters"),
        ("nested header", entry(shape="(" * 3000), "entry 'y'"),
        ("header that subtracts", entry(shape="-" * 9000 + "1"), ""),
        ("header that calls", entry(shape="__import__('os').system('touch canary')"), "entry 'y'"),
        ("header of 4 GB", npz(("y.npy", b"\x93NUMPY\x02\x00\xff\xff\xff\xff{")), "entry 'y'"),
        ("version 3", entry(version=3), "version (3, 0)"),
        ("pickle as an entry", npz(("y.npy", pickle.dumps(Run()))), "entry 'y'"),
        ("pickle", pickle.dumps(Run()), "expected a numpy archive without pickles"),
        ("array", npy(), "expected a numpy archive without pickles"),
        ("entry that is no array", npz(("y.txt", b"x")), "no .npy, or there twice"),
        ("outside", npz(("../canary.npy", npy()), ("/canary.npy", npy())), "missing among"),
        ("name of 60 000 letters", npz(("x" * 60000 + ".npy", npy())), "missing among"),
        ("lines in a name", npz(("a\nb.npy", npy(shape="(-1,)"))), "entry"),
        ("bzip2", npz(("y.npy", npy()), method=zipfile.ZIP_BZIP2), "packed in a way that numpy does not use"),
        ("lzma", npz(("y.npy", npy()), method=zipfile.ZIP_LZMA), "packed in a way that numpy does not use"),
        ("encrypted", encrypted(entry()), "password required"),
        ("bomb that tells its size", telling(npz(("y.npy", bytes(9))), 2**32 - 2), "unpacked, it has 4294967294 bytes"),
        ("bomb that tells less", later(lambda: telling(npz(("y.npy", bytes(2**27))), 1000)), "entry 'y'"),
        ("bomb with a false header", later(lambda: entry(content=bytes(2**27))), PROMISES),
        ("cut off", arrays()[:-100], "expected a numpy archive without pickles"),
        ("empty", b"", "expected a numpy archive without pickles"),
        ("10 ** 12 features", arrays(x_shape=np.array([6, 10**12])), "1000000000000 columns; expected at most 1048576"),
        ("nodes below 0", arrays(x_shape=np.array([-6, 4])), "expected x_data, x_indices"),
        ("columns below 0", arrays(x_indices=-np.ones(6, np.int32)), "expected x_data, x_indices"),
        ("row pointer", arrays(x_indptr=np.array([0, 6, 1, 2, 3, 4, 10**6])), "expected x_data, x_indices"),
        ("not finite", arrays(x_data=np.full(6, np.nan, np.float32)), "NaN or infinite values; expected finite"),
        ("label -1 in the training part", arrays(y=np.array([-1, 0, 0, 0, 0, 0])), "[-1]; expected values from 0 to 6"),
        (
            "label of 2 ** 64 - 1",
            arrays(y=np.array([2**64 - 1, 0, 0, 0, 0, 0], np.uint64)),
            "[-1]; expected values from",
        ),
        ("edge to no node", arrays(edge_index=np.array([[0, 6], [6, 0]])), "expected values from 0 to 5"),
        ("parts that overlap", arrays(val_idx=np.array([0])), "1 nodes of an earlier split; expected disjoint"),
        ("text for labels", arrays(y=np.array(["a"] * 6)), "expected integer in one dimension"),
    ]
]
ARCHIVES += anywhere("npz", read_graph, "cora.npz")


def cache(numbers: bytes | None = None, record: bytes | None = None) -> Content:
    """A folder with features of pictures, where the numbers or what tells of them are replaced."""

    def make(folder: Path) -> None:
        read_cache(folder.parent)
        for ending, content in ((".npy", numbers), (".json", record)):
            for path in folder.glob(f"*{ending}"):
                path.write_bytes(path.read_bytes() if content is None else content)

    return make


def read_cache(root: Path) -> object:
    encoder = GridEncoder("tiny", nn.AvgPool2d(4), Scale())
    return grid_features(encoder, torch.zeros(2, 3, 8, 8, dtype=torch.uint8), root / "cache")


HALVES = {"descr": "'<f2'", "shape": "(2, 4, 3)", "content": bytes(48)}
CACHES = [
    Case(f"cache: {name}", read_cache, {"cache": content}, "cache/tiny-", seen)
    for name, content, seen in [
        ("terabytes", cache(npy("'<f2'", f"(2, {10**12}, 3)")), "damaged"),
        ("shape that overflows", cache(npy("'<f2'", f"(2, {2**32}, {2**32})")), "damaged"),
        ("objects", cache(objects()), "damaged"),
        ("pickle", cache(pickle.dumps(Run())), "damaged"),
        ("archive", cache(entry(**HALVES)), "damaged"),
        ("text", cache(npy("'<U1'", "(2, 4, 3)", bytes(96))), "damaged"),
        ("other byte order", cache(npy("'>f2'", "(2, 4, 3)", bytes(48))), "damaged"),
        ("empty", cache(b""), "damaged"),
        ("nested record", cache(record=b"[" * 10**5), "damaged"),
        ("record that is a list", cache(record=b"[1, 2]"), "damaged"),
        ("record without notes", cache(record=b'{"key": {}}'), "damaged"),
        ("record in another encoding", cache(record=b"\xff\xfe\xff"), "damaged"),
    ]
]
