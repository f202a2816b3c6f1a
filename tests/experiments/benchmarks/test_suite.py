"""How it is measured and told: clocks, memory, the guard of the ratios, and scripts from end to end."""

import json
import sys
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from experiments.benchmarks import __main__ as suite
from experiments.benchmarks import fused_attention, graph_scaling, measuring
from experiments.benchmarks.__main__ import BENCHMARKS, RATIOS, Benchmark, compare
from experiments.benchmarks.config import BenchmarkConfig, FusedConfig, Name, ScalingConfig
from experiments.benchmarks.graph_scaling import LARGE, SMALL, Graph, findings, measure_all, pubmed, slopes
from experiments.benchmarks.measuring import QUANTITIES, Timing, interleave, peak_memory, rows_by_size
from experiments.files import UserError
from experiments.harness.cli import run_script
from experiments.harness.results import read_metrics
from experiments.report.results import results_in


def page(folder: Path) -> str:
    """The page that is made of the only study in a folder."""
    ((report, source),) = results_in(folder)
    return report.markdown(source, pictures="pictures")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_interleaved_times(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """By clocks that are made up: they go on by what was done, and on a GPU by what was queued."""
    clock = [0.0]

    class Event:
        def __init__(self, *, enable_timing: bool) -> None: ...

        def record(self) -> None:
            self.time = clock[0]

        def synchronize(self) -> None: ...

        def elapsed_time(self, end: "Event") -> float:
            return end.time - self.time

    def work(*times: float) -> Callable[[], None]:
        remaining = iter(times)
        return lambda: clock.__setitem__(0, clock[0] + next(remaining))

    monkeypatch.setattr(torch, "get_default_device", lambda: torch.device(device))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(measuring.time, "perf_counter", lambda: 1e-3 * clock[0])
    steps = {"even": work(*[2.0] * 11), "uneven": work(99.0, *map(float, range(2, 22, 2)))}
    even, uneven = interleave(steps, rounds=10, warm_up=1).values()
    assert astuple(even) == pytest.approx((2, 2, 2, 1, 1, 1))
    assert astuple(uneven) == pytest.approx((11, 3.8, 18.2, 5.5, 1.9, 9.1))


def allocate(megabytes: int) -> Callable[[], object]:
    torch.ones(2 * megabytes, 250_000)  # the preparation's own peak does not count where it can be lowered
    return lambda: torch.ones(megabytes, 250_000)


def fail() -> Callable[[], object]:
    raise RuntimeError("cannot allocate memory")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process lower its own peak")
def test_peak_memory() -> None:
    torch.ones(400, 250_000)  # what this process has used before must neither count nor hide anything
    none, some = (peak_memory(allocate, megabytes) for megabytes in (0, 200))
    assert none < 50
    assert some - none == pytest.approx(200, abs=60)
    with pytest.raises(UserError, match=r"fail\(\).*cannot allocate.*smaller size"):
        peak_memory(fail)


# The suite


def measured(version: str = "2.13.0", **ratios: float) -> dict[str, Any]:
    return {"torch": version, "ratios": ratios}


def test_comparison() -> None:
    before = {"self_attention": measured(hand=1.0, ours=1.31, peer=2.0), "normalizers": measured(a=1.0)}
    now = {
        "self_attention": measured(hand=1.0, ours=1.62, peer=2.39, other=9.0),
        "normalizers": measured("2.14.0", a=0.5),
        "enumeration": measured(a=1.0),
    }
    worse = "self_attention: ours takes 1.62 times the reference, was 1.31 (+24 %)"
    others = [
        "self_attention: other is new",
        "normalizers: ratios.json is of torch 2.13.0, this run of 2.14.0",
        "enumeration: new, not in ratios.json",
    ]
    assert compare({"cpu": before}, "cpu", now) == [others[0], worse, *others[1:]]
    now["self_attention"] = measured(ours=1.31)
    assert compare({"cpu": before}, "cpu", now)[-1] == "no ratio is more than 20 % worse than ratios.json"
    expected = ["ratios.json has no ratios on GPU; --update writes those of this run"]
    assert compare({"cpu": before}, "GPU", now) == expected


def test_published_ratios_are_of_the_benchmarks() -> None:
    assert tuple(BENCHMARKS) == get_args(Name)
    for device, benchmarks in json.loads(RATIOS.read_text()).items():
        assert set(benchmarks) == set(BENCHMARKS), device
        assert all(found["ratios"][name] > 0 for found in benchmarks.values() for name in found["ratios"])


def test_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """From end to end, with one benchmark whose times are made up."""
    threads, ratios, out = torch.get_num_threads(), tmp_path / "ratios.json", tmp_path / "out"
    other = {"cpu, 99 threads": {"self_attention": measured(ours=3.0)}}
    ratios.write_text(json.dumps(other))
    ours = [1.3]

    def made_up(group: Any, *, rounds: int, warm_up: int) -> dict[str, Timing]:
        assert (group, rounds, warm_up) == ({}, 7, 2)
        return {
            name: Timing(9, 8, 10, ratio, 0.9 * ratio, 2 * ratio) for name, ratio in [("hand", 1.0), ("ours", *ours)]
        }

    monkeypatch.setattr(suite, "RATIOS", ratios)
    monkeypatch.setattr(suite, "interleave", made_up)
    monkeypatch.setattr(suite, "BENCHMARKS", {"self_attention": Benchmark(lambda: [{}], 7, 2, "Text.")})
    suite.run(BenchmarkConfig(out=out, device="cpu", threads=threads, results=tmp_path / "results"))
    assert "ratios.json has no ratios on cpu, " in capsys.readouterr().out
    content = json.loads((out / "cpu" / "benchmarks.json").read_text())
    assert (content["environment"]["device"], content["rounds"]) == ("cpu", {"self_attention": 7})
    assert content["results"]["self_attention"]["ours"]["ratio_high"] == 2.6
    text = page(tmp_path / "results")
    assert f"`python -m experiments.benchmarks --threads {threads}`; " in text
    assert "| ours | 1.30 | 1.17 - 2.60 | 9.00 |" in text
    suite.run(BenchmarkConfig(out=out, device="cpu", update=True))
    assert json.loads(ratios.read_text()).keys() == {*other, f"cpu, {measuring.threads_text()}"}
    ours[0] = 1.62
    capsys.readouterr()
    assert run_script(BenchmarkConfig, suite.run, name="b", arguments=["--device", "cpu", "--out", str(out)]) == 0
    assert "self_attention: ours takes 1.62 times the reference, was 1.30 (+25 %)" in capsys.readouterr().out
    with pytest.raises(UserError, match="the page shows all; leave out one of the two"):
        suite.run(BenchmarkConfig(name="self_attention", results=tmp_path))


# Commands that the commands of the pages do not try


def metrics_at(name: str, **peaks: float) -> dict[str, float]:
    times = {one: Timing(5, 1, 9, 1, 1, 1) for one in peaks}
    return measuring.sized_metrics(name, times, peaks)


def test_graph_scaling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert pubmed(tmp_path) == Graph(19717, 88648)
    monkeypatch.setattr(graph_scaling, "NODES", 30)
    monkeypatch.setattr(graph_scaling, "EDGES", (60, 200, 400))
    monkeypatch.setattr(measuring, "peak_memory", lambda *_: 1.0)
    (tmp_path / "planetoid").mkdir()
    edge_index = np.array([[0, 1, 1, 2], [1, 0, 2, 1]])
    np.savez(tmp_path / "planetoid" / "pubmed_topology.npz", edge_index=edge_index, y=np.zeros(4))
    assert pubmed(tmp_path).edge_index().tolist() == edge_index.tolist()
    out, results = tmp_path / "out", tmp_path / "results"
    metrics = graph_scaling.run(ScalingConfig(data_root=tmp_path, out=out, results=results, max_edges=200, rounds=2))
    assert "4 nodes, 4 directed edges (PubMed's own topology)" in capsys.readouterr().out
    assert read_metrics(out) == pytest.approx(metrics)
    assert metrics["pubmed/GATConv/ratio"] == 1
    assert {name.split("/")[0] for name in metrics} == {"pubmed", "60_edges", "200_edges", *graph_scaling.CONTESTANTS}
    assert "(pictures/graph_scaling.png)" in page(results)
    assert (results / "pictures" / "graph_scaling.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UserError, match="max_edges is 5, expected at least 60"):
        graph_scaling.run(ScalingConfig(data_root=tmp_path, max_edges=5, out=out))


def test_layers_that_would_need_too_much_memory_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = {"GATConv": 0.002, "Soft": 0.001, "WC": 0.001}

    def measure(name: str, _: object, contestants: list[str], graph: Graph, **rounds: int) -> dict[str, float]:
        assert rounds == {"rounds": 30, "warm_up": 3}
        return metrics_at(name, **{one: graph.edges * peaks[one] for one in contestants})

    monkeypatch.setattr(graph_scaling, "measure", measure)
    graphs = {f"{edges}_edges": Graph(10, edges) for edges in (1000, 10_000, 50_000, 100_000)}
    found = measure_all(graphs, ScalingConfig(max_memory=0.06))
    last = rows_by_size(found, "edges", {name: name for name in graphs}, graph_scaling.CONTESTANTS)
    assert [row["GATConv ms"] for row in last] == ["5", "5", "-", "-"]
    assert (last[2]["WC ratio"], last[2]["WC MB"]) == ("-", "50")


def test_growth_and_what_is_said_of_it() -> None:
    sizes = [100, 1000, 10_000]
    metrics = metrics_at("pubmed", WC=2100) | {"WC/per_edge": 0.9, "WC/per_edge_low": 0.8, "WC/per_edge_high": 1.2}
    for size in sizes:
        metrics |= {f"{size}_edges/WC/ms": 3.5 * size**2, f"{size}_edges/WC/peak_mb": 7.0 * size}
    metrics |= slopes(metrics, sizes)
    assert np.isnan(metrics["Soft/slope_ms"])
    first, *others = findings(metrics)
    assert "1.00 times GATConv's time (at most 1.6 expected), 2100 MB (at most 2000 MB expected: NOT MET)" in first
    assert others == [
        "Slopes of log time and log memory against log edges, upper decade: WC 2.00 and 1.00.",
        f"Time per edge on {LARGE} edges over that on {SMALL}, taking turns: WC 0.90 (0.80 - 1.20).",
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_fused_attention_without_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no GPU here.*run this on a machine with one"):
        fused_attention.run(FusedConfig(out=tmp_path))


@pytest.mark.cuda
def test_fused_attention_on_a_gpu(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    config = FusedConfig(lengths=(64, 100), width=32, heads=2, rounds=2, out=tmp_path)
    if sys.platform == "linux" and torch.cuda.get_device_capability() >= (8, 0):
        metrics = fused_attention.run(config)
        assert len(metrics) == 2 * len(fused_attention.CONTESTANTS) * len(QUANTITIES)
