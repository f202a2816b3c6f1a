"""The committed ratios of the benchmarks, and what got worse against them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from experiments.benchmarks.timing import Timing, threads_text
from experiments.files import locked, read_json, reading, write_atomic

__all__ = ["RATIOS", "Measured", "Ratios", "compare", "device_name", "ratios_of", "read_ratios", "write_ratios"]

RATIOS = Path(__file__).with_name("ratios.json")
WORSE = 1.2  # a ratio that has grown by more than this factor is reported


class Measured(TypedDict):
    """Ratios of one benchmark by contestant, and with which torch they were measured."""

    torch: str
    ratios: dict[str, float]


# By device, as device_name() has it, and benchmark: only figures of one device can be compared.
Ratios = dict[str, dict[str, Measured]]


def read_ratios(path: Path) -> Ratios:
    """The committed ratios; none where there is no file.

    Raises:
        UserError: The file is damaged.
    """
    if not path.is_file():
        return {}
    remedy = "restore it from git, or remove it and measure again with --update"
    with reading(path, "device: benchmark: torch and ratios", remedy):
        content = read_json(path, remedy)
        return {device: {n: _checked(m) for n, m in benchmarks.items()} for device, benchmarks in content.items()}


def _checked(found: Mapping[str, Any]) -> Measured:
    ratios = {contestant: float(ratio) for contestant, ratio in found["ratios"].items()}
    if not all(ratio > 0 for ratio in ratios.values()):
        raise ValueError(f"ratios {ratios} are not all positive")
    return {"torch": str(found["torch"]), "ratios": ratios}


def write_ratios(path: Path, device: str, measured: Mapping[str, Measured]) -> None:
    """Replace the ratios of the measured benchmarks on this device; all others, as they are by now, stay."""
    with locked(path):
        committed = read_ratios(path)
        content = committed | {device: committed.get(device, {}) | dict(measured)}
        write_atomic(path, lambda file: file.write(f"{json.dumps(content, indent=2, sort_keys=True)}\n".encode()))


def device_name(device: str, threads: int) -> str:
    """Under which name ratios are kept: that of the GPU, or "cpu" with the number of threads, which changes them.

    Example:
        >>> device_name("cpu", 2)
        'cpu, 2 threads'
    """
    return f"cpu, {threads_text(threads)}" if device == "cpu" else device


def ratios_of(timings: Mapping[str, Timing], *, torch: str) -> Measured:
    """What is committed of a benchmark's timings."""
    return {"torch": torch, "ratios": {name: round(t.ratio, 3) for name, t in timings.items()}}


def compare(committed: Ratios, device: str, measured: Mapping[str, Measured]) -> list[str]:
    """What got worse by more than 20 %, what is new and what was measured otherwise, one finding a line."""
    if device not in committed:
        return [f"ratios.json has no ratios on {device}; --update writes those of this run"]
    lines, any_worse = [], False
    for name, now in measured.items():
        if name not in committed[device]:
            lines.append(f"{name}: new, not in ratios.json")
            continue
        before = committed[device][name]
        lines += [f"{name}: {new} is new" for new in now["ratios"] if new not in before["ratios"]]
        for contestant, ratio in now["ratios"].items():
            was = before["ratios"].get(contestant, math.inf)
            if ratio > WORSE * was:
                any_worse = True
                change = f"was {was:.2f} ({100 * (ratio / was - 1):+.0f} %)"
                lines.append(f"{name}: {contestant} takes {ratio:.2f} times the reference, {change}")
        if now["torch"] != before["torch"]:
            lines.append(f"{name}: ratios.json is of torch {before['torch']}, this run of {now['torch']}")
    return lines if any_worse else [*lines, "no ratio is more than 20 % worse than ratios.json"]
