"""Benchmarks at tiny sizes: contestants that should compute the same do, the others train, and how it is measured."""

import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.benchmarks import measuring, networks, suite
from experiments.benchmarks.config import BenchmarkConfig, Name
from experiments.benchmarks.layers import Graph, Positions, Tokens
from experiments.benchmarks.measuring import Benchmark, peak_memory
from experiments.benchmarks.networks import Classified, Sizes
from experiments.benchmarks.suite import BENCHMARKS, worse
from experiments.report.report import RESULTS, read_results
from experiments.report.statistics import Estimate
from models.vqa import MCANSizes
from pyro_attention.objectives.validation import KLWarning

WORDS = Sizes(3, targets=2, batch=2, width=4, vocabulary=6)
CLASSIFIER = Classified(batch=2, length=3, width=8, heads=2)
SIZES = {
    "graph_attention": Graph(9, 20),
    "self_attention": CLASSIFIER,
    "normalizers": Tokens(3, "Weibull"),
    "predictions": CLASSIFIER,
    "evidence": CLASSIFIER,
    "blocked_attention": Positions(64),
    "mcan": networks.Questions(
        3, 5, 4, features=5, vocabulary=9, answers=4, network=MCANSizes(8, 8, 2, 1, 16, 8), dropout=0.0
    ),
    "transformer": networks.Tokens(layers=1, heads=2, width=8, hidden=8, vocabulary=20, dropout=0.0, batch=3, length=5),
}
TINY: dict[Name, Benchmark] = {
    name: replace(benchmark, sizes={"tiny": SIZES.get(name, WORDS)}) for name, benchmark in BENCHMARKS.items()
}


def step_of(name: Any, contestant: str) -> Any:
    return TINY[name].make_step(contestant, SIZES.get(name, WORDS))


@pytest.mark.parametrize(
    ("name", "contestants", "tolerance"),
    [
        ("enumeration", BENCHMARKS["enumeration"].contestants, {}),
        # up to the noise, on which the KL, by far the largest part, does not depend
        ("blocked_attention", ("dense", "naive dense", "blocked"), {"rtol": 1e-4, "atol": 0}),
        ("transformer", ("soft", "eager", "sdpa"), {}),
    ],
)
def test_contestants_compute_the_same(name: str, contestants: tuple[str, ...], tolerance: dict[str, float]) -> None:
    reference, *others = (step_of(name, one)() for one in contestants)
    for other in others:
        torch.testing.assert_close(other, reference, **tolerance)


# Names of a hand-written layer's parameters in ours.
OURS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj", "prior": "attention.prior.network"}


@pytest.mark.parametrize(
    ("names", "tolerance"),
    [
        ((networks.BY_HAND, networks.FUSED, "soft, ours"), {}),
        ((networks.NAIVE, networks.STOCK, "Weibull, ours"), {"rtol": 2e-2, "atol": 0}),  # of the noise
    ],
    ids=["deterministic", "Bayesian"],
)
def test_classifiers_of_equal_weights_have_equal_losses(names: tuple[str, ...], tolerance: dict[str, float]) -> None:
    x, labels = torch.randn(2, 3, 8), torch.tensor([0, 1])
    values, weights = [], dict[str, torch.Tensor]()
    for name in names:
        torch.manual_seed(0)
        network, loss = networks.make_loss(name, CLASSIFIER)
        if name.endswith("ours"):
            for key, value in weights.items():
                first, *rest = key.split(".")
                ours = key if first != "attention" else ".".join([first, rest[0], OURS[rest[1]], *rest[2:]])
                network.get_parameter(ours).data.copy_(value)
        else:
            weights = weights or dict(network.named_parameters())
        values.append(loss(x, labels).detach())
    for value in values[1:]:
        torch.testing.assert_close(value, values[0], **tolerance)


@pytest.mark.parametrize(
    ("name", "one"), [(name, one) for name in ("self_attention", "normalizers") for one in BENCHMARKS[name].contestants]
)
def test_contestants_train(name: str, one: str) -> None:
    step = step_of(name, one)
    losses = [step().item() for _ in range(20)]
    assert losses[-1] < losses[0]


# How it is measured


def test_interleaved_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that is made up."""
    clock = [0.0]

    def work(*times: float) -> Callable[[], None]:
        remaining = iter(times)
        return lambda: clock.__setitem__(0, clock[0] + next(remaining))

    monkeypatch.setattr(measuring.time, "process_time", lambda: 1e-3 * clock[0])
    steps = {"even": work(*[2.0] * 11), "uneven": work(99.0, *map(float, range(2, 22, 2)))}
    turns = {"make_step": lambda name, _: steps[name], "contestants": tuple(steps), "sizes": {"one": 1}}
    rows = Benchmark(title="", text="", memory=False, **turns).measure(10)
    assert [[*map(str, row.values())] for row in rows] == [
        ["one", "even", "1.00", "1.00 - 1.00", "2.0"], ["one", "uneven", "5.50", "1.90 - 9.10", "11.0"],
    ]  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process lower its own peak")
def test_memory_of_blocks_does_not_grow_with_pairs() -> None:
    """A tensor of all pairs takes 18 MB; what this process has used before neither counts nor hides anything."""
    torch.ones(400, 250_000)
    make_step = BENCHMARKS["blocked_attention"].make_step
    dense, blocked = (peak_memory(make_step, name, Positions(1536)) for name in ("dense", "blocked"))
    assert dense > 90
    assert blocked < 0.7 * dense


def test_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Every benchmark from end to end; the published numbers are of these contestants and sizes."""
    threads = torch.get_num_threads()
    monkeypatch.setattr(suite, "BENCHMARKS", TINY)
    monkeypatch.setattr(measuring, "peak_memory", lambda *_: 1.0)
    monkeypatch.setenv("COLUMNS", "80")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        suite.run(BenchmarkConfig(rounds=1, threads=threads, out=tmp_path))
    assert [str(warning.message) for warning in caught if issubclass(warning.category, KLWarning)] == []
    found = {path.stem.removeprefix("speed-"): read_results(path) for path in tmp_path.glob("speed-*")}
    assert found.keys() == BENCHMARKS.keys()
    report, source = found["blocked_attention"]
    table = report.parts[0].rows
    assert [row["contestant"] for row in table] == list(BENCHMARKS["blocked_attention"].contestants)
    assert (table[0]["ratio"].mean, table[0]["MB"].mean) == (1, 1)
    assert source.command == f"python -m experiments.benchmarks --name blocked_attention --rounds 1 --threads {threads}"
    printed = capsys.readouterr().out
    assert "than as published, by python -m experiments.benchmarks" in " ".join(printed.split())
    assert [line for line in printed.splitlines() if len(line) > 80 and str(tmp_path) not in line] == []
    for name, benchmark in BENCHMARKS.items():
        if (path := RESULTS / f"speed-{name}.json").is_file():
            published = read_results(path)[0].parts[0].rows
            assert {row["size"] for row in published} <= benchmark.sizes.keys()
            assert {row["contestant"] for row in published} == {*benchmark.contestants}


def rows(**ratios: float) -> list[dict[str, object]]:
    return [{"size": "all", "contestant": name, "ratio": Estimate(ratio)} for name, ratio in ratios.items()]


def test_what_got_worse() -> None:
    before, now = rows(hand=1.0, ours=1.31, peer=2.0), rows(hand=1.0, ours=1.62, peer=2.39, other=9.0)
    assert worse(before, now) == ["all, ours: 1.62 times the reference, was 1.31"]
