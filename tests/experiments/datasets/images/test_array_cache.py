"""Arrays on disk: what they are made of is checked, and one process at a time makes them."""

import subprocess
import sys

import numpy as np
import pytest

from experiments.datasets.images import array_cache
from experiments.datasets.images.array_cache import cached_array
from experiments.files import locked
from tests.experiments.datasets.images.cached_files import files


def floats(folder, rows=2, *, length=2, row=(3,), dtype=np.float32, make=None):
    def pieces():
        yield np.ones((rows, 3), np.float32)

    return cached_array(folder, "x", {"a": 1}, length, make or pieces, row=row, dtype=np.dtype(dtype))[0]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"length": 4}, r"float32 \[4, 3\]"),
        ({"row": (4,)}, r"float32 \[2, 4\]"),
        ({"row": (3, None)}, r"float32 \[2, 3, any\]"),
        ({"dtype": np.float16}, r"float16 \[2, 3\]"),
    ],
)
def test_cached_array_of_another_size_or_type(tmp_path, changes, expected):
    floats(tmp_path)
    with pytest.raises(ValueError, match=rf"x-\w+\.npy: made of .* \(float32 \[2, 3\] instead of {expected}\). Remove"):
        floats(tmp_path, **changes)


@pytest.mark.parametrize("array", [np.zeros((2, 5), np.float32), np.zeros((2, 3), np.float64)])
def test_file_put_in_the_place_of_a_cached_array(tmp_path, array):
    floats(tmp_path, row=(None,))
    np.save(files(tmp_path, ".npy")[0], array)
    with pytest.raises(ValueError, match=r"x-\w+\.npy: made of something else \(float\d\d .* instead of float32"):
        floats(tmp_path, row=(None,))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": 1}, "1 rows were made; expected 2"),
        ({"row": (4,)}, r"float32 \[2, 3\] was made; expected float32 \[any, 4\]"),
        ({"dtype": np.float16}, r"was made; expected float16 \[any, 3\]"),
    ],
)
def test_nothing_is_kept_of_another_array_than_expected(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        floats(tmp_path, **changes)
    assert files(tmp_path, ".npy") == []


WRITES = """
import json, sys
from pathlib import Path
import numpy as np
from experiments.files import locked, write_atomic

path = Path(sys.argv[1])
with locked(path):
    print("holds", flush=True)
    sys.stdin.readline()
    record = {"key": {"a": 1}, "shape": [2, 3], "notes": {}}
    write_atomic(path, lambda file: np.save(file, np.full((2, 3), 7, np.float32)))
    write_atomic(path.with_suffix(".json"), lambda file: file.write(json.dumps(record).encode()))
"""


def test_array_that_another_process_is_making_is_waited_for(tmp_path, monkeypatch):
    floats(tmp_path)
    (path,) = files(tmp_path, ".npy")
    for file in (path, path.with_suffix(".json")):
        file.unlink()
    command = [sys.executable, "-c", WRITES, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "holds\n"

        def let_it_write(file):
            other.stdin.write("go\n")
            other.stdin.close()
            return locked(file)

        monkeypatch.setattr(array_cache, "locked", let_it_write)
        found = floats(tmp_path, make=lambda: pytest.fail("made twice"))
    assert other.returncode == 0
    assert found.tolist() == [[7.0] * 3] * 2


def test_an_array_can_be_read_only_when_it_is_complete(tmp_path):
    def pieces():
        for _ in range(2):
            assert files(tmp_path, ".npy") == []
            yield np.ones((1, 3), np.float32)

    assert floats(tmp_path, make=pieces).tolist() == [[1.0] * 3] * 2
