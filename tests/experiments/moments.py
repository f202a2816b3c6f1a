"""The moments of a script: each step of its training, and all that it does to files; something happens at one."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

__all__ = ["FILES", "Moments", "forked", "kill"]

FILES = ("open", "write", "replace")  # kinds of moments at which a disk can be full


class Moments:
    """Counts moments, and calls ``act`` at the one of the number ``at``.

    Moments are the steps of the training (between the loss and its gradient) and, of files that are written, opening,
    every write (of which half is on the disk by then), the time before and after the file gets its name, and removal.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, at: int | None = None, act: Callable[[], object] = lambda: None
    ) -> None:
        self.at, self.act, self.kinds = at, act, list[str]()
        opened, replaced, unlinked, backward = Path.open, Path.replace, Path.unlink, torch.Tensor.backward

        def open_(path: Path, mode: str = "r", *args: Any, **options: Any) -> Any:
            if not set(mode) & set("xaw"):
                return opened(path, mode, *args, **options)
            self.moment("open")
            return _Written(opened(path, mode, *args, **options), self)

        def replace(path: Path, target: Path) -> Path:
            self.moment("replace")
            found = replaced(path, target)
            self.moment("replaced")
            return found

        def unlink(path: Path, missing_ok: bool = False) -> None:
            self.moment("unlink")
            unlinked(path, missing_ok=missing_ok)

        def step(loss: torch.Tensor, *args: Any, **options: Any) -> None:
            self.moment("step")
            backward(loss, *args, **options)

        monkeypatch.setattr(Path, "open", open_)
        monkeypatch.setattr(Path, "replace", replace)
        monkeypatch.setattr(Path, "unlink", unlink)
        monkeypatch.setattr(torch.Tensor, "backward", step)

    def moment(self, kind: str) -> None:
        """Another moment."""
        self.kinds.append(kind)
        if len(self.kinds) - 1 == self.at:
            self.act()


class _Written:
    """A file that counts what is written into it."""

    def __init__(self, file: Any, moments: Moments) -> None:
        self._file, self._moments = file, moments

    def write(self, content: Any) -> int:
        half = len(content) // 2
        self._file.write(content[:half])
        if len(self._moments.kinds) == self._moments.at:  # this moment is the one
            self._file.flush()
        self._moments.moment("write")
        self._file.write(content[half:])
        return len(content)

    def __enter__(self) -> _Written:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def kill() -> None:
    """End this process as the kernel does that is out of memory."""
    os.kill(os.getpid(), signal.SIGKILL)


def forked(act: Callable[[], object]) -> int:
    """Do something in a copy of this process: its exit code, or the signal that ended it, below zero."""
    process = os.fork()
    if process == 0:
        code = 1
        try:
            act()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
