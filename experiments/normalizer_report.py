"""Parts of a report on normalizers: the attention mass of keys, and the mixing weight of hybrid attention."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from torch import Tensor

from experiments.data.storage import read_arrays
from experiments.files import write_atomic
from experiments.folder import read_history
from experiments.report.figures import panels, save
from experiments.report.report import Part
from experiments.report.statistics import Column
from experiments.study import Finished

EPSILON = 1e-8  # a key whose weights from all queries sum to less is explained away
RECEIVED = (
    Column("explained away %", "explained_away", 3, 100),
    Column("mass, 1st percentile", "key_mass_1_percent"),
)
_FILE = "key_mass.npz"

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


def save_masses(folder: Path, masses: Mapping[str, Tensor]) -> dict[str, float]:
    """Save how many keys of a run have which mass, and return the metrics of these masses.

    Args:
        folder: Folder of the run.
        masses: By attention site the sums of the weights that all queries give to a key, in any shape.
    """
    counts: dict[str, Any] = {site: mass_counts([mass.numpy()]) for site, mass in masses.items()}
    write_atomic(folder / _FILE, lambda file: np.savez_compressed(file, **counts))
    mass = torch.cat([mass.flatten() for mass in masses.values()])
    rank = max(1, round(0.01 * mass.numel()))  # torch.quantile takes no more than 16 million numbers
    return {
        "explained_away": (mass < EPSILON).double().mean().item(),
        "key_mass_1_percent": mass.kthvalue(rank).values.item(),
    }


def key_counts(folder: Path) -> Any:
    """Return the number of keys of all sites of a finished run, by the bins of their mass."""
    return sum(read_arrays(folder / _FILE, "train again with --overwrite").values())


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


def show_normalizer(normalizer: str, folder: Path) -> None:
    """Draw what keys receive and, of hybrid attention, its shares, among the figures of a run; print where."""
    print(save(mass_figure({normalizer: key_counts(folder)}), folder / "figures" / "key_mass.png"))
    if normalizer == "hybrid":
        print(save(hybrid_figure(hybrid_shares(read_history(folder))), folder / "figures" / "hybrid.png"))


def pictures(finished: Finished) -> Iterator[Part]:
    """Draw the attention mass of keys and the mixing weight of hybrid attention, for the first seed.

    Rows that have no such attention, such as views that are read side by side, are left out.
    """
    seed = finished.seeds[0]
    folders = {row: Path(str(finished.configs[row, "", seed].out)) for row in finished.rows}
    folders = {row: folder for row, folder in folders.items() if (folder / _FILE).is_file()}
    if not folders:  # no row has attention between queries and keys
        return
    figure = mass_figure({row: key_counts(folder) for row, folder in folders.items()})
    mass = save(figure, finished.pictures / f"{finished.name}-mass.png")
    yield Part("What keys receive", "Of the first seed; as in figure 1 of the paper.", picture=mass)
    for row, folder in folders.items():
        if shares := hybrid_shares(read_history(folder)):
            path = finished.pictures / f"{finished.name}-{row.replace(', ', '-')}.png"
            text = "Share of doubly normalized attention by layer and epoch, of the first seed; as figures 3 to 5."
            yield Part(f"Hybrid attention: {row}", text, picture=save(hybrid_figure(shares), path))
