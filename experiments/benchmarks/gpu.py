"""Checks and times on one GPU: fused kernels, training steps, draws, and waits for the GPU."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch._inductor import config as inductor

from experiments.benchmarks import gpu_attention, gpu_kernels, gpu_steps
from experiments.benchmarks.measuring import data_of_no_meaning
from experiments.benchmarks.stages import Item, Result, Stage, run_stage
from experiments.cli import command_line
from experiments.files import UserError, write_text
from experiments.folder import write_environment
from experiments.report.report import Part, Report, Source, source_of, write_results
from experiments.report.statistics import Estimate, Row
from experiments.report.terminal import wrapped
from pyro_attention.blocked.ops.fused_attention import unfused


@dataclass(frozen=True, kw_only=True)
class GPUConfig:
    """Check the fused kernels on a GPU, and time attention, training steps and draws there.

    The most important measurements come first. The report and its JSON are written anew after each of them, so no later
    failure loses a number. Measurements that fail, or have no time left, are listed at the end of the report.

    Args:
        device: Device to measure; "cpu" tries the command at tiny sizes where there is no GPU.
        minutes: Time limit of everything in minutes.
        parts: Letters of the parts to run: a kernels, b training compared with the CPU, c attention, d Bayesian steps,
            e 32 draws, f tiles of the kernels.
        out: Folder for the report and the numbers.
        results: Folder for the published numbers; none when omitted.
    """

    device: Literal["cuda", "cpu"] = "cuda"
    minutes: float = 8.0
    parts: str = "abcdef"
    out: Path = Path("runs", "gpu")
    results: Path | None = None


def run(config: GPUConfig) -> None:
    """Run all measurements, and write the report after each.

    Raises:
        UserError: There is no GPU, or a kernel or training is not right; the report is written first.
    """
    begun = time.monotonic()
    deadline = begun + 60 * config.minutes
    # every process compiles by itself: they must not share a pool that this process would start
    inductor.compile_threads = 1
    ledger = Ledger(config, begun)
    cache = Path(tempfile.mkdtemp(prefix="gpu-losses-"))
    try:
        run_stage(
            Stage("machine", [Item("Machine", "machine", lambda: machine(config))], 60), ledger.add, deadline=deadline
        )
        if "Machine" not in ledger.rows:
            raise UserError(_last_line(ledger.problems["Machine: machine"]).rpartition("UserError: ")[2])
        with data_of_no_meaning():  # processes inherit it
            for stage in stages(config, cache):
                run_stage(stage, ledger.add, deadline=deadline)
    finally:
        shutil.rmtree(cache, ignore_errors=True)
    ledger.write()
    if config.results is not None:
        print(write_results(config.results, *ledger.report()))
    print("", ledger.report()[0].terminal(), "", ledger.path, sep="\n")
    if wrong := ledger.wrong():
        raise UserError(f"not right: {'; '.join(wrong)}")


def machine(config: GPUConfig) -> Result:
    """Return the rows on torch, GPU and Triton. It runs in another process: this one must not use the GPU.

    Raises:
        UserError: No CUDA build of torch, or no GPU.
    """
    rows: list[Row] = [{"what": "torch", "is": torch.__version__}]
    problems = list[str]()
    device = torch.device(config.device)
    if config.device == "cuda":
        if torch.version.cuda is None:
            raise UserError(
                f"torch {torch.__version__} is no CUDA build; install one, or try --device cpu at tiny sizes"
            )
        if not torch.cuda.is_available():
            raise UserError("there is no GPU here; --device cpu tries the command at tiny sizes")
        properties = torch.cuda.get_device_properties(0)
        gigabytes = properties.total_memory / 1e9
        rows += [
            {"what": "GPU", "is": properties.name},
            {"what": "memory", "is": f"{gigabytes:.0f} GB"},
            {"what": "compute capability", "is": f"{properties.major}.{properties.minor}"},
            {"what": "CUDA", "is": str(torch.version.cuda)},
        ]
        if properties.major < 8:
            problems.append("this GPU is older than compute capability 8.0: it has no bfloat16 and no fused kernels")
        if gigabytes < 30:
            problems.append(f"{gigabytes:.0f} GB of memory may be too little for BERT-base and 32768 positions")
    try:
        import triton

        rows.append({"what": "Triton", "is": triton.__version__})
    except ModuleNotFoundError:
        problems.append("Triton is not installed, so nothing is fused; pip install 'pyro-attention[triton]'")
    vectors = 3 * [torch.zeros(1, 16, dtype=torch.bfloat16, device=device)]
    reason = unfused(*vectors)
    rows.append({"what": "attention", "is": "fused kernels" if reason is None else f"in PyTorch: {reason}"})
    write_environment(config.out, device)
    return Result(rows, problems)


def stages(config: GPUConfig, cache: Path) -> list[Stage]:
    """Return all stages of measurements, the most important first."""
    device, on_gpu = config.device, config.device == "cuda"
    first = [(8192, 64), (8192, 128)] if on_gpu else [(32, 16)]
    later = [(2048, 64), (2048, 128), (32768, 64), (32768, 128)] if on_gpu else [(16, 16)]
    sizes = gpu_steps.TrainingSizes() if on_gpu else gpu_steps.TINY
    side_by_side, rounds = (14, 7) if on_gpu else (1, 1)
    preparation, tiles = list[Item](), "f" in config.parts and on_gpu
    if "a" in config.parts:
        preparation += gpu_kernels.check_items(device)
    if "c" in config.parts and on_gpu:
        preparation += gpu_attention.compile_items(first, device)
    if "b" in config.parts:
        preparation += gpu_steps.cpu_loss_items(sizes, cache)
    if "c" in config.parts and on_gpu:
        preparation += gpu_attention.compile_items(later, device)
    planned = [Stage("kernels", preparation, 130, side_by_side)]
    if "c" in config.parts:
        items = gpu_attention.attention_items(first, device, seconds=70, rounds=rounds)
        planned.append(Stage("attention, 8192 positions", items, 100))
    if "b" in config.parts:
        planned.append(Stage("training", gpu_steps.training_items(sizes, cache, device), 100))
    if "d" in config.parts:
        planned.append(Stage("Bayesian steps", gpu_steps.step_items(device), 100))
    if "e" in config.parts:
        planned.append(Stage("32 draws", gpu_steps.draw_items(device), 45))
    if tiles:
        planned.append(Stage("compilation of tiles", gpu_kernels.sweep_items(compile_only=True), 40, side_by_side))
        planned.append(Stage("tiles", gpu_kernels.sweep_items(compile_only=False), 60))
    if "c" in config.parts:
        planned.append(Stage("attention", gpu_attention.attention_items(later, device, seconds=50, rounds=rounds), 120))
    return planned


@dataclass(frozen=True)
class Table:
    """A table of the report: its text, the number of columns that name a row, and what it says on a GPU alone."""

    text: str
    labels: int = 1
    on_gpu: str = ""


TABLES = {
    "Machine": Table(""),
    "Kernels": Table(gpu_kernels.CHECKED),
    "Attention": Table(gpu_attention.TIMED, 2, f"\n\n{gpu_attention.BARS}"),
    "Training": Table(gpu_steps.COMPARED, 1, f" {gpu_steps.WAITS}"),
    "Steps": Table(gpu_steps.STEPS, 2),
    "Draws": Table(gpu_steps.DRAWN, 2),
    "Tiles": Table(gpu_kernels.SWEPT, 3),
}
MARGIN = 10 * " "  # as wide as the seconds ahead of a name
ON_CPU = "Tried on a CPU, to see that the command works: sizes are tiny, not those of the texts, and times say nothing."


@dataclass
class Ledger:
    """Measured rows and problems, and the report of them."""

    config: GPUConfig
    begun: float
    rows: dict[str, list[Row]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    taken: list[Row] = field(default_factory=list)
    last_reason: str = ""

    def add(self, item: Item, result: Result) -> None:
        """Store a result, print it, and write the report anew."""
        now = time.monotonic() - self.begun
        self.taken.append({"part": item.table, "what": item.name, "ended at s": Estimate(now, digits=0)})
        if result.rows:
            self.rows.setdefault(item.table, []).extend(result.rows)
        if result.problems:
            self.problems[f"{item.table}: {item.name}"] = "\n".join(result.problems)
        print(wrapped(f"{now:6.1f} s  {item.table}: {item.name}", indent=MARGIN), flush=True)
        labels = TABLES[item.table].labels if item.table in TABLES else 1
        for line in (*(_in_short(row, labels, item.name) for row in result.rows), *map(self._reason, result.problems)):
            print(wrapped(f"{MARGIN}{line}", indent="  "), flush=True)
        if self.rows.get("Machine"):
            self.write()

    def _reason(self, problem: str) -> str:
        """Return the last line of a problem, in short where the one before had it too."""
        reason, before = _last_line(problem), self.last_reason
        self.last_reason = reason
        return "the same" if reason == before else reason

    @property
    def path(self) -> Path:
        """Path of the report."""
        return self.config.out / "report.md"

    def write(self) -> None:
        """Write report and JSON, whole or not at all."""
        report, source = self.report()
        write_results(self.config.out, report, source)
        write_text(self.path, report.markdown(source, pictures=""))

    def report(self) -> tuple[Report, Source]:
        """Return the report, with tables in the order of their importance, and its origin."""
        on_gpu = self.config.device == "cuda"
        parts = [
            Part(name, table.text + table.on_gpu * on_gpu, _filled(self.rows[name]), table.labels)
            for name, table in TABLES.items()
            if name in self.rows
        ]
        if on_gpu and (bars := bar_rows(self.rows)):
            parts.insert(1, Part(title="Bars", rows=bars, labels=2))
        if self.problems:
            title = "What failed or was left out" + ", and where steps wait" * on_gpu
            parts.append(Part(title=title, lines=_by_reason(self.problems)))
        if long := [f"{name}\n{text}" for name, text in self.problems.items() if len(text.splitlines()) > 1]:
            parts.append(Part(title="Failures in full", lines="\n\n".join(long), terminal=False))
        parts.append(Part(title="Times", rows=self.taken, labels=2, terminal=False))
        command = command_line(
            "experiments.benchmarks gpu", GPUConfig(device=self.config.device, parts=self.config.parts)
        )
        summary = "" if on_gpu else ON_CPU
        title = "On a GPU" if on_gpu else "The command of a GPU, tried on a CPU"
        return Report(title, "speed-gpu", parts, summary), source_of([self.config.out], command)

    def wrong(self) -> list[str]:
        """Return the names of kernels and trainings that are not right, or did not end by themselves."""
        tables = {"Kernels": "case", "Training": "training"}
        names = [
            str(row[name]) for table, name in tables.items() for row in self.rows.get(table, []) if row["right"] == "no"
        ]
        broken = [name for name, text in self.problems.items() if text.startswith(("Traceback", "the process died"))]
        return names + [name.partition(": ")[2] for name in broken if name.partition(": ")[0] in tables]


def _last_line(problem: str) -> str:
    return problem.strip().splitlines()[-1][:300]


def _in_short(row: Row, labels: int, name: str) -> str:
    """Return what a row says, without details and without the name of its measurement."""
    columns = [column for column, cell in row.items() if cell != "-" and column not in ("by", "parts", "spread")]
    label = ", ".join(str(row[column]) for column in columns[:labels] if row[column] != name)
    cells = [f"{column} {row[column]}" for column in columns[labels:]]
    if len(cells) == 1:  # what torch, GPU and so on are
        cells = [str(row[columns[-1]])]
    return f"{label}: {', '.join(cells)}" if label else ", ".join(cells)


def _filled(rows: list[Row]) -> list[Row]:
    """Return the rows without the columns that nothing stands in, such as the memory of a GPU on a CPU."""
    empty = {column for column in rows[0] if all(row[column] == "-" for row in rows)}
    return [{column: cell for column, cell in row.items() if column not in empty} for row in rows]


def _by_reason(problems: Mapping[str, str]) -> str:
    """Return every reason once, with the measurements that it holds for."""
    names = dict[str, list[str]]()
    for name, problem in problems.items():
        names.setdefault(_last_line(problem), []).append(name)
    return "\n".join("\n    ".join([reason, *of_reason]) for reason, of_reason in names.items())


# Bars


def bar_rows(tables: Mapping[str, list[Row]]) -> list[Row]:
    """Return rows with a measured number, its bar, and whether the number holds the bar."""
    rows = list[Row]()

    def compare(what: str, of: str, number: float | None, bar: float) -> None:
        if number is not None:
            verdict = "yes" if number <= bar else "no"
            rows.append(
                {"what": what, "of": of, "number": Estimate(number, digits=3), "bar": Estimate(bar), "holds": verdict}
            )

    attention = {(row["size"], row["contestant"]): row for row in tables.get("Attention", [])}
    for size in dict.fromkeys(size for size, _ in attention if size.startswith("n = 8192")):
        narrow = size.endswith("width 64")
        bars = {
            gpu_attention.HASHED: 1.0,
            gpu_attention.FLEX: 2.0 if narrow else 1.5,
            gpu_attention.SDPA: 2.5 if narrow else 2.0,
        }
        for engine in (gpu_attention.ELBO, gpu_attention.FUSED):
            for other, bar in bars.items():
                compare(f"{engine}: time by {other}", size, _ratio(attention, size, engine, other, "ms"), bar)
            memory = _ratio(attention, size, engine, gpu_attention.SDPA, "MB")
            compare(f"{engine}: memory by {gpu_attention.SDPA}", size, memory, 1.1)
    steps = {(row["size"], row["contestant"]): row for row in tables.get("Steps", [])}
    for size in dict.fromkeys(size for size, _ in steps):
        if size.startswith("BERT"):
            compare("Weibull: time by soft", size, _ratio(steps, size, "Weibull", "soft", "ms"), 1.15)
    for row in tables.get("Training", []):
        if isinstance(row["waits"], Estimate):
            compare("waits of a step", str(row["training"]), row["waits"].mean, 1.0)
    return rows


def _ratio(
    rows: Mapping[tuple[str, str], Row], size: str, contestant: str, reference: str, column: str
) -> float | None:
    cells = [rows.get((size, name), {}).get(column) for name in (contestant, reference)]
    if all(isinstance(cell, Estimate) and cell.mean > 0 for cell in cells):
        return float(cells[0].mean / cells[1].mean)  # type: ignore[union-attr]
    return None
