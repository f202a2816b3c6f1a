"""Pickles."""

import os
import pickle
import struct
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from experiments.datasets.graphs.safe_pickle import read_pickle
from tests.experiments.datasets.hostile.case import Case, Run, anywhere


class Raw:
    """Instructions of a pickle, written by hand."""

    LISTS = b"\x80\x02]q\x00" + b"".join(b"]q%c(%se" % (n, b"h%c" % (n - 1) * 10) for n in range(1, 9)) + b"."
    KEYS = b"\x80\x02}(" + b"K\x00]q\x00(" + b"K\x01" * 2000 + b"e"
    KEYS += b"".join(b"M%sh\x00" % struct.pack("<H", n) for n in range(1, 2000)) + b"u."
    ITSELF = b"\x80\x02]q\x00h\x00a."
    COPIES = b"\x80\x02](" + b"N" * 10**5 + b"eq\x00c__builtin__\nlist\nq\x01" + b"h\x01h\x00\x85R" * 5000 + b"."
    DICTIONARIES = b"\x80\x02}(" + b"".join(b"J%sN" % struct.pack("<i", n) for n in range(10**4)) + b"uq\x00"
    DICTIONARIES += b"ccollections\ndefaultdict\nq\x01" + b"h\x01Nh\x00\x86R" * 5000 + b"cos\nsystem\n."
    TEXTS = b"\x80\x02X\x40\x42\x0f\x00" + b"a" * 10**6 + b"q\x00c_codecs\nencode\nq\x01X\x06\x00\x00\x00latin1q\x02"
    TEXTS += b"h\x01h\x00h\x02\x86R" * 3000 + b"."

    @staticmethod
    def array(shape: bytes, content: bytes) -> bytes:
        start = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R("
        dtype = b"cnumpy\ndtype\nU\x02i4K\x00K\x01\x87R(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        return start + b"K\x01" + shape + dtype + b"\x89" + content + b"tb."

    @staticmethod
    def matrix(columns: int, index: int) -> bytes:
        matrix = csr_matrix((np.ones(1, np.float32), ([0], [0])), shape=(1, 4))
        matrix.indices[0], matrix._shape = index, (1, columns)
        return pickle.dumps(matrix, 2)


def read(root: Path) -> object:
    return read_pickle(root / "ind.cora.graph")


PICKLES = [
    Case(f"pickle: {name}", read, {"ind.cora.graph": content}, "ind.cora.graph", seen)
    for name, content, seen in [
        ("runs a command", pickle.dumps(Run(), 2), f"asks for {os.name}.system, which was refused"),
        ("runs a command, protocol 0", pickle.dumps(Run(), 0), f"asks for {os.name}.system"),
        ("runs a command, protocol 5", pickle.dumps(Run(), 5), f"asks for {os.name}.system"),
        ("evaluates", b"c__builtin__\neval\n(S\"open('canary', 'w')\"\ntR.", "asks for __builtin__.eval"),
        ("makes an instance", b"(S'touch canary'\nios\nsystem\n.", "asks for os.system"),
        ("dots", b"\x80\x04\x8c\x05numpy\x8c\x0dndarray.dumps\x93.", "asks for numpy.ndarray.dumps"),
        ("name of 10 ** 6 letters", b"c" + b"x" * 10**6 + b"\ny\n.", "asks for 'xxx"),
        ("lines in a name", b"\x80\x04\x8c\x04a\nbc\x8c\x01d\x93.", "asks for 'a\\nbc.d'"),
        ("shared lists", Raw.LISTS, "lists that are in others many times"),
        ("keys that share a list", Raw.KEYS, "lists that are in others many times"),
        ("list in itself", Raw.ITSELF, "lists that are in others many times"),
        ("copies of a list", Raw.COPIES, ""),
        ("copies of a dictionary", Raw.DICTIONARIES, "asks for os.system"),
        ("copies of a text", Raw.TEXTS, ""),
        ("number 2 ** 32 - 1", b"\x80\x02Nr\xff\xff\xff\xff.", "kept under the number 4294967295"),
        ("number 10 ** 15 as text", b"Np1000000000000000\n.", "kept under the number 1000000000000000"),
        ("text of 2 ** 60 bytes", b"\x80\x04\x8d" + struct.pack("<Q", 2**60) + b"a.", ""),
        ("frame of 2 ** 60 bytes", b"\x80\x04\x95" + struct.pack("<Q", 2**60) + b"].", ""),
        ("whole number of 10 ** 6 bits", b"\x80\x02\x8b" + struct.pack("<i", 125000) + b"\x7f" * 125000 + b".", "bits"),
        ("whole number of 5000 digits", b"I" + b"1" * 5000 + b"\n.", "digits"),
        ("hashes that are all the same", pickle.dumps({n * (2**61 - 1): [] for n in range(99)}, 2), "bits, expected"),
        ("sets", b"\x80\x04](" + b"\x8f" * 1000 + b"e.", "a set"),
        ("array that repeats a list", Raw.array(b"J\xff\xff\xff\x7f](NNNe\x86", b"U\x04abcd"), "a shape of tuple"),
        ("array of 10 ** 9 zeros", Raw.array(b"J\x00\xca\x9a\x3b\x85", b"J\x00\xca\x9a\x3b"), "expected bytes"),
        ("array of a shape below 0", Raw.array(b"J\xff\xff\xff\xff\x85", b"U\x04abcd"), "a shape of tuple"),
        ("array of terabytes", Raw.array(b"\x8a\x06\x00\x00\x00\x00\x00\x7f\x85", b"U\x04abcd"), "an array of 4 bytes"),
        ("array of a list", Raw.array(b"K\x01\x85", b"](K\x01e"), "expected bytes"),
        ("array of objects", pickle.dumps(np.array([[1]], object), 2), "expected numbers"),
        ("matrix with columns outside", Raw.matrix(4, 10**6), ""),
        ("matrix with columns below 0", Raw.matrix(4, -1), ""),
        ("state of a class", b"\x80\x02cnumpy\nndarray\n}U\x01aK\x01sb.", ""),
        ("attributes of a dictionary's class", b"\x80\x02ccollections\ndefaultdict\nN}U\x01aK\x01s\x86b.", ""),
        ("extension", b"\x80\x02\x82\x01.", ""),
        ("object of elsewhere", b"Pcanary\n.", ""),
        ("buffer of elsewhere", b"\x80\x05\x97.", ""),
        ("text", b"\x80\x02U\x02ab.", "'ab'"),
        ("no objects", b"\x80\x02.", ""),
        ("cut off", pickle.dumps(np.eye(9), 2)[:-9], ""),
        ("web page", b"<html>not found</html>", ""),
        ("empty", b"", "pickle exhausted"),
    ]
]
PICKLES += anywhere("pickle", read, "ind.cora.graph")
