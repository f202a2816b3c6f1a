"""Normalisers of attention, deterministic and Bayesian: pretraining, then fine-tuning."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from experiments.pretrain.config import PretrainConfig
from experiments.pretrain.model import key_masses
from experiments.pretrain.train import PretrainTask
from experiments.report.figures import Panel, level_curves, panels, save
from experiments.report.report import Part
from experiments.report.statistics import Column
from experiments.run import load_trained
from experiments.sequence.encoder import HYBRID
from experiments.study import Finished, Study, run_study
from guides.rows import NORMALIZERS, UNDER_ITS_GUIDE

TASK = PretrainTask()
Epochs = Sequence[Sequence[Mapping[str, float]]]  # epoch by epoch, the metrics of all seeds
_LEAST = 1e-10  # smaller masses are drawn here


def pictures(finished: Finished) -> Iterator[Part]:
    """Curves of all runs, and the attention of those of the first seed."""
    configs = {row: [finished.configs[row, "", seed] for seed in finished.seeds] for row in finished.rows}
    epochs = {row: list(zip(*map(_history, runs), strict=True)) for row, runs in configs.items()}
    masses = {row: key_masses(load_trained(TASK, runs[0])) for row, runs in configs.items()}
    drawn = [
        ("loss", loss_curves(epochs), "validation loss by epoch, mean over seeds"),
        ("mass", mass_histogram(masses), "attention that keys get in all heads, first seed"),
    ]
    if hybrid := {row: found for row, found in epochs.items() if row.startswith("hybrid")}:
        figure = hybrid_curves(hybrid, start=configs[next(iter(hybrid))][0].hybrid_share)
        drawn.append(("hybrid", figure, "hybrid weights by epoch, mean over heads and seeds"))
    for name, figure, caption in drawn:
        yield Part(picture=save(figure, finished.pictures / f"{finished.name}_{name}.png"), caption=caption)


def _history(config: PretrainConfig) -> list[dict[str, float]]:
    with Path(str(config.out), "history.csv").open(newline="") as file:
        return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]


def loss_curves(runs: Mapping[str, Epochs]) -> Figure:
    """Loss on the validation sentences epoch by epoch; a panel a guide."""
    shown: dict[str, dict[str, list[list[float]]]] = {}
    for name, epochs in runs.items():
        normalizer, _, guide = name.partition(", ")
        shown.setdefault(guide, {})[normalizer] = [[seed["val_loss"] for seed in seeds] for seeds in epochs]
    found = [Panel(f"nats per hidden word piece, {guide}", rows) for guide, rows in shown.items()]
    return level_curves(found, [str(epoch) for epoch in range(1, 1 + len(epochs))], axis="epoch")


def hybrid_curves(runs: Mapping[str, Epochs], *, start: float) -> Figure:
    """Share of doubly normalised attention by layer, from the one that training began with; a panel a run.

    Source: Ding et al. (2020), Attention that does not Explain Away, figures 3 to 5.
    """
    shown = []
    for name, epochs in runs.items():
        layers: dict[str, list[list[float]]] = {}
        for layer in dict.fromkeys(column.split("_")[1] for column in epochs[0][0] if column.startswith("hybrid_")):
            heads = [column for column in epochs[0][0] if column.startswith(f"hybrid_{layer}_")]
            layers[layer] = [[start], *([seed[head] for seed in seeds for head in heads] for seeds in epochs)]
        shown.append(Panel(f"share of doubly normalised attention, {name}", layers))
    return level_curves(shown, [str(epoch) for epoch in range(1 + len(epochs))], axis="epoch")


def mass_histogram(runs: Mapping[str, Mapping[str, Tensor]]) -> Figure:
    """Histogram of the logarithm of the attention that a key gets from all queries; a panel a layer.

    Source: Ding et al. (2020), Attention that does not Explain Away, figure 1.
    """
    sites = list(next(iter(runs.values())))
    figure, (axes,) = panels(1, len(sites), size=(4.0 * len(sites), 3.4), sharex=True, sharey=True)
    logs = {
        (name, site): run[site].flatten().clamp(min=_LEAST).log10().numpy()
        for name, run in runs.items()
        for site in sites
    }
    edges = np.histogram_bin_edges(np.concatenate(list(logs.values())), 60)
    for axis, site in zip(axes, sites, strict=True):
        for name in runs:
            share = np.full(len(logs[name, site]), 100 / len(logs[name, site]))
            axis.hist(logs[name, site], edges, weights=share, histtype="step", label=name)
        axis.set(yscale="log", title=site, xlabel="log10 of a key's mass")
    axes[0].set_ylabel("% of keys and heads")
    axes[0].legend(frameon=False, fontsize=8)
    return figure


PRETRAINING = Study(
    name="pretraining-english",
    title="Pretraining with normalisers of attention: english",
    about="text: masked language model",
    text=(
        "Masked language model: {config.layers} layers of {config.heads} heads, width {config.width}, "
        "{config.masked:.0%} of the word pieces hidden, at most {config.sentences} sentences, {config.max_epochs} "
        "epochs. Perplexity and accuracy are those of hidden pieces of the test sentences. Weibull: concentration "
        "{config.concentration:g}, {config.prior} prior, KL weight {config.kl_weight:g}, test scores over "
        "{config.num_samples} posterior samples. SST-2: fine-tuned on at most 10000 sentences and phrases for "
        "{config.finetune_epochs} epochs; half of GLUE's development part validates and the other half (436 sentences) "
        "tests: these are no GLUE scores. Not pretrained: the same from fresh weights. A key's mass is the sum of the "
        "weights that all queries give to it, at the mean of the attention; it is explained away below 1e-8. Losses "
        "still fall at the end, so these are speeds of learning as much as qualities."
    ),
    task=TASK,
    options={"dataset": "english", "sentences": 20_000, "max_epochs": 6, "finetune_epochs": 3},
    rows=NORMALIZERS,
    row="attention",
    against=UNDER_ITS_GUIDE,
    columns=(
        Column("perplexity", "test_ppl", 2, better="lower"),
        Column("hidden pieces %", "test_accuracy", 2, 100, better="higher"),
        Column("SST-2 %", "sst2_accuracy", 2, 100, better="higher"),
    ),
    more=(
        Column("SST-2 %, not pretrained", "scratch_accuracy", 2, 100),
        Column("explained away %", "explained_away", 3, 100),
        Column("mass, 1st percentile", "key_mass_1_percent"),
    ),
    blocks=(HYBRID,),
    parts=lambda finished: list(pictures(finished)),
)
STUDIES = {study.name: study for study in (PRETRAINING,)}

table = partial(run_study, STUDIES)
