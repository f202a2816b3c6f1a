"""Means with their intervals, drawn as a row each, as SVG inside a page: it follows the page's colours."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape

from matplotlib.ticker import MaxNLocator

from experiments.report.columns import Column, Runs, columns_of
from experiments.report.statistics import Difference, Estimate, paired_difference

__all__ = ["Plot", "column_plots"]

_NAMES, _AXIS, _NUMBERS, _ROW, _TOP = 190, 250, 180, 22, 6  # widths and heights in pixels


@dataclass(frozen=True)
class Plot:
    """A mean and its 95 % confidence interval in each row.

    Attributes:
        title: What the numbers are.
        rows: Names to means and intervals; of one seed the interval is NaN, and the mean is drawn alone.
        signed: Whether the numbers are differences, which are written with a sign beside a line at 0.
    """

    title: str
    rows: Mapping[str, Difference]
    signed: bool = False

    def svg(self) -> str:
        """The picture, an element of HTML; the numbers stand beside the rows."""
        ticks, place = self._axis()
        height = _TOP + _ROW * len(self.rows) + 22
        bottom = height - 22
        parts = [f'<line class="axis" x1="{place(t):.1f}" x2="{place(t):.1f}" y1="0" y2="{bottom}"/>' for t in ticks]
        for tick in ticks:
            label = f'<text class="quiet" x="{place(tick):.1f}" y="{height - 6}" text-anchor="middle">{tick:g}</text>'
            parts.append(label)
        for number, (name, found) in enumerate(self.rows.items()):
            middle = _TOP + _ROW * (number + 0.5)
            parts.append(f'<text x="{_NAMES - 14}" y="{middle + 4}" text-anchor="end">{escape(name)}</text>')
            if not math.isnan(found.low):
                ends = f'x1="{place(found.low):.1f}" x2="{place(found.high):.1f}"'
                parts.append(f'<line class="interval" {ends} y1="{middle}" y2="{middle}"/>')
            parts.append(f'<circle class="mean" cx="{place(found.mean):.1f}" cy="{middle}" r="4.5"/>')
            numbers = escape(self._numbers(found))
            parts.append(f'<text class="quiet" x="{_NAMES + _AXIS + 14}" y="{middle + 4}">{numbers}</text>')
        label, width = escape(self.title), _NAMES + _AXIS + _NUMBERS
        size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        return f'<svg class="plot" role="img" aria-label="{label}" {size}>{"".join(parts)}</svg>'

    def _numbers(self, found: Difference) -> str:
        if self.signed:
            return str(found)
        return str(Estimate(found.mean, digits=found.digits, low=found.low, high=found.high))

    def _axis(self) -> tuple[Sequence[float], Callable[[float], float]]:
        """Ticks, and where a number lies."""
        ends = [x for one in self.rows.values() for x in (one.mean, one.low, one.high) if math.isfinite(x)]
        ticks = [float(tick) for tick in MaxNLocator(4).tick_values(*_range([*ends, 0.0] if self.signed else ends))]
        low, width = ticks[0], ticks[-1] - ticks[0]
        return ticks, lambda value: _NAMES + _AXIS * (value - low) / width


def _range(numbers: Sequence[float]) -> tuple[float, float]:
    low, high = min(numbers, default=0.0), max(numbers, default=1.0)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def column_plots(runs: Mapping[str, Runs], columns: Sequence[Column]) -> list[Plot]:
    """A plot of every column that says what is better, of the rows that have it: mean over seeds, 95 % interval."""
    plots = []
    for column in columns_of(runs, columns):
        if column.better is None:
            continue
        values = {name: numbers for name, found in runs.items() if (numbers := column.values(found))}
        rows = {
            name: replace(paired_difference(numbers, [0.0] * len(numbers)), digits=column.digits)
            for name, numbers in values.items()
        }
        plots.append(Plot(f"{column.name}, {column.better} is better", rows))
    return plots
