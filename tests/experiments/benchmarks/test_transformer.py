from functools import partial
from pathlib import Path

import pytest
import torch

from experiments.benchmarks import transformer
from experiments.benchmarks.timing import interleave
from experiments.benchmarks.transformer import CONTESTANTS, Contestant, Sizes, TransformerConfig, make_step, run
from experiments.harness.results import read_metrics
from tests.experiments.benchmarks.published import page

pytest.importorskip("transformers")
SIZES = partial(Sizes, layers=1, heads=2, width=8, hidden=8, vocabulary=20)


def test_deterministic_contestants_compute_the_same() -> None:
    sizes = SIZES(batch=3, length=5, dropout=0.0)
    soft, eager, sdpa = (make_step(name, sizes)() for name in CONTESTANTS[:3])
    torch.testing.assert_close(soft, eager)
    torch.testing.assert_close(sdpa, eager)


@pytest.mark.parametrize("name", CONTESTANTS[3:])
def test_bayesian_contestants_have_a_kl(name: Contestant) -> None:
    sizes = SIZES(batch=3, length=5, dropout=0.0)
    likelihood, *losses = make_step("soft", sizes)(), *(make_step(name, sizes)() for _ in range(2))
    assert losses[0] == losses[1]
    assert losses[0].isfinite()
    assert losses[0] > likelihood + 10


def test_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """But for the memory, as each of its processes imports transformers again."""

    def measure(make_step, contestants, size, *, rounds):  # type: ignore[no-untyped-def]
        steps = {name: make_step(name, size) for name in contestants}
        return interleave(steps, rounds=rounds, warm_up=0), dict.fromkeys(contestants, 3.0)

    monkeypatch.setattr(transformer, "measure", measure)
    monkeypatch.setattr(transformer, "Sizes", SIZES)
    metrics = run(TransformerConfig(batch=2, length=4, out=tmp_path, rounds=1, results=tmp_path / "results"))
    assert "10-90 % of the ratio" in capsys.readouterr().out
    assert read_metrics(tmp_path) == pytest.approx(metrics)
    assert metrics["2x4_tokens/soft/ratio"] == 1
    assert len(metrics) == len(CONTESTANTS) * len(transformer.QUANTITIES)
    assert "| Weibull |" in page(tmp_path / "results")
    assert "at 2 x 4 tokens with padding" in page(tmp_path / "results")
