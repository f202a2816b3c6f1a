"""The moments of a script: each step of its training, and what it does to files; something happens at one of them."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch


class Moments:
    """Counts moments, and kills the process at the one of the number ``at``.

    Moments are the steps of the training (between the loss and its gradient) and, of files that are written, when they
    are opened, the time before and after they get their names, and removal.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, at: int | None = None) -> None:
        self.at, self.kinds = at, list[str]()
        for owner, name, kind in (
            (Path, "open", "open"), (Path, "replace", "replace"), (Path, "unlink", "unlink"),
            (torch.Tensor, "backward", "step"),
        ):  # fmt: skip
            monkeypatch.setattr(owner, name, self.counted(getattr(owner, name), kind))

    def counted(self, function: Callable[..., Any], kind: str) -> Callable[..., Any]:
        """A method whose calls are moments; of a file that is opened or named also the time afterwards."""

        def wrapped(itself: Any, *args: Any, **options: Any) -> Any:
            counts = kind != "open" or bool(set("".join(args[:1])) & set("xaw"))
            if counts:
                self.moment(kind)
            found = function(itself, *args, **options)
            if counts and kind in ("open", "replace"):
                self.moment(f"after {kind}")
            return found

        return wrapped

    def moment(self, kind: str) -> None:
        """Another moment."""
        self.kinds.append(kind)
        if len(self.kinds) - 1 == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


def killed(run: Callable[[], object], monkeypatch: pytest.MonkeyPatch, *, at: int) -> None:
    """Do something in a copy of this process, which is killed at a moment."""
    process = os.fork()
    if process == 0:
        try:
            Moments(monkeypatch, at=at)
            run()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL, at
