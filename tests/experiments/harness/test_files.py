import errno
import os
from pathlib import Path
from typing import IO, Any

import pytest
import torch
from matplotlib.figure import Figure

from experiments import files
from experiments.files import UserError, drawn_here, locked, write_atomic
from experiments.report.figures import save
from tests.experiments.harness.second_process import second_process

WRITES_HALF = """
import sys
from pathlib import Path
from experiments.files import write_atomic

def write(file):
    file.write(b"theirs, ")
    file.flush()
    print("half", flush=True)
    sys.stdin.readline()
    file.write(b"whole")

write_atomic(Path(sys.argv[1]), write)
"""
HOLDS = """
import sys
from pathlib import Path
from experiments.files import locked

with locked(Path(sys.argv[1])):
    print("holds", flush=True)
    sys.stdin.readline()
"""


def failing(*arguments: Any) -> Any:
    def write(file: IO[bytes]) -> None:
        file.write(b"half of")
        raise OSError(*arguments)

    return write


# writing


def test_two_processes_never_write_into_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with second_process(WRITES_HALF, path) as other:
        assert not path.exists()
        write_atomic(path, lambda file: file.write(b"ours, whole"))
        assert path.read_bytes() == b"ours, whole"
    assert other.returncode == 0
    assert path.read_bytes() == b"theirs, whole"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "No space left on device; free some space there"),
        (errno.EACCES, "Permission denied; allow yourself to write there"),
        (errno.EROFS, "Read-only file system; allow yourself to write there"),
        (errno.EINVAL, "Invalid argument; choose another name"),
    ],
)
def test_file_that_cannot_be_written_is_named_and_the_last_good_one_stays(
    tmp_path: Path, number: int, remedy: str
) -> None:
    path = tmp_path / "file"
    write_atomic(path, lambda file: file.write(b"old"))
    with pytest.raises(UserError, match=f"^{path} cannot be written: {remedy}"):
        write_atomic(path, failing(number, os.strerror(number)))
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["file/below", "folder", "x" * 300, ""])
def test_names_that_no_file_can_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("folder").mkdir()
    said = f"^{name} cannot be written: .*; choose another name" if name else r"^'\.' is no name of a file"
    with pytest.raises(UserError, match=said):
        write_atomic(Path(name), lambda file: file.write(b"new"))


def test_checkpoint_that_does_not_fit_on_the_disk(tmp_path: Path) -> None:
    """Torch makes an error of its own of what the operating system says."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, before[1]))
    try:
        with pytest.raises(UserError, match=r"last\.ckpt cannot be written: File too large; free some space there"):
            write_atomic(tmp_path / "last.ckpt", lambda file: torch.save(torch.zeros(2**20), file))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [(errno.ENOENT, "No such file", "elsewhere"), ("of a decoder",)])
def test_errors_that_do_not_concern_the_file_stay_as_they_are(tmp_path: Path, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(OSError, match=str(arguments[-1])):
        write_atomic(tmp_path / "file", failing(*arguments))


# locks


def test_a_file_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, told = tmp_path / "folder" / "file", []
    with second_process(HOLDS, path) as other:

        def let_it_go_on(text: str, **_: object) -> None:
            told.append(text)
            other.communicate("go on\n")

        monkeypatch.setattr(files, "print", let_it_go_on, raising=False)
        monkeypatch.setattr(files, "_PATIENCE", 0)
        with locked(path):
            assert other.returncode == 0
    assert told == [f"waiting for another process, which is writing {path}"]


def test_a_killed_process_holds_nothing_and_its_partial_file_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    (tmp_path / ".file.0123456789abcdef.partial").touch()
    other_s = tmp_path / ".file2.0123456789abcdef.partial"
    with second_process(HOLDS, path) as other:
        other_s.touch()
        other.kill()
        other.wait()
        monkeypatch.setattr(files, "print", pytest.fail, raising=False)
        with locked(path):
            assert sorted(tmp_path.iterdir()) == [tmp_path / ".file.lock", other_s]


def test_lock_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="below cannot be written: "), locked(tmp_path / "file" / "below"):
        pass


# files of somebody else's


def test_only_pictures_that_were_drawn_here_are_drawn_again(tmp_path: Path) -> None:
    path = save(Figure((1, 1)), tmp_path / "picture.png")
    assert drawn_here(path)
    assert drawn_here(save(Figure((1, 1)), path))


@pytest.mark.parametrize("kind", ["copy", "matplotlib's", "text", "link"])
def test_pictures_of_somebody_else_s_are_not_written_over(tmp_path: Path, kind: str) -> None:
    ours, path = save(Figure((1, 1)), tmp_path / "ours.png"), tmp_path / "notes.png"
    if kind == "copy":
        path.write_bytes(ours.read_bytes())
    elif kind == "matplotlib's":
        Figure((1, 1)).savefig(path)
    elif kind == "text":
        path.write_text("mine")
    else:
        path.symlink_to(ours)
    before = path.read_bytes()
    assert not drawn_here(path)
    with pytest.raises(UserError, match=f"{path} exists and was not drawn by these scripts"):
        save(Figure((1, 1)), path)
    assert path.read_bytes() == before
