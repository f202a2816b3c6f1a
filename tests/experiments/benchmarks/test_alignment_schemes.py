from pathlib import Path

import pytest
import torch

from experiments.benchmarks.alignment_schemes import CONTESTANTS, QUANTITIES, Contestant, Sizes, make_step, run
from experiments.benchmarks.config import AlignmentSchemesConfig
from experiments.harness.results import read_metrics
from experiments.harness.training import resolve_precision
from tests.experiments.benchmarks.published import page

TINY = Sizes(3, targets=2, batch=2, width=4, vocabulary=6)


@pytest.mark.parametrize("contestant", CONTESTANTS)
def test_a_step_leaves_the_network_untrained(contestant: Contestant) -> None:
    step, losses = make_step(contestant, TINY), []
    for _ in range(2):
        torch.manual_seed(0)  # of dropout
        losses.append(step())
    torch.testing.assert_close(*losses, rtol=0, atol=0)


def test_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = AlignmentSchemesConfig(sources=(3,), vocabulary=6, out=tmp_path, rounds=2, results=tmp_path / "results")
    metrics = run(config)
    assert "sparse_marginal ratio" in capsys.readouterr().out
    assert read_metrics(tmp_path) == pytest.approx(metrics)
    precisions = {"32", resolve_precision("bf16-mixed", torch.device("cpu"))}
    assert all(metrics[f"3_sources/{precision}/soft/ratio"] == 1 for precision in precisions)
    assert len(metrics) == len(precisions) * len(CONTESTANTS) * len(QUANTITIES)
    assert "| 3, 32 |" in page(tmp_path / "results")
