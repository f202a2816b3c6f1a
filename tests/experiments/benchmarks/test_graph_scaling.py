import multiprocessing
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.benchmarks import graph_scaling, graph_sizes
from experiments.benchmarks.config import ScalingConfig
from experiments.benchmarks.graph_scaling import findings, rows, run, topology
from experiments.benchmarks.graph_sizes import CONTESTANTS, LARGE, SMALL, Graph, Measurement, growth, make_step, pubmed
from experiments.benchmarks.memory import peak_memory
from experiments.benchmarks.timing import Timing
from experiments.files import UserError
from experiments.harness.results import read_metrics
from tests.experiments.benchmarks.published import page


def allocate(megabytes: int) -> Callable[[], object]:
    return lambda: torch.ones(megabytes, 250_000)


def allocate_after_more(megabytes: int) -> Callable[[], object]:
    torch.ones(2 * megabytes, 250_000)
    return allocate(megabytes)


def fail() -> Callable[[], object]:
    raise RuntimeError("cannot allocate memory")


def _write_topology(root: Path, **arrays: np.ndarray) -> Path:
    path = root / "planetoid" / "pubmed_topology.npz"
    path.parent.mkdir()
    np.savez(path, **arrays)
    return path


def _measurement(edges: int, *, ratio: float = 1.0, **peaks: float) -> Measurement:
    timing = Timing(median=edges / 100, low=0, high=0, ratio=ratio, ratio_low=0, ratio_high=0)
    return Measurement(Graph(10, edges), 3, {name: timing for name in peaks}, dict(peaks))  # type: ignore[arg-type]


# memory


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process lower its own peak")


@pytest.mark.parametrize(
    ("prepare", "calls", "tolerance"),
    [(allocate, 2, 10), (allocate, 5, 10), (allocate, 1, 10), pytest.param(allocate_after_more, 2, 60, marks=on_linux)],
    ids=["two calls", "five calls", "one call", "more in the preparation"],
)
def test_peak_memory_is_that_of_a_known_allocation(
    prepare: Callable[[int], Callable[[], object]], calls: int, tolerance: int
) -> None:
    torch.ones(400, 250_000)  # what this process has used before must neither count nor hide anything
    none, some = (peak_memory(prepare, megabytes, calls=calls) for megabytes in (0, 200))
    assert none < 50
    assert some - none == pytest.approx(200, abs=tolerance)


def test_peak_memory_that_fails_says_what_to_do() -> None:
    with pytest.raises(UserError, match=r"fail\(\).*cannot allocate.*smaller size"):
        peak_memory(fail)
    assert not multiprocessing.active_children()


# sizes


@pytest.mark.parametrize("power", [1, 2])
def test_growth_of_synthetic_data(power: int) -> None:
    edges = [200, 500, 1000, 2000]
    assert growth(edges, [3.5 * e**power for e in edges]) == pytest.approx(power)
    assert np.isnan(growth(edges[:1], [1.0]))


def test_missing_topology_becomes_a_random_graph_of_pubmed_s_size(tmp_path: Path) -> None:
    graph = pubmed(tmp_path)
    assert graph == Graph(19717, 88648)
    edge_index = graph.edge_index()
    assert edge_index.shape == (2, 88648)
    assert edge_index.max() < 19717
    assert not (edge_index[0] == edge_index[1]).any()
    assert "random" in topology(graph)


def test_topology_is_read_from_its_file(tmp_path: Path) -> None:
    edge_index = np.array([[0, 1, 1, 2], [1, 0, 2, 1]])
    path = _write_topology(tmp_path, edge_index=edge_index, y=np.zeros(4))
    graph = pubmed(tmp_path)
    assert graph == Graph(4, 4, path)
    assert graph.edge_index().tolist() == edge_index.tolist()
    assert "random" not in topology(graph)


@pytest.mark.parametrize(
    "arrays",
    [
        {"edge_index": np.array([[0], [5]]), "y": np.zeros(2)},
        {"edge_index": np.array([[0.0], [1.0]]), "y": np.zeros(2)},
        {"y": np.zeros(2)},
    ],
)
def test_damaged_topology(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    path = _write_topology(tmp_path, **arrays)
    with pytest.raises(UserError, match=r"expected .*Put an intact copy there, or remove it") as error:
        pubmed(tmp_path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("contestant", CONTESTANTS)
def test_every_contestant_runs_forward_and_backward(contestant: graph_sizes.Contestant) -> None:
    make_step(contestant, Graph(5, 8))()


# the script


def test_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(graph_scaling, "NODES", 30)
    monkeypatch.setattr(graph_scaling, "EDGES", (60, 200, 400))
    _write_topology(tmp_path, edge_index=np.array([[0, 1, 1, 2], [1, 0, 2, 1]]), y=np.zeros(4))
    out, results = tmp_path / "out", tmp_path / "results"
    config = ScalingConfig(data_root=tmp_path, out=out, results=results, max_edges=200, rounds=2)
    metrics = run(config)
    printed = capsys.readouterr().out
    assert "4 nodes, 4 directed edges (PubMed's own topology)" in printed
    assert "upper decade: GATConv " in printed
    assert read_metrics(out) == pytest.approx(metrics)
    assert metrics["pubmed/GATConv/ratio"] == 1
    assert {name.split("/")[0] for name in metrics} == {"pubmed", *(f"{e}_edges" for e in (60, 200)), *CONTESTANTS}
    assert (out / "environment.json").is_file()
    text = page(results)
    assert str(tmp_path) not in text
    for path in (out / "graph_scaling.png", results / "pictures" / "graph_scaling.png"):
        assert path.read_bytes().startswith(b"\x89PNG")
    assert "(pictures/graph_scaling.png)" in text


def test_layers_that_would_need_too_much_memory_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = {"GATConv": 0.002, "Soft": 0.001, "WC": 0.001}

    def measure(_: object, contestants: list[str], graph: Graph, *, rounds: int, warm_up: int) -> tuple[dict, dict]:
        assert (rounds, warm_up) == (30, 3)
        found = _measurement(graph.edges, **{name: graph.edges * peaks[name] for name in contestants})
        return found.times, found.peaks

    monkeypatch.setattr(graph_scaling, "measure", measure)
    graphs = [Graph(10, edges) for edges in (1000, 10_000, 50_000, 100_000)]
    done = graph_scaling._measure_all(graphs, ScalingConfig(max_memory=0.06))
    assert [sorted(found.times) for found in done] == [["GATConv", "Soft", "WC"]] * 2 + [["Soft", "WC"]]
    last = rows(graph_scaling._metrics(done[0], done), done[0], done)[-1]
    assert (last["GATConv ms"], last["WC ratio"], last["WC ms"]) == ("-", "-", "500.0")


def test_time_per_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    timing = Timing(median=1, low=1, high=1, ratio=9, ratio_low=8, ratio_high=12)
    monkeypatch.setattr(graph_sizes, "make_step", lambda contestant, graph: lambda: None)
    monkeypatch.setattr(graph_sizes, "interleave", lambda steps, **_: dict.fromkeys(steps, timing))
    growing = [_measurement(SMALL, GATConv=1, WC=1), _measurement(LARGE, WC=1)]
    found = graph_scaling._per_edge(growing)
    assert found == {"WC/per_edge": 0.9, "WC/per_edge_low": 0.8, "WC/per_edge_high": 1.2}
    assert graph_scaling._per_edge(growing[:1]) == {}
    metrics = graph_scaling._metrics(_measurement(7, GATConv=1, Soft=1, WC=1), growing) | found
    expected = "Time per edge on 1000000 edges over that on 100000, taking turns: WC 0.90 (0.80 - 1.20)."
    assert findings(metrics)[-1] == expected


@pytest.mark.parametrize("contestant", CONTESTANTS)
def test_time_per_edge_of_real_layers(contestant: graph_sizes.Contestant) -> None:
    found = graph_sizes.time_per_edge(contestant, Graph(10, 20), Graph(10, 40), rounds=2)
    assert 0 < found["per_edge_low"] <= found["per_edge"] <= found["per_edge_high"]


def test_max_edges_below_the_smallest_graph(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="max_edges is 5, expected at least 20000"):
        run(ScalingConfig(data_root=tmp_path, max_edges=5))
