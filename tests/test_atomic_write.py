"""Writing of files: what was there stays or is replaced whole, and nothing of the user's is lost."""

import errno
import fcntl
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import pyro_attention.atomic_write
from pyro_attention.atomic_write import check_outputs, same_file, write_atomic

# imported without the package, which takes seconds
ALONE = os.environ | {"PYTHONPATH": str(Path(pyro_attention.atomic_write.__file__).parent)}


def write(path, content=b"new"):
    write_atomic(path, lambda file: file.write(content))


def full_disk(file):
    file.write(b"half")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def old(tmp_path):
    path = tmp_path / "links.txt"
    path.write_bytes(b"old")
    return path


def test_a_new_file_has_the_mode_of_new_files(tmp_path):
    (tmp_path / "other").touch()
    write(tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"new"
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "other").stat().st_mode


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_the_mode_is_kept(old, mode):
    old.chmod(mode)
    write(old)
    assert old.read_bytes() == b"new"
    assert stat.S_IMODE(old.stat().st_mode) == mode


def test_the_content_is_never_readable_by_others(old):
    """Not even while it is written: the file is secret before its first byte."""
    old.chmod(0o600)

    def look(file):
        (partial,) = [path for path in old.parent.iterdir() if path.name.endswith(".partial")]
        assert stat.S_IMODE(partial.stat().st_mode) == 0o600

    write_atomic(old, look)


@pytest.mark.parametrize("hidden", [".links.txt", ".links.txt.partial", ".links.txt.lock", ".links.txt.0.partial"])
def test_hidden_files_of_the_user_stay(old, hidden):
    (old.parent / hidden).write_bytes(b"mine")
    os.utime(old.parent / hidden, (0, 0))
    write(old)
    assert (old.parent / hidden).read_bytes() == b"mine"


@pytest.mark.parametrize("error", [full_disk, lambda file: 1 / 0, lambda file: sys.exit(1)])
def test_a_writing_that_fails_leaves_the_old_file_alone(old, error):
    with pytest.raises((OSError, ZeroDivisionError, SystemExit)) as raised:
        write_atomic(old, error)
    assert old.read_bytes() == b"old"
    assert names(old.parent) == ["links.txt"]
    if error is full_disk:
        assert str(raised.value).startswith(f"{old} cannot be written: No space left on device")


def test_a_limit_of_the_system_leaves_the_old_file_alone(old):
    """A real error of the operating system, in another process: no file may grow beyond 1000 bytes."""
    code = (
        "import resource, signal, sys; from atomic_write import write_atomic\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "write_atomic(sys.argv[1], lambda file: file.write(bytes(5000)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(old)], capture_output=True, text=True, check=False, env=ALONE
    )
    assert "cannot be written: File too large" in result.stderr
    assert old.read_bytes() == b"old"
    assert names(old.parent) == ["links.txt"]


def test_partial_files_of_killed_processes_are_swept(old):
    """Of this file alone, and not those that a process still writes or may have just begun."""
    folder, token = old.parent, "0123456789abcdef"
    swept, young, alive = (folder / f".links.txt.{token[:15]}{digit}.partial" for digit in "123")
    foreign = [folder / f".other.txt.{token}.partial", folder / f".links.txt.{token.upper()}.partial"]
    for path in (swept, young, alive, *foreign):
        path.write_bytes(b"half")
        if path != young:
            os.utime(path, (time.time() - 3600,) * 2)
    with alive.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        write(old)
    assert not swept.exists()
    assert young.exists()
    assert alive.exists()
    assert all(path.exists() for path in foreign)


def test_the_file_that_is_written_is_locked(old):
    found = []

    def look(file):
        (partial,) = [path for path in old.parent.iterdir() if path.name.endswith(".partial")]
        os.utime(partial, (0, 0))
        write(old, b"another process")  # sweeps what is old
        found.append(partial.exists())

    write_atomic(old, look)
    assert found == [True]


def test_symbolic_links_are_written_through(old, tmp_path):
    (tmp_path / "folder").mkdir()
    target = tmp_path / "folder" / "target"
    for path, goal in ((tmp_path / "link", "links.txt"), (tmp_path / "chain", "link"), (tmp_path / "new", target)):
        path.symlink_to(goal)
    write(tmp_path / "chain", b"through")
    write(tmp_path / "new", b"made")
    assert old.read_bytes() == b"through"
    assert target.read_bytes() == b"made"
    assert all((tmp_path / name).is_symlink() for name in ("link", "chain", "new"))


def test_pipes_are_written_through(tmp_path):
    path, found = tmp_path / "pipe", []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: found.append(path.read_bytes()), daemon=True)
    reader.start()
    write(path)
    reader.join(10)
    assert found == [b"new"]
    assert path.is_fifo()


def test_devices_are_written_through():
    write("/dev/null")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(OSError, match="/dev/full cannot be written: No space left on device"):
        write("/dev/full", bytes(100_000))
    assert Path("/dev/full").is_char_device()


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
@pytest.mark.parametrize("to", ["file", "pipe"])
def test_open_descriptors_are_written_through(name, to, tmp_path):
    """Also where a shell has sent them into a regular file: what was there before, and what comes after, stays."""
    code = (
        "import sys; from atomic_write import write_atomic\n"
        "print('before'); write_atomic(sys.argv[1], lambda file: file.write(b'new\\n')); print('after')"
    )
    path = tmp_path / "out"
    with path.open("wb") as file:
        result = subprocess.run(
            [sys.executable, "-c", code, name], check=True, env=ALONE,
            stdout=file if to == "file" else subprocess.PIPE,
        )  # fmt: skip
    assert (path.read_bytes() if to == "file" else result.stdout) == b"before\nnew\nafter\n"


def test_a_folder_and_a_missing_folder(tmp_path):
    with pytest.raises(IsADirectoryError, match="cannot be written: it is a folder"):
        write(tmp_path)
    with pytest.raises(FileNotFoundError, match="a cannot be written: No such file"):
        write(tmp_path / "nowhere" / "a")


def test_a_file_that_is_protected(old, monkeypatch):
    monkeypatch.setattr(pyro_attention.atomic_write.os, "access", lambda path, mode: False)  # as for all but root
    with pytest.raises(PermissionError, match="protected against writing"):
        write(old)
    assert old.read_bytes() == b"old"


def test_a_long_name(tmp_path):
    write(tmp_path / ("ä" * 127))
    assert names(tmp_path) == ["ä" * 127]


# before any work is done


def test_same_file(old, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("links.txt")
    (tmp_path / "hard").hardlink_to(old)
    (tmp_path / "later").symlink_to("not_there")
    for other in ("link", "hard", "links.txt", "./nowhere/../links.txt"):
        assert same_file(old, tmp_path / other), other
    assert same_file(tmp_path / "later", tmp_path / "not_there")
    assert not same_file(old, tmp_path / "other")


@pytest.mark.parametrize("name", ["links.txt", "link", "hard"])
def test_an_input_is_never_an_output(old, tmp_path, name):
    (tmp_path / "link").symlink_to("links.txt")
    (tmp_path / "hard").hardlink_to(old)
    with pytest.raises(ValueError, match=r"--out .* is the file that is read as the source"):
        check_outputs({"--out": tmp_path / name}, {"the source": old}, overwrite=True)


def test_outputs_are_different_files_in_folders_that_are_there(old, tmp_path):
    new, page = tmp_path / "new", tmp_path / "page"
    check_outputs({"--out": new, "--tsv": page}, {"the source": old}, overwrite=False)
    with pytest.raises(ValueError, match=r"--tsv .* is the file that is written as --out"):
        check_outputs({"--out": new, "--tsv": new}, {})
    with pytest.raises(ValueError, match="is there already; pass --overwrite"):
        check_outputs({"--out": old}, {}, overwrite=False)
    with pytest.raises(FileNotFoundError, match="no folder; make it first"):
        check_outputs({"--out": tmp_path / "nowhere" / "a"}, {})
    with pytest.raises(IsADirectoryError, match="is a folder"):
        check_outputs({"--out": tmp_path}, {})


def test_devices_and_pipes_are_no_files_to_lose(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/null", "/dev/stdout", tmp_path / "pipe"):
        check_outputs({"--out": Path(path), "--tsv": Path(path)}, {}, overwrite=False)
