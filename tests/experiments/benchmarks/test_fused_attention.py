import sys
from pathlib import Path

import pytest
import torch

from experiments.benchmarks import fused_attention, report
from experiments.benchmarks.config import FusedConfig
from experiments.benchmarks.fused_attention import CONTESTANTS, make_step, run
from experiments.benchmarks.timing import Timing
from experiments.files import UserError
from experiments.harness.cli import run_script
from experiments.harness.results import read_metrics
from tests.experiments.benchmarks.published import page

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@without_gpu
def test_there_is_no_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match=r"there is no GPU here.*run this on a machine with one"):
        run(FusedConfig(out=tmp_path))
    arguments = ["--lengths", "[64, 128]", "--width", "32", "--dtype", "float16", "--out", str(tmp_path)]
    assert run_script(FusedConfig, run, name="fused_attention", arguments=arguments) == 1
    assert capsys.readouterr().err.startswith("error: there is no GPU here")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_steps(dtype: str, causal: bool) -> None:
    """On a CPU, in plain blocks."""
    config = FusedConfig(width=8, heads=2, batch=3, dtype=dtype, causal=causal)
    for name in CONTESTANTS:
        loss = make_step(name, config, 10, torch.device("cpu"))()
        assert (loss.shape, loss.dtype) == ((), torch.float32)
        assert loss.isfinite()


def test_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """All but the GPU, whose clock and memory are made up."""
    cpu = torch.device("cpu")
    monkeypatch.setattr(fused_attention, "_check", lambda config: None)
    monkeypatch.setattr(fused_attention, "make_step", lambda *arguments: lambda: None)
    monkeypatch.setattr(fused_attention, "_peak_memory", lambda step: 7.0)
    times = {"softmax": Timing(3, 2, 4, 1, 1, 1), "Bayesian": Timing(4, 4, 9, 2, 1, 3)}

    def interleave(steps: dict[str, object], *, rounds: int, warm_up: int) -> dict[str, Timing]:
        assert (rounds, warm_up) == (20, 3)
        return times

    monkeypatch.setattr(fused_attention, "interleave", interleave)
    write = report.write_environment
    monkeypatch.setattr(report, "write_environment", lambda folder, _, **options: write(folder, cpu, **options))
    config = FusedConfig(lengths=(5, 6), out=tmp_path, results=tmp_path / "results", causal=True)
    metrics = run(config)
    assert metrics["5_positions/Bayesian/ms"] == 4
    assert metrics["6_positions/Bayesian/ratio"] == 2
    assert read_metrics(tmp_path) == metrics
    assert "Bayesian MB" in capsys.readouterr().out
    text = page(tmp_path / "results")
    assert "| 6 | 3.00 | 7 | 4.00 | 2.00 (1.00 - 3.00) | 7 |" in text
    assert "--lengths '[5, 6]' --width 64 --dtype bfloat16" in text
    assert " --causal " in text


@pytest.mark.cuda
def test_on_a_gpu(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    config = FusedConfig(lengths=(64, 100), width=32, heads=2, rounds=2, out=tmp_path)
    if sys.platform == "linux" and torch.cuda.get_device_capability() >= (8, 0):
        metrics = run(config)
        assert len(metrics) == 2 * len(CONTESTANTS) * len(fused_attention.QUANTITIES)
