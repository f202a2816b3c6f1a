import json
from collections.abc import Callable
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from experiments.benchmarks import __main__ as script
from experiments.benchmarks import enumeration, suite, timing
from experiments.benchmarks.__main__ import run
from experiments.benchmarks.config import BenchmarkConfig, Name
from experiments.benchmarks.ratios import RATIOS, Measured, compare, ratios_of, read_ratios, write_ratios
from experiments.benchmarks.suite import BENCHMARKS
from experiments.benchmarks.timing import Timing, interleave
from experiments.files import UserError
from experiments.harness.cli import run_script
from tests.experiments.benchmarks.published import page

NOTHING = "no ratio is more than 20 % worse than ratios.json"


def measured(torch: str = "2.13.0", **ratios: float) -> Measured:
    return {"torch": torch, "ratios": ratios}


@pytest.fixture
def committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for ratios.json, which is not there yet."""
    path = tmp_path / "ratios.json"
    monkeypatch.setattr(script, "RATIOS", path)
    return path


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Makes up the timings of self_attention, the only benchmark; its entry is the ratio of "ours"."""
    ratios = [1.3]

    def made_up(*, rounds: int) -> dict[str, Timing]:
        assert rounds == 7
        return {
            name: Timing(9, 8, 10, ratio, 0.9 * ratio, 2 * ratio) for name, ratio in (("hand", 1), ("ours", *ratios))
        }

    monkeypatch.setattr(
        script, "BENCHMARKS", {"self_attention": replace(BENCHMARKS["self_attention"], run=made_up, rounds=7)}
    )
    return ratios


# timing


def test_events_time_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU that is made up: its clock goes on by what was queued."""
    clock = [0.0]

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.time = clock[0]

        def synchronize(self) -> None: ...

        def elapsed_time(self, end: "Event") -> float:
            return end.time - self.time

    def work(*times: float) -> Callable[[], None]:
        remaining = iter(times)
        return lambda: clock.__setitem__(0, clock[0] + next(remaining))

    monkeypatch.setattr(torch, "get_default_device", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    steps = {"even": work(*[2.0] * 11), "uneven": work(99.0, *map(float, range(2, 22, 2)))}
    even, uneven = interleave(steps, rounds=10, warm_up=1).values()
    assert even == Timing(median=2, low=2, high=2, ratio=1, ratio_low=1, ratio_high=1)
    numbers = [uneven.median, uneven.low, uneven.high, uneven.ratio, uneven.ratio_low, uneven.ratio_high]
    assert numbers == pytest.approx([11, 3.8, 18.2, 5.5, 1.9, 9.1])


def test_wall_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that is made up: a second call takes three times as long as the first."""
    clock = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])
    calls = {name: lambda by=by: clock.__setitem__(0, clock[0] + by) for name, by in (("one", 0.002), ("three", 0.006))}
    one, three = interleave(calls, rounds=4, warm_up=1).values()
    assert astuple(one) == pytest.approx((2, 2, 2, 1, 1, 1))
    assert astuple(three) == pytest.approx((6, 6, 6, 3, 3, 3))


# the guard


@pytest.mark.parametrize(
    ("before", "device", "now", "expected"),
    [
        (
            measured(hand=1.0, ours=1.31, peer=2.0),
            "cpu",
            {"self_attention": measured(hand=1.0, ours=1.62, peer=2.39, other=9.0), "normalizers": measured(a=1.0)},
            [
                "self_attention: other is new",
                "self_attention: ours takes 1.62 times the reference, was 1.31 (+24 %)",
                "normalizers: new, not in ratios.json",
            ],
        ),
        (measured(hand=1.0, ours=1.31), "cpu", {"self_attention": measured(hand=1.0, ours=0.5)}, [NOTHING]),
        (
            measured(ours=1.0),
            "NVIDIA H200",
            {"self_attention": measured(ours=9.0, torch="2.14.0")},
            ["ratios.json has no ratios on NVIDIA H200; --update writes those of this run"],
        ),
        (
            measured(ours=1.0),
            "cpu",
            {"self_attention": measured(ours=9.0, torch="2.14.0")},
            [
                "self_attention: ours takes 9.00 times the reference, was 1.00 (+800 %)",
                "self_attention: ratios.json is of torch 2.13.0, this run of 2.14.0",
            ],
        ),
    ],
    ids=["worse", "better", "another device", "another torch"],
)
def test_comparison(before: Measured, device: str, now: dict[str, Measured], expected: list[str]) -> None:
    assert compare({"cpu": {"self_attention": before}}, device, now) == expected


def test_update_keeps_what_was_not_measured(tmp_path: Path) -> None:
    path = tmp_path / "ratios.json"
    assert read_ratios(path) == {}
    timings = {"ours": Timing(1, 1, 1, 1.23456, 1, 2)}
    write_ratios(path, "cpu", {"a": measured(x=1.0), "b": measured(x=1.0)})
    write_ratios(path, "cpu", {"b": ratios_of(timings, torch="2.14")})
    write_ratios(path, "GPU", {"a": measured(x=3.0)})
    assert read_ratios(path) == {
        "cpu": {"a": measured(x=1.0), "b": {"torch": "2.14", "ratios": {"ours": 1.235}}},
        "GPU": {"a": measured(x=3.0)},
    }


@pytest.mark.parametrize(
    "text",
    ['{"cpu": 3}', json.dumps({"cpu": {"a": measured(x=0.0)}})],
    ids=["number", "zero"],
)
def test_damaged_ratios(committed: Path, tmp_path: Path, slow: list[float], text: str) -> None:
    committed.write_text(text)
    with pytest.raises(UserError, match=r"ratios.json cannot be read .* restore it from git, or remove it"):
        run(BenchmarkConfig(out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


# the suite


def test_names() -> None:
    assert tuple(BENCHMARKS) == get_args(Name)
    for device, benchmarks in read_ratios(RATIOS).items():
        assert set(benchmarks) == set(BENCHMARKS), device


def test_enumeration_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = enumeration.Sizes(3, targets=2, batch=2, width=4, vocabulary=6)
    monkeypatch.setattr(suite.enumeration, "Sizes", lambda sources: sizes)
    timings = BENCHMARKS["enumeration"].run(rounds=1)
    assert list(timings) == list(enumeration.CONTESTANTS)


def test_end_to_end(committed: Path, tmp_path: Path, slow: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    run(BenchmarkConfig(out=out, device="cpu", threads=torch.get_num_threads(), results=tmp_path / "results"))
    printed = capsys.readouterr().out
    assert "ratios.json has no ratios on cpu" in printed
    assert not committed.exists()
    content = json.loads((out / "cpu" / "benchmarks.json").read_text())
    assert content["environment"]["device"] == "cpu"
    assert content["rounds"] == {"self_attention": 7}
    assert content["results"]["self_attention"]["ours"]["ratio_high"] == 2.6
    text = page(tmp_path / "results")
    assert f"`python -m experiments.benchmarks --threads {torch.get_num_threads()}`; " in text
    assert "## self_attention" in text
    assert "| ours | 1.30 | 1.17 - 2.60 | 9.00 |" in text

    run(BenchmarkConfig(out=out, device="cpu", update=True))
    assert "ratios.json updated" in capsys.readouterr().out
    run(BenchmarkConfig(out=out, device="cpu"))
    assert NOTHING in capsys.readouterr().out
    threads = torch.get_num_threads()
    run(BenchmarkConfig(out=out, device="cpu", threads=threads + 1))
    assert f"no ratios on cpu, {threads + 1} threads" in capsys.readouterr().out
    torch.set_num_threads(threads)
    slow[0] = 1.62
    assert run_script(BenchmarkConfig, run, name="b", arguments=["--device", "cpu", "--out", str(out)]) == 0
    assert "self_attention: ours takes 1.62 times the reference, was 1.30 (+25 %)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "self_attention", "results": Path("results")}, "the page shows all; leave out one of the two"),
        ({"device": "cuda"}, "device is cuda, but"),
    ],
    ids=["one benchmark on the page", "no GPU"],
)
def test_impossible_options(
    options: dict[str, Any], message: str, committed: Path, monkeypatch: pytest.MonkeyPatch, slow: list[float]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=message):
        run(BenchmarkConfig(**options))
