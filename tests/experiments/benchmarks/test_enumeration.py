from pathlib import Path

import pytest
import torch

from experiments.benchmarks import enumeration
from experiments.benchmarks.config import EnumerationConfig
from experiments.benchmarks.enumeration import CONTESTANTS, Contestant, Sizes, make_step, run
from experiments.benchmarks.memory import peak_memory
from experiments.harness.results import read_metrics
from tests.experiments.benchmarks.published import page


@pytest.mark.parametrize("name", CONTESTANTS[1:])
def test_contestants_compute_the_same(name: Contestant) -> None:
    sizes = Sizes(3, targets=2, batch=2, width=4, vocabulary=6)
    torch.testing.assert_close(make_step(name, sizes)(), make_step(CONTESTANTS[0], sizes)())


def test_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = EnumerationConfig(sources=(2, 3), vocabulary=10, out=tmp_path, rounds=2, results=tmp_path / "results")
    metrics = run(config)
    printed = capsys.readouterr().out
    assert "TokenLikelihood ratio" in printed
    assert read_metrics(tmp_path) == pytest.approx(metrics)
    assert metrics["2_sources/logsumexp, by hand/ratio"] == 1
    assert len(metrics) == 2 * len(CONTESTANTS) * len(enumeration.QUANTITIES)
    assert (tmp_path / "environment.json").is_file()
    assert "| 2 |" in page(tmp_path / "results")


def test_memory_does_not_grow_with_the_alignments() -> None:
    """All logits take 128 MB, and Pyro keeps two copies; the chunked ones take 8 MB."""
    sizes = Sizes(40, targets=20, width=8, vocabulary=2500)
    by_hand, plain, chunked = (peak_memory(make_step, name, sizes) for name in CONTESTANTS)
    assert by_hand > 128
    assert plain > 256
    assert by_hand > 2 * chunked
