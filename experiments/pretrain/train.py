"""Pretraining: a small Transformer encoder as a masked language model, and its pictures."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from experiments.datasets.text.batches import batch_loader
from experiments.datasets.text.glue import load_sst2
from experiments.datasets.text.masked_text import EpochSampler, MaskedText, encode_sentences, load_english
from experiments.datasets.text.vocabulary import Vocabulary
from experiments.files import user_errors
from experiments.harness.training import Fitted, fit_batches
from experiments.pretrain.config import FinetuneConfig, PretrainConfig
from experiments.pretrain.finetune import SST2Task
from experiments.pretrain.model import TrainedEncoder, build, definitions, evaluate, key_masses, load_vocabulary
from experiments.report.figures import Panel, level_curves, panels, save
from experiments.report.tables import metrics_table
from experiments.run import Task, load_trained, run, run_and_show

Sentences = Mapping[str, Sequence[str]]  # by split
History = Sequence[Mapping[str, float]]  # by epoch
_LEAST = 1e-10  # smaller masses are drawn here


class PretrainTask(Task[PretrainConfig, Sentences, TrainedEncoder]):
    """Hidden word pieces of sentences."""

    config = PretrainConfig
    script = "experiments.pretrain"

    def folder(self, config: PretrainConfig) -> str:
        return f"pretrain/{config.dataset}-{config.normalizer}-{config.guide}-{config.seed}"

    def planned(self, config: PretrainConfig) -> bool:  # noqa: ARG002
        return True

    def load(self, config: PretrainConfig) -> Sentences:
        if config.finetune_epochs:
            load_sst2(data_root=config.data_root)
        return load_english(config.dataset, limit=config.sentences, data_root=config.data_root)

    def build(self, config: PretrainConfig, data: Sentences, folder: Path) -> TrainedEncoder:  # noqa: ARG002
        return build(config, load_vocabulary(config, folder))

    def restore(self, config: PretrainConfig, folder: Path) -> TrainedEncoder:
        return build(config, Vocabulary.load(folder / "vocabulary.json"))

    def fit(self, trained: TrainedEncoder, data: Sentences, folder: Path) -> Fitted:
        config, vocabulary = trained.config, trained.vocabulary
        loaders = []
        for split in ("train", "val"):
            with user_errors(ValueError):
                rows = encode_sentences(data[split], vocabulary, length=config.length)
            text = MaskedText(rows, vocabulary_size=len(vocabulary), share=config.masked, seed=config.seed)
            order = {"seed": config.seed} if split == "train" else {"shuffle": False}
            loaders.append(batch_loader(text, EpochSampler(rows, sentences=config.batch_size, **order)))
        return fit_batches(config, trained.module, *loaders, folder=folder, patience=config.max_epochs)

    def evaluate(
        self, trained: TrainedEncoder, data: Sentences, fitted: Fitted, folder: Path  # noqa: ARG002
    ) -> dict[str, float]:  # fmt: skip
        metrics, config = evaluate(trained, fitted), trained.config
        if config.finetune_epochs:
            for name, scratch in (("sst2", False), ("scratch", True)):
                # whatever is there may have begun with other weights
                how = config.for_runs() | {"resume": False, "overwrite": True}
                finetuning = FinetuneConfig(
                    **how, run=folder, scratch=scratch, seed=config.seed, max_epochs=config.finetune_epochs,
                    num_samples=config.num_samples, out=folder / name,
                )  # fmt: skip
                metrics[f"{name}_accuracy"] = run(SST2Task(), finetuning)["test_accuracy"]
        return metrics

    def definitions(self, metrics: Mapping[str, float]) -> Mapping[str, str]:
        return definitions(metrics)

    def show(self, config: PretrainConfig, metrics: Mapping[str, float], folder: Path) -> None:
        print(metrics_table(metrics))
        runs = {f"{config.normalizer}, {config.guide}": [replace(config, out=folder)]}
        for name, (figure, _) in figures(runs).items():
            print(save(figure, folder / "figures" / f"{name}.png"))
        print(f"\nfine-tune it: python -m experiments.pretrain sst2 {folder}")


train = partial(run_and_show, PretrainTask())


def figures(runs: Mapping[str, Sequence[PretrainConfig]]) -> dict[str, tuple[Figure, str]]:
    """Pictures of finished runs, with captions: rows "normaliser, guide", whose runs are those of the seeds."""
    histories = {row: [_history(Path(str(config.out))) for config in configs] for row, configs in runs.items()}
    masses = {row: key_masses(load_trained(PretrainTask(), configs[0])) for row, configs in runs.items()}
    found = {
        "loss": (loss_curves(histories), "validation loss by epoch, mean over seeds"),
        "mass": (mass_histogram(masses), "attention that keys get in all heads, first seed"),
    }
    if hybrid := {row: history for row, history in histories.items() if row.startswith("hybrid")}:
        share = runs[next(iter(hybrid))][0].hybrid_share
        found["hybrid"] = hybrid_curves(hybrid, start=share), "hybrid weights by epoch, mean over heads and seeds"
    return found


def _history(folder: Path) -> History:
    with (folder / "history.csv").open(newline="") as file:
        return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]


def loss_curves(runs: Mapping[str, Sequence[History]]) -> Figure:
    """Loss on the validation sentences epoch by epoch; a panel a guide."""
    shown: dict[str, dict[str, list[list[float]]]] = {}
    for name, histories in runs.items():
        normalizer, _, guide = name.partition(", ")
        losses = [[row["val_loss"] for row in rows] for rows in zip(*histories, strict=True)]
        shown.setdefault(guide, {})[normalizer] = losses
    epochs = [str(epoch) for epoch in range(1, 1 + len(losses))]
    return level_curves(
        [Panel(f"nats per hidden word piece, {guide}", rows) for guide, rows in shown.items()], epochs, axis="epoch"
    )


def hybrid_curves(runs: Mapping[str, Sequence[History]], *, start: float) -> Figure:
    """Share of doubly normalised attention by layer, from the one that training began with; a panel a run.

    Source: Ding et al. (2020), Attention that does not Explain Away, figures 3 to 5.
    """
    shown = []
    for name, histories in runs.items():
        columns = [column for column in histories[0][0] if column.startswith("hybrid_")]
        layers: dict[str, list[list[float]]] = {column.split("_")[1]: [[start]] for column in columns}
        for layer, shares in layers.items():
            heads = [column for column in columns if column.startswith(f"hybrid_{layer}_")]
            shares += [[row[head] for row in rows for head in heads] for rows in zip(*histories, strict=True)]
        shown.append(Panel(f"share of doubly normalised attention, {name}", layers))
    return level_curves(shown, [str(epoch) for epoch in range(1 + len(histories[0]))], axis="epoch")


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
