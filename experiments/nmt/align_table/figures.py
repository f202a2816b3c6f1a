"""Pictures of the table of aligners: coverage curves, and how honest the probabilities of links are."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import cycle, product
from textwrap import fill

from matplotlib.figure import Figure

from experiments.nmt.align_table.certainty import CoverageCurve, Links, calibration_error
from experiments.report.figures import panels, reliability_panels

__all__ = ["coverage_figure", "reliability_figure"]

_COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown", "tab:pink")
_WIDTH = 30  # letters in a line of a panel's title


def coverage_figure(
    curves: Mapping[str, CoverageCurve], *, baselines: Collection[str] = (), marked: Sequence[float] = ()
) -> Figure:
    """Error rate against the share of the target words that are kept, one line a row; baselines are grey.

    Args:
        curves: Curve of each row.
        baselines: Rows that are no networks.
        marked: Shares with a mark on every line.
    """
    figure, axes = panels(1, 1, size=(8.2, 4.4))
    axis = axes[0, 0]
    looks = cycle(product(("-", "--", ":"), _COLOURS))
    greys = cycle(product(("-", "--", "-.", ":"), ("0.3",)))
    for name, curve in curves.items():
        style, colour = next(greys) if name in baselines else next(looks)
        some = curve.coverage >= 0.1  # few words, and a jumpy line
        shares, rates = 100 * curve.coverage[some].numpy(), 100 * curve.aer[some].numpy()
        axis.plot(shares, rates, label=name, linewidth=1.4, color=colour, linestyle=style)
        for share in marked:
            axis.plot(100 * share, 100 * curve.aer_at(share), "o", markersize=4, color=colour)
    axis.set(xlabel="target words kept, most certain first, %", ylabel="alignment error rate, %", xlim=(10, 101))
    axis.set_ylim(bottom=0)
    figure.legend(fontsize=8, frameon=False, loc="outside right upper")
    return figure


def reliability_figure(links: Mapping[str, Links]) -> Figure:
    """Share of gold links among written links against their probability, one panel a row, with its ECE."""
    found = {}
    for name, one in links.items():
        error = f"\nECE {calibration_error(one.mean, one.right):.3f}" if len(one.right) else "\nno links"
        found[fill(name, _WIDTH) + error] = (one.mean.clamp(0, 1), one.right)
    return reliability_panels(
        found, confidence="probability of a link, mean of both directions", right="share of gold links"
    )
