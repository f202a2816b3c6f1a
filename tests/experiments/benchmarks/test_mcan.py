from functools import partial
from pathlib import Path

import pytest
import torch

from experiments.benchmarks import mcan
from experiments.benchmarks.mcan import CONTESTANTS, MCANConfig, Sizes, finding, make_step, run
from experiments.benchmarks.timing import interleave
from experiments.harness.results import read_metrics
from models.vqa import MCANSizes
from tests.experiments.benchmarks.published import page

TINY = partial(Sizes, features=5, vocabulary=9, answers=4, network=MCANSizes(8, 8, 2, 1, 16, 8))


def test_the_bayesian_contestant_has_a_kl() -> None:
    sizes = TINY(batch=3, words=5, regions=4, dropout=0.0)
    soft, *losses = make_step("soft", sizes)(), *(make_step("Weibull", sizes)() for _ in range(2))
    assert losses[0] == losses[1]
    assert losses[0].isfinite()
    assert losses[0] > soft + 10


def test_the_published_sizes() -> None:
    assert (Sizes().network.layers, Sizes().network.heads, Sizes().network.width) == (6, 8, 512)
    question, real, regions, mask, scores = mcan._make_batch(Sizes(batch=40))
    assert regions.shape == (40, 36, 2048)
    assert torch.equal(question > 0, real)
    assert real.sum(1).min() >= 3
    assert real.sum(1).max() == 14
    assert mask.all()
    assert scores.shape == (40, 3129)


def test_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """But for the memory, as each of its processes imports torch again."""

    def measure(make_step, contestants, size, *, rounds):  # type: ignore[no-untyped-def]
        steps = {name: make_step(name, size) for name in contestants}
        return interleave(steps, rounds=rounds, warm_up=0), dict.fromkeys(contestants, 3.0)

    monkeypatch.setattr(mcan, "measure", measure)
    monkeypatch.setattr(mcan, "Sizes", TINY)
    metrics = run(MCANConfig(batch=2, words=4, regions=3, out=tmp_path, rounds=1, results=tmp_path / "results"))
    assert "Weibull ratio" in capsys.readouterr().out
    assert read_metrics(tmp_path) == pytest.approx(metrics)
    assert metrics["2_questions/soft/ratio"] == 1
    assert len(metrics) == len(CONTESTANTS) * len(mcan.QUANTITIES)
    text = " ".join(page(tmp_path / "results").split())
    assert "2 questions of up to 4 words about 3 regions of 5 features" in text
    assert finding(metrics["2_questions/Weibull/ratio"]) in text


@pytest.mark.parametrize(("ratio", "expected"), [(1.3, "is reached (1.30)"), (1.31, "is not reached (1.31)")])
def test_finding(ratio: float, expected: str) -> None:
    assert finding(ratio).endswith(f"{expected}.")
