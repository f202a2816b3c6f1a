"""What strangers' runs, checkpoints and pretrained models do when they are crafted: one line that names the file."""

import pytest

from experiments.files import UserError
from tests.experiments.datasets.test_hostile_files import write
from tests.experiments.hostile.runs import RUNS
from tests.experiments.hostile.sealed import sealed
from tests.experiments.hostile.weights import CHECKPOINTS, PRETRAINED

CASES = [*RUNS, *CHECKPOINTS, *PRETRAINED]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_crafted_run(case, tmp_path, monkeypatch):
    root = tmp_path / "data"
    write(tmp_path, {"outside/secret.jpg": b"mine", "data/readme": b""})
    write(root, case.files)
    with (
        sealed(tmp_path, monkeypatch, but=(".lock", ".holder")),
        pytest.raises((UserError, ValueError, OSError)) as info,
    ):
        case.read(root)
    message = str(info.value)
    assert str(root / case.named) in message
    assert case.seen in message
    assert "\n" not in message or case in PRETRAINED


def test_every_case_has_a_name_of_its_own():
    assert len({case.name for case in CASES}) == len(CASES) > 200
