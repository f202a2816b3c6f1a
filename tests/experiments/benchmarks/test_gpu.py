"""The command of a GPU, on a CPU: stages whose items fail, hang or die, engines, losses, and the whole."""

from __future__ import annotations

import os
import time
import warnings
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from experiments.benchmarks import gpu, gpu_attention, gpu_steps, networks, throughput
from experiments.benchmarks.gpu_kernels import CANDIDATES
from experiments.benchmarks.stages import Item, Result, Stage, run_stage
from experiments.benchmarks.throughput import Contestant, race
from experiments.files import UserError
from experiments.report.report import read_results
from experiments.report.statistics import Estimate
from pyro_attention.blocked.ops.counter_noise import CounterNoise
from tests.test_waits import Waits

pytestmark = pytest.mark.filterwarnings(
    "ignore:flex_attention called without torch.compile:UserWarning", "ignore:the KL outweighs the data"
)


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    torch.compiler.reset()


def outcomes(stage: Stage, seconds: float = 60) -> dict[str, str]:
    """What is reported of each item: its rows, or the last line of its problem."""
    reports = dict[str, str]()

    def report(item: Item, result: Result) -> None:
        assert item.name not in reports
        reports[item.name] = str(result.rows) if result.rows else result.problems[-1].strip().splitlines()[-1]

    run_stage(stage, report, deadline=time.monotonic() + seconds)
    return reports


def fails() -> Result:
    raise ValueError("no such kernel")


@pytest.mark.parametrize("processes", [1, 3])
def test_no_item_ends_the_others(processes: int) -> None:
    items = [
        Item("table", "raises", fails),
        Item("table", "hangs", lambda: time.sleep(60), seconds=0.5),  # type: ignore[arg-type, return-value]
        Item("table", "dies", lambda: os._exit(7)),
        Item("table", "works", lambda: Result([{"a": 1}])),
    ]
    assert outcomes(Stage("stage", items, 60, processes)) == {
        "raises": "ValueError: no such kernel",
        "hangs": "ended: it took more than its 0 s",
        "dies": "the process died, exit code 7",
        "works": "[{'a': 1}]",
    }


def test_items_without_time_are_skipped_with_a_line() -> None:
    hangs = Item("table", "hangs", lambda: time.sleep(60))  # type: ignore[arg-type, return-value]
    late = Item("table", "late", lambda: Result([{"a": 1}]))
    reports = outcomes(Stage("stage", [hangs, late], 0.5))
    assert reports["hangs"].startswith("ended after")
    assert reports["late"].startswith("skipped: the time of 'stage'")
    assert "skipped" in outcomes(Stage("stage", [late], 60), seconds=-1)["late"]


def test_a_contestant_that_fails_has_a_row_that_says_so() -> None:
    x = torch.zeros(2, requires_grad=True)
    draws = Contestant(lambda: (x * torch.rand(2)).sum().backward(), [x])
    grows = Contestant(lambda: (x.sum() * len(calls)).backward() or calls.append(1), [x])  # type: ignore[func-returns-value]
    calls = [1]

    def wrong() -> None:
        raise RuntimeError("out of memory")

    result = race({"wrong": wrong, "draws": lambda: draws, "grows": lambda: grows}, size="one", seconds=1, rounds=1)
    assert [row["equal gradients"] for row in result.rows] == ["failed", "yes", "no"]
    assert [str(row["ratio"]) for row in result.rows][:2] == ["failed", "1.000"]
    assert "RuntimeError: out of memory" in result.problems[0]


# Engines


def noise_of_flex(length: int, seed: int = 5) -> torch.Tensor:
    """Noise ``[2, 2, N, N]`` that FlexAttention adds, read from contexts of unit vectors as values."""
    q = torch.zeros(2, 2, length, length)
    values = torch.eye(length).expand(2, 2, length, length)
    noise = flex_attention(q, q, values, score_mod=gpu_attention.hashed_noise(2, length, 1.0, seed)).log()
    return noise - noise.exp().mean(-1, keepdim=True).log()  # a shift a row, of which a softmax knows nothing


def test_hashed_noise_is_exponential_and_of_neighbours_independent() -> None:
    """Of independent exponential draws, divided by their mean: moments, and correlation of what lies side by side."""
    weights = noise_of_flex(128).exp()
    count = weights.numel()
    assert abs(weights.square().mean() - 2 * 128 / 129) < 5 * (20 / count) ** 0.5
    assert abs((weights < 0.5).double().mean() - (1 - (1 - 0.5 / 128) ** 127)) < 5 * (0.25 / count) ** 0.5
    normal = (weights - 1).double()
    for shifted in (normal.roll(1, -1), normal.roll(1, -2), normal.roll(1, 1), normal.roll(1, 0), normal.mT):
        different = (normal != shifted).double()
        assert abs((normal * shifted * different).mean()) < 5 / count**0.5 + 2 / 128
    assert not torch.equal(noise_of_flex(16, seed=1), noise_of_flex(16, seed=2))


@pytest.mark.parametrize("name", gpu_attention.CONTESTANTS)
def test_every_engine_leaves_a_gradient(name: str) -> None:
    contestant = gpu_attention.make_contestant(name, 32, 16)
    if name == gpu_attention.FLASH:
        assert contestant is None
        return
    assert contestant is not None
    contestant.step()
    assert all(leaf.grad is not None and leaf.grad.isfinite().all() for leaf in contestant.leaves)


def test_steps_of_engines_run_without_a_default_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is set where they are made, but takes time at every call of torch."""
    devices = list[str]()

    def note() -> None:
        devices.append(torch.get_default_device().type)

    def make(*_: object) -> Contestant:
        note()
        return Contestant(note)

    monkeypatch.setattr(gpu_attention, "make_contestant", make)
    gpu_attention.attention_race(32, 16, "meta", rounds=1)
    assert devices[0] == "meta"
    assert devices.count("meta") == len(gpu_attention.CONTESTANTS) < devices.count("cpu")


# Training


def test_families_lie_where_their_networks_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device "meta" stands for a GPU, on which a step begins with nothing on the CPU."""
    monkeypatch.setattr("pyro_attention.integrations.huggingface.bayesian", lambda model, **_: model)
    sizes = networks.Classified(batch=2, length=3, width=8, heads=2)
    with torch.device("meta"), Waits():
        losses = [networks.make_loss(name, sizes)[1] for name in networks.OURS]
        losses += [networks.mcan_loss(name, gpu_steps.TINY.questions) for name in networks.FAMILIES]
        losses += [networks.bert_loss(name, gpu_steps.TINY.tokens)[0] for name in ("Weibull", "LogNormal")]
        losses.append(networks.make_predictions("32 draws", sizes).args[0])  # type: ignore[attr-defined]
    for loss in losses:
        assert isinstance(loss, torch.nn.Module)
        assert all(tensor.is_meta for tensor in (*loss.parameters(), *loss.buffers()))


def test_waits_are_those_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mode that makes torch warn of them warns of itself, once a process, and speaks of synchronizing too."""

    def set_mode(mode: str) -> None:
        if mode == "warn":
            text = "Synchronization debug mode is a prototype feature and does not yet detect all synchronizing"
            warnings.warn(f"{text} operations", stacklevel=1)

    def step() -> None:
        warnings.warn("called a synchronizing CUDA operation (Triggered internally at a file.)", stacklevel=1)

    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)
    monkeypatch.setattr(throughput, "profile", lambda **_: nullcontext(SimpleNamespace(key_averages=list)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the steps that are not listened to
        count, warned, _ = throughput.waits(step)
    assert (count, warned) == (0, 1)


def test_noise_is_the_same_wherever_it_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device "meta" stands for a GPU: what arrives there was drawn on the CPU, in place too, and in equal order."""
    moved = list[torch.Tensor]()
    original = torch.Tensor.to

    def to(x: torch.Tensor, where: object, *rest: object) -> torch.Tensor:
        moved.extend([x] * (torch.device(where).type == "meta"))  # type: ignore[arg-type]
        return original(x, where, *rest) if str(where) != "cpu" else torch.zeros(x.shape, dtype=x.dtype)  # type: ignore[call-overload, no-any-return]

    torch.manual_seed(3)
    expected = [torch.randn(3), torch.rand(2)]
    torch.manual_seed(3)
    monkeypatch.setattr(torch.Tensor, "to", to)
    with gpu_steps.noise_of_the_cpu():
        found = [torch.randn(3, device="meta"), torch.rand(2, device="meta")]
        in_place = torch.empty(4, device="meta").normal_()
    assert all(x.is_meta for x in (*found, in_place))
    assert all(map(torch.equal, moved, expected))


@pytest.mark.parametrize("name", ["graph, Weibull", "captioning, marginal"])  # the command's test has all
def test_losses_that_differ_are_told(name: str, tmp_path: Path) -> None:
    cpu = gpu_steps.epoch_losses(gpu_steps.make_training(name, gpu_steps.TINY), "cpu")
    torch.save(cpu, tmp_path / f"{name}.pt")
    (row,) = gpu_steps.training_row(name, gpu_steps.TINY, tmp_path, "cpu").rows
    assert row["right"] == "yes"
    torch.save((cpu[0], 1.01 * cpu[1]), tmp_path / f"{name}.pt")
    (row,) = gpu_steps.training_row(name, gpu_steps.TINY, tmp_path, "cpu").rows
    assert (row["right"], row["first step"]) == ("no", "0.0e+00")


# The command


def test_bars_of_a_report() -> None:
    engines = {gpu_attention.SDPA: 1.0, gpu_attention.FLEX: 2.0, gpu_attention.HASHED: 3.0, gpu_attention.ELBO: 2.9}
    attention = [
        {"size": size, "contestant": name, "ms": Estimate(ms), "MB": Estimate(10.0)}
        for size in ("n = 8192, width 64", "n = 2048, width 64")
        for name, ms in engines.items()
    ]
    rows = gpu.bar_rows({"Attention": attention, "Training": [{"training": "graph", "waits": Estimate(2)}]})
    assert [(str(row["number"]), row["holds"]) for row in rows] == [
        ("0.967", "yes"), ("1.450", "yes"), ("2.900", "no"), ("1.000", "yes"), ("2.000", "no"),
    ]  # fmt: skip


def test_a_reason_stands_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = gpu.Ledger(gpu.GPUConfig(device="cpu", out=tmp_path), begun=time.monotonic())
    for name, reason in (("a", "skipped"), ("b", "skipped"), ("c", "Traceback\nValueError: wrong")):
        ledger.add(Item("Draws", name, fails), Result(problems=[reason]))
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[1::2] == ["skipped", "the same", "ValueError: wrong"]
    assert gpu._by_reason(ledger.problems) == "skipped\n    Draws: a\n    Draws: b\nValueError: wrong\n    Draws: c"


def test_kernels_that_fail_are_not_right(tmp_path: Path) -> None:
    """What is left out for time is no error."""
    ledger = gpu.Ledger(gpu.GPUConfig(device="cpu", out=tmp_path), begun=time.monotonic())
    row = {"case": "differs", "right": "no"}
    for table, name, result in (
        ("Kernels", "differs", Result([row])),
        ("Kernels", "raises", Result(problems=["Traceback (most recent call last):\nValueError: wrong"])),
        ("Training", "dies", Result(problems=["the process died, exit code -11"])),
        ("Training", "waits", Result(problems=["waits of waits: 2 x a line"])),
        ("Kernels", "late", Result(problems=["skipped: the time of 'kernels' is over"])),
        ("Draws", "other", Result(problems=["Traceback (most recent call last):\nValueError: wrong"])),
    ):
        ledger.add(Item(table, name, fails), result)
    assert ledger.wrong() == ["differs", "raises", "dies"]


def test_columns_without_content_are_left_out() -> None:
    rows = [{"size": "one", "ms": Estimate(1.0), "MB": "-"}, {"size": "two", "ms": "-", "MB": "-"}]
    assert [list(row) for row in gpu._filled(rows)] == 2 * [["size", "ms"]]


def test_a_machine_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def machine(_: gpu.GPUConfig) -> Result:
        raise RuntimeError("the driver is too old")

    monkeypatch.setattr(gpu, "machine", machine)
    with pytest.raises(UserError, match="RuntimeError: the driver is too old"):
        gpu.run(gpu.GPUConfig(device="cpu", out=tmp_path))


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(UserError, match="--device cpu"):
        gpu.run(gpu.GPUConfig(out=tmp_path))


@pytest.mark.slow
def test_command_of_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From end to end on a CPU, at tiny sizes; after each measurement the report is whole."""
    monkeypatch.setattr(throughput, "clock", lambda step, count: (1.0, 1.0))
    gpu.run(gpu.GPUConfig(device="cpu", out=tmp_path))
    report, source = read_results(tmp_path / "speed-gpu.json")
    tables = {part.title: part.rows for part in report.parts}
    assert {str(row["right"]) for row in (*tables["Kernels"], *tables["Training"])} == {"yes"}
    assert {"Machine", "Attention", "Steps", "Draws"} < tables.keys()
    assert not [part.lines for part in report.parts if part.lines]
    assert source.command == "python -m experiments.benchmarks gpu"
    assert "## Attention" in (tmp_path / "report.md").read_text()


def test_tiles_of_the_library_are_among_the_candidates() -> None:
    from experiments.benchmarks.gpu_kernels import BFLOAT16, KERNELS
    from pyro_attention.blocked.ops.fused_attention import Tiles, tiles

    for (kernel, width), candidates in CANDIDATES.items():
        assert tiles(width, BFLOAT16)[KERNELS.index(kernel)] in [Tiles(*tile) for tile in candidates]


def test_the_mixer_is_that_of_the_library() -> None:
    """Its hash of a row's offset and a column's, for a row whose multiplier is that of the mixer."""
    x = torch.tensor([0, 1, -1, 123456789, -(2**31)], dtype=torch.int32)
    counter = CounterNoise("normal", 0, (1, 1, 5))
    counter._offsets, counter._multipliers = (
        torch.zeros(1, 1, 1, dtype=torch.int32),
        torch.tensor([[[0x7FEB352D]]]).int(),
    )
    counter._columns = x
    bits = (gpu_attention._multiplied(x) >> 9) & 0x7FFFFF
    assert torch.equal(counter._uniform(slice(None), slice(None), slice(None))[0, 0], (bits + 0.5) / 2**23)
