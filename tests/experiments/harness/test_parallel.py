"""Many runs at once: what comes back, and how they are stopped."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from experiments.files import UserError
from experiments.harness.parallel import run_all

ROOT = Path(__file__).parents[3]
LIMIT = 240.0  # seconds until something is taken not to happen; no test waits for it to pass
SCRIPT = f"""
from pathlib import Path
from experiments.harness.cli import run_script
from experiments.harness.parallel import run_all
from {__name__} import Folder, wait_to_be_stopped

if __name__ == "__main__":
    runs = lambda config: {{i: Path(config.folder, str(i)) for i in range(4)}}
    run = lambda config: run_all(wait_to_be_stopped, runs(config), workers=2, progress=False)
    raise SystemExit(run_script(Folder, run, name="test"))
"""

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")


class Folder:
    """A folder.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder


def square(number: float) -> dict[str, float]:
    return {"square": number**2}


def resident(blocks: int) -> dict[str, float]:
    """Megabytes that the process holds at the beginning; afterwards it takes and frees many small blocks."""
    before = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    held = [torch.ones(100_000) for _ in range(blocks)]
    return {"mb": before, "held": float(len(held))}


def wait_to_be_stopped(path: Path) -> dict[str, float]:
    """Write one's process, and when stopped a checkpoint."""
    try:
        write(path, str(os.getpid()))  # inside, as the signal may come as soon as the file is there
        time.sleep(10 * LIMIT)
    except KeyboardInterrupt:
        write(path.with_suffix(".checkpoint"), "")
        raise
    return {}


def fail_beside_another(path: Path) -> dict[str, float]:
    """The first run fails when the second is on its way."""
    if path.name != "0":
        return wait_to_be_stopped(path)
    wait_for((path.with_name("1")).exists)
    raise UserError("this run is not possible")


def be_killed(path: Path) -> dict[str, float]:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def write(path: Path, text: str) -> None:
    path.with_suffix(".partial").write_text(text)
    path.with_suffix(".partial").rename(path)


def wait_for(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


@pytest.mark.parametrize("workers", [1, 2])
def test_metrics_by_key_in_the_order_of_the_configurations(workers: int) -> None:
    configs = {name: float(place) for place, name in enumerate("edcba")}
    found = run_all(square, configs, workers=workers, progress=False)
    assert list(found.items()) == [(name, {"square": number**2}) for name, number in configs.items()]


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="another allocator than glibc's")
def test_a_worker_returns_the_memory_of_a_run() -> None:
    found = run_all(resident, {i: blocks for i, blocks in enumerate((1, 1, 1000, 1, 1))}, workers=2, progress=False)
    sizes = [metrics["mb"] for metrics in found.values()]
    assert max(sizes[3:]) < sizes[1] + 200  # the run before took 400 MB


def _lives(process: int) -> bool:
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return "\nState:\tZ" not in status


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The process of a sweep of four runs by two workers; a run ends only when it is stopped."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)], cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def sweep(parent: subprocess.Popen[str], tmp_path: Path) -> subprocess.Popen[str]:
    """The same, with two runs in progress."""
    wait_for(lambda: parent.poll() is not None or all((tmp_path / name).exists() for name in "01"))
    if parent.poll() is not None:
        pytest.fail(f"the sweep has ended by itself:\n{parent.communicate()[1]}")
    return parent


def _children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


@linux
@pytest.mark.slow
def test_ctrl_c_while_the_workers_start_shows_no_traceback(parent: subprocess.Popen[str]) -> None:
    # two workers, and the process that multiprocessing keeps for itself
    wait_for(lambda: parent.poll() is not None or len(_children(parent.pid)) >= 3)
    children = _children(parent.pid)
    os.killpg(parent.pid, signal.SIGINT)
    _, errors = parent.communicate(timeout=LIMIT)
    wait_for(lambda: not any(map(_lives, children)))
    assert parent.returncode == 130
    assert "Traceback" not in errors


@linux
@pytest.mark.parametrize("how", ["sigterm", *(pytest.param(how, marks=pytest.mark.slow) for how in ("ctrl-c", "kill"))])
def test_a_stopped_sweep_starts_nothing_more_and_leaves_no_process(
    how: str, sweep: subprocess.Popen[str], tmp_path: Path
) -> None:
    workers = [int((tmp_path / name).read_text()) for name in "01"]
    if how == "sigterm":
        sweep.terminate()
    elif how == "ctrl-c":  # a terminal sends it to the workers too
        os.killpg(sweep.pid, signal.SIGINT)
    else:
        sweep.kill()
    _, errors = sweep.communicate(timeout=LIMIT)
    wait_for(lambda: not any(map(_lives, workers)))
    left = {path.stem for path in tmp_path.glob("*.checkpoint")}
    assert {path.name for path in tmp_path.iterdir() if path.name.isdigit()} == {"0", "1"}
    if how == "kill":
        assert left == set()
    else:
        assert sweep.returncode == 130
        assert left == {"0", "1"}
        assert "0 of 4 trainings are finished, and the same command with --resume continues" in errors
        assert "Traceback" not in errors


@linux
@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "said", "left"),
    [
        (fail_beside_another, "^this run is not possible$", {"1", "1.checkpoint"}),
        (be_killed, "^a worker process was killed.*--workers", set()),
    ],
)
def test_a_failing_run_stops_the_others_with_their_checkpoints(
    run: Callable[[Path], dict[str, float]], said: str, left: set[str], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=said):
        run_all(run, {i: tmp_path / str(i) for i in range(4)}, workers=2, progress=False)
    assert {path.name for path in tmp_path.iterdir()} == left
