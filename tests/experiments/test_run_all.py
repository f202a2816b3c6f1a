"""Many runs at once: what comes back, and how they are stopped."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.parallel import run_all

ROOT = Path(__file__).parents[2]
SCRIPT = """
from pathlib import Path
from experiments.cli import run_script
from experiments.parallel import run_all
from tests.experiments.test_run_all import Folder, wait_for_ever

if __name__ == "__main__":
    run = lambda config: run_all(wait_for_ever, {i: Path(config.folder, str(i)) for i in range(3)}, workers=2)
    raise SystemExit(run_script(Folder, run, name="test"))
"""


class Folder:
    """A folder.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder


def square(number: float) -> dict[str, float]:
    return {"square": number**2}


def wait_for_ever(path: Path) -> dict[str, float]:
    path.write_text(str(os.getpid()))
    time.sleep(300)
    return {}


@pytest.mark.parametrize("workers", [1, 2])
def test_metrics_by_key_in_the_order_of_the_configurations(workers: int) -> None:
    found = run_all(square, {"b": 3.0, "a": 2.0}, workers=workers, progress=False)
    assert list(found.items()) == [("b", {"square": 9.0}), ("a", {"square": 4.0})]


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")
def test_sigterm_ends_the_processes_too(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)], cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
    )
    started = [tmp_path / str(i) for i in range(2)]
    for _ in range(600):
        if all(path.is_file() and path.read_text() for path in started):
            break
        time.sleep(0.1)
    workers = [int(path.read_text()) for path in started]
    parent.send_signal(signal.SIGTERM)
    _, errors = parent.communicate(timeout=30)
    assert parent.returncode == 130
    assert "interrupted" in errors
    for _ in range(100):
        if not any(map(_lives, workers)):
            break
        time.sleep(0.1)
    assert not any(map(_lives, workers))
    assert not (tmp_path / "2").exists()
