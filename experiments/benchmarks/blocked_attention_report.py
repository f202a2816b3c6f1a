"""Table, picture and section of RESULTS.md of the benchmark blocked_attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.reporting.tables import markdown_table

__all__ = ["figure", "rows", "section"]

STYLE = {
    "scaled_dot_product_attention": ("0.45", "s"),
    "dense": ("#d1495b", "^"),
    "naive dense": ("#e09f3e", "v"),
    "blocked": ("#1b6ca8", "o"),
}


def rows(metrics: Mapping[str, float], lengths: Sequence[int], contestants: Sequence[str]) -> list[dict[str, str]]:
    """A row for each number of positions and contestant."""
    table = []
    for length in lengths:
        for name in contestants:
            at = f"{length}_positions/{name}"
            if f"{at}/ms" in metrics:
                row = {"positions": str(length), "attention": name, "ratio": f"{metrics[f'{at}/ratio']:.2f}"}
                row["10-90 % of the ratio"] = f"{metrics[f'{at}/ratio_low']:.2f} - {metrics[f'{at}/ratio_high']:.2f}"
                table.append(row | {"ms": f"{metrics[f'{at}/ms']:.0f}", "MB": f"{metrics[f'{at}/peak_mb']:.0f}"})
    return table


def figure(metrics: Mapping[str, float], lengths: Sequence[int], contestants: Sequence[str]) -> Figure:
    """Time and peak memory against positions on logarithmic axes, with lines of slope one and two."""
    picture = Figure(figsize=(9, 3.9), layout="constrained")
    time, memory = picture.subplots(1, 2)
    for axis, quantity in ((time, "ms"), (memory, "peak_mb")):
        lowest = []
        for name in contestants:
            values = {n: metrics.get(f"{n}_positions/{name}/{quantity}") for n in sorted(lengths)}
            # memory below what can be measured has no place on a logarithmic axis
            points = [(n, value) for n, value in values.items() if value is not None and value > 0]
            colour, marker = STYLE[name]
            axis.plot(*zip(*points, strict=True), color=colour, marker=marker, markersize=5, label=name)
            lowest += [value for n, value in points if n == max(lengths)]
        _guides(axis, lengths, min(lowest, default=1.0))
        axis.set(xscale="log", yscale="log", xlabel="positions")
        axis.set_xticks(sorted(lengths), [str(n) for n in sorted(lengths)])
        axis.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
        axis.grid(which="major", color="0.92")
        axis.spines[["top", "right"]].set_visible(False)
    time.set(ylabel="ms", title="Forward and backward")
    memory.set(ylabel="MB", title="Peak memory")
    time.legend(frameon=False, fontsize=8)
    return picture


def _guides(axis: Axes, lengths: Sequence[int], lowest: float) -> None:
    """Dashed lines of slope one and two that meet below the curves at the longest length."""
    ends = min(lengths), max(lengths)
    for slope, dashes in ((1, "--"), (2, ":")):
        values = [0.6 * lowest * (n / ends[1]) ** slope for n in ends]
        axis.plot(ends, values, color="0.3", linestyle=dashes, linewidth=1, label=f"slope {slope}")


def section(
    rows: Sequence[Mapping[str, str]], command: str, *, rounds: int, layer: str, machine: str, picture: Path
) -> str:
    """Markdown of the section."""
    return f"""## Blocked attention

`{command}`, on {machine}.

Forward and backward of Weibull attention with a contextual Gamma prior, its KL included, {layer}, learned
concentration: the library's dense and blocked paths, and "naive dense" as a user would write it. Beside them torch's
softmax attention of the same shapes, without anything Bayesian. Medians of {rounds} interleaved rounds, ratios to
torch's softmax attention in the same round; memory at the peak beyond that before, each in a fresh process.

{markdown_table(rows)}

![Time and peak memory against the number of positions]({picture.as_posix()})
"""
