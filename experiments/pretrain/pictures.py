"""Pictures of a pretraining: the mixing weight of hybrid attention, and the attention mass of keys."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from experiments.report.figures import panels

BINS = np.linspace(-20.0, 5.0, 101)  # edges of bins of the log of a key's mass; smaller masses are in the first bin
Counts = NDArray[np.int64]


def mass_counts(masses: Sequence[NDArray[np.float32]]) -> Counts:
    """Count the keys in each of ``BINS``, by the log of the sum of the weights that all queries give them.

    Example:
        >>> counts = mass_counts([np.array([0.0, 1.0, 1.0], np.float32)])
        >>> int(counts[0]), int(counts.sum())
        (1, 3)
    """
    with np.errstate(divide="ignore"):  # a key without any mass
        logs = np.log(np.concatenate([mass.ravel() for mass in masses]))
    return np.histogram(logs.clip(BINS[0], BINS[-1]), BINS)[0]


def mass_figure(counts: Mapping[str, Counts]) -> Figure:
    """Draw a histogram of the log mass of a key for each network; keys at the left edge are explained away.

    Source: Ding et al. (2020), Attention that does not Explain Away, figure 1.
    """
    figure, ((axis,),) = panels(1, 1, size=(6.4, 3.4))
    for name, of_bins in counts.items():
        axis.stairs(of_bins / of_bins.sum(), BINS, label=f"{name}: {of_bins.sum()} keys")
    axis.set(xlabel="natural log of the attention that a key gets from all queries", ylabel="share of keys")
    axis.set(title="How much attention keys get (at the left edge: none)", yscale="log")
    axis.legend(frameon=False, fontsize=8)
    return figure


def hybrid_shares(history: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Return the share of doubly normalized attention of every layer by epoch, mean over heads.

    Example:
        >>> hybrid_shares([{"hybrid_layers.0_0": 0.4, "hybrid_layers.0_1": 0.6, "val_loss": 1.0}])
        {'layers.0': [0.5]}
    """
    heads: dict[str, list[str]] = {}
    for name in history[0]:
        if head := re.fullmatch(r"hybrid_(.+)_\d+", name):
            heads.setdefault(head[1], []).append(name)
    return {
        layer: [float(np.mean([row[name] for name in names])) for row in history]
        for layer, names in sorted(heads.items())
    }


def hybrid_figure(shares: Mapping[str, Sequence[float]]) -> Figure:
    """Draw the share of doubly normalized attention against the epoch, with a line for each layer.

    Source: Ding et al. (2020), Attention that does not Explain Away, figures 3 to 5.
    """
    figure, ((axis,),) = panels(1, 1, size=(6.4, 3.4))
    for number, (layer, values) in enumerate(shares.items()):
        axis.plot(range(1, len(values) + 1), values, marker="o", markersize=3, color=f"C{number}", label=layer)
    axis.axhline(0.5, color="0.8", linewidth=1)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axis.set(title="Hybrid attention: softmax (0) or doubly normalized (1)?", ylim=(-0.02, 1.02))
    axis.set_xlim(0.5, max(map(len, shares.values())) + 0.5)
    axis.set(xlabel="epoch", ylabel="share of doubly normalized attention\n(mean over heads)")
    axis.legend(frameon=False, fontsize=8)
    return figure
