"""Pictures of pretraining: loss, mixing weights of hybrid attention, and how much attention keys get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from experiments.report.figures import panels

__all__ = ["History", "hybrid_curves", "loss_curves", "mass_histogram"]

History = Sequence[Mapping[str, float]]

_COLOURS = {"softmax": "#d1495b", "doubly_normalized": "#1b6ca8", "hybrid": "#2f7d4f"}
_LEAST = 1e-10  # smaller masses are drawn here


def _look(name: str) -> dict[str, Any]:
    """Colour of the normaliser; dashed unless deterministic."""
    normalizer, _, guide = name.partition(", ")
    return {"color": _COLOURS.get(normalizer, "0.3"), "linestyle": "-" if guide == "soft" else "--"}


def _epochs(axis: Axes) -> None:
    axis.set_xlabel("epoch")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def loss_curves(runs: Mapping[str, Sequence[History]]) -> Figure:
    """Loss on the validation sentences epoch by epoch, mean over seeds and range; a panel a guide.

    Runs are named "normaliser, guide"; of a single one the loss in training is drawn too, dotted.
    """
    guides = list(dict.fromkeys(name.partition(", ")[2] for name in runs))
    figure, (axes,) = panels(1, len(guides), size=(1.6 + 3.8 * len(guides), 3.8), sharey=True)
    for guide, axis in zip(guides, axes, strict=True):
        _losses(axis, {name: histories for name, histories in runs.items() if name.partition(", ")[2] == guide})
    axes[0].set_ylabel("nats per hidden word piece")
    return figure


def _losses(axis: Axes, runs: Mapping[str, Sequence[History]]) -> None:
    for name, histories in runs.items():
        look = _look(name)
        losses = np.array([[row["val_loss"] for row in history] for history in histories])
        epochs = np.arange(1, losses.shape[1] + 1)
        axis.plot(epochs, losses.mean(0), label=name, marker="o", markersize=3, **look)
        axis.fill_between(epochs, losses.min(0), losses.max(0), color=look["color"], alpha=0.15, linewidth=0)
        if len(runs) == 1 and "loss" in histories[0][0]:
            trained = np.array([[row["loss"] for row in history] for history in histories]).mean(0)
            axis.plot(epochs, trained, color="0.5", linestyle=":", label="negative ELBO on training sentences")
    _epochs(axis)
    axis.legend(frameon=False, fontsize=8)


def hybrid_curves(runs: Mapping[str, Sequence[History]], *, start: float) -> Figure:
    """Share of doubly normalised attention by layer, from the one that training began with; a panel a run.

    Thick is the mean over heads and seeds, thin every head of every seed (``hybrid_SITE_HEAD`` of a history).

    Source: Ding et al. (2020), Attention that does not Explain Away, figures 3 to 5.
    """
    figure, (axes,) = panels(1, len(runs), size=(4.4 * len(runs), 3.4), sharey=True)
    for axis, (name, histories) in zip(axes, runs.items(), strict=True):
        columns = [column for column in histories[0][0] if column.startswith("hybrid_")]
        sites = list(dict.fromkeys(column.rpartition("_")[0] for column in columns))
        for number, site in enumerate(sites):
            shares = np.array(
                [[row[c] for row in history] for history in histories for c in columns if c.startswith(f"{site}_")]
            )
            shares = np.concatenate([np.full((len(shares), 1), start), shares], 1)
            epochs = np.arange(shares.shape[1])
            axis.plot(epochs, shares.T, color=f"C{number}", linewidth=0.6, alpha=0.5)
            look = {"color": f"C{number}", "linewidth": 2.2, "marker": "o"}
            axis.plot(epochs, shares.mean(0), label=site.removeprefix("hybrid_"), **look)
        axis.set_title(name, fontsize=10)
        _epochs(axis)
    axes[0].set_ylabel("share of doubly normalised attention")
    axes[0].legend(frameon=False, fontsize=8)
    return figure


def mass_histogram(runs: Mapping[str, Mapping[str, Tensor]]) -> Figure:
    """Histogram of the logarithm of the attention that a key gets from all queries; a panel a layer.

    Source: Ding et al. (2020), Attention that does not Explain Away, figure 1.
    """
    sites = list(next(iter(runs.values())))
    figure, (axes,) = panels(1, len(sites), size=(4.0 * len(sites), 3.4), sharex=True, sharey=True)
    masses = {
        (name, site): run[site].flatten().clamp(min=_LEAST).log10() for name, run in runs.items() for site in sites
    }
    everything = torch.cat(list(masses.values()))
    edges = np.linspace(everything.min().item() - 1e-3, everything.max().item() + 1e-3, 61)
    for axis, site in zip(axes, sites, strict=True):
        for name in runs:
            values = masses[name, site].numpy()
            share = np.full(len(values), 100 / len(values))
            axis.hist(values, edges, weights=share, histtype="step", linewidth=1.6, label=name, **_look(name))
        axis.set_yscale("log")
        axis.set_title(site, fontsize=10)
        axis.set_xlabel("log10 of a key's mass")
    axes[0].set_ylabel("% of keys and heads")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure
