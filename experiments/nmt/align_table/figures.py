"""Pictures of the table of aligners: coverage curves, and how honest the probabilities of links are."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from experiments.nmt.align_table.certainty import CoverageCurve, Links
from experiments.reporting.figures import panels, reliability_panels

__all__ = ["coverage_figure", "reliability_figure"]


def coverage_figure(curves: Mapping[str, CoverageCurve]) -> Figure:
    """Error rate against the share of the target words that are kept, one line a row."""
    figure, axes = panels(1, 1, size=(6.2, 4.2))
    axis = axes[0, 0]
    for name, curve in curves.items():
        some = curve.coverage >= 0.1  # few words, and a jumpy line
        axis.plot(curve.coverage[some].numpy(), 100 * curve.aer[some].numpy(), label=name, linewidth=1.4)
    axis.set(xlabel="share of target words kept, most certain first", ylabel="alignment error rate, %", xlim=(0.1, 1))
    axis.set_ylim(bottom=0)
    axis.legend(fontsize=8, frameon=False)
    return figure


def reliability_figure(links: Mapping[str, Links]) -> Figure:
    """Share of gold links among written links against their probability, one panel a row."""
    found = {name: (one.mean.clamp(0, 1), one.right) for name, one in links.items()}
    return reliability_panels(
        found, confidence="probability of a link, mean of both directions", right="share of gold links"
    )
