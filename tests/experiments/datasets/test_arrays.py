"""Arrays on disk: made once, by one process at a time."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from experiments.datasets import arrays
from experiments.datasets.arrays import cached_array, checksum, read_arrays
from experiments.files import locked


def floats(folder, *, length=2, make=lambda: iter([np.ones((2, 3), np.float32)])):
    return cached_array(folder, "x", {"a": 1}, length, make)[0]


def files(folder):
    return sorted(folder.glob("*.npy"))


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([np.ones((1, 3))], "1 rows were made; expected 2"),
        ([np.ones((1, 3)), np.ones((1, 4))], "expected .*3.* as before"),
        ([np.ones((1, 3)), np.ones((1, 3), np.float32)], "expected .*float64.* as before"),
    ],
)
def test_nothing_is_kept_of_an_array_that_is_not_whole(tmp_path, pieces, message):
    with pytest.raises(ValueError, match=message):
        floats(tmp_path, make=lambda: iter(pieces))
    assert files(tmp_path) == []


WRITES = """
import json, sys
from pathlib import Path
import numpy as np
from experiments.files import locked, write_atomic

path = Path(sys.argv[1])
with locked(path):
    print("holds", flush=True)
    sys.stdin.readline()
    write_atomic(path, lambda file: np.save(file, np.full((2, 3), 7, np.float32)))
    write_atomic(path.with_suffix(".json"), lambda file: file.write(json.dumps({"notes": {}}).encode()))
"""


def test_array_that_another_process_is_making_is_waited_for(tmp_path, monkeypatch):
    floats(tmp_path)
    (path,) = files(tmp_path)
    for file in (path, path.with_suffix(".json")):
        file.unlink()
    command = [sys.executable, "-c", WRITES, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "holds\n"

        def let_it_write(file):
            other.stdin.write("go\n")
            other.stdin.close()
            return locked(file)

        monkeypatch.setattr(arrays, "locked", let_it_write)
        found = floats(tmp_path, make=lambda: pytest.fail("made twice"))
    assert other.returncode == 0
    assert found.tolist() == [[7.0] * 3] * 2


def test_an_array_can_be_read_only_when_it_is_complete(tmp_path):
    def pieces():
        for _ in range(2):
            assert files(tmp_path) == []
            yield np.ones((1, 3), np.float32)

    assert floats(tmp_path, make=pieces).tolist() == [[1.0] * 3] * 2


def test_arrays_of_another_byte_order(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(3, dtype=">i8"))
    assert torch.from_numpy(read_arrays(tmp_path / "a.npz")["x"]).tolist() == [0, 1, 2]


@pytest.mark.parametrize(("other", "same"), [(torch.zeros(3, 2)[:, 0], True), (torch.zeros(2), False)])
def test_checksum(other, same):
    assert (checksum(torch.zeros(3)) == checksum(other)) == same
