from pathlib import Path

import pytest
import torch

from experiments.benchmarks import blocked_attention
from experiments.benchmarks.blocked_attention import CONTESTANTS, Contestant, compare, make_step, run
from experiments.benchmarks.config import BlockedConfig
from experiments.benchmarks.memory import peak_memory
from experiments.harness.results import read_metrics
from tests.experiments.benchmarks.published import page


@pytest.mark.parametrize("name", ["naive dense", "blocked"])
def test_contestants_compute_the_same(name: Contestant) -> None:
    """Up to the noise, on which the KL, by far the largest part, does not depend."""
    assert CONTESTANTS[0] == "scaled_dot_product_attention"
    torch.testing.assert_close(make_step(name, 64)(), make_step("dense", 64)(), rtol=1e-4, atol=0)


def test_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = BlockedConfig(lengths=(3, 5), dense_up_to=4, out=tmp_path, rounds=2, results=tmp_path / "results")
    metrics = run(config)
    assert "10-90 % of the ratio" in capsys.readouterr().out
    assert read_metrics(tmp_path) == pytest.approx(metrics)
    assert metrics["5_positions/scaled_dot_product_attention/ratio"] == 1
    assert len(metrics) == (4 + 2) * len(blocked_attention.QUANTITIES)
    assert (tmp_path / "environment.json").is_file()
    assert "| 5 | blocked |" in page(tmp_path / "results")
    for picture in (tmp_path, tmp_path / "results" / "pictures"):
        assert (picture / "blocked_attention.png").stat().st_size > 10_000


def test_one_length() -> None:
    timings = compare(rounds=1, length=4)
    assert list(timings) == list(CONTESTANTS)
    assert timings["scaled_dot_product_attention"].ratio == 1


def test_memory_does_not_grow_with_the_pairs() -> None:
    """One tensor of all pairs takes 18 MB."""
    dense, blocked = (peak_memory(make_step, name, 1536) for name in ("dense", "blocked"))
    assert dense > 90
    assert blocked < 0.7 * dense
