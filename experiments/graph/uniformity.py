"""How far learned graph attention is from uniform attention, and what it is worth."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from matplotlib.figure import Figure
from torch import Tensor

from experiments.files import UserError
from experiments.graph import train as graph
from experiments.graph.attention import relative_entropies, uniform_logits
from experiments.graph.config import EpochOptions, UniformityConfig
from experiments.graph.model import TrainedGraph
from experiments.graph.rows import LEGEND, SUMMED_KL, settings
from experiments.harness.folder import exclusive
from experiments.harness.options import options_of
from experiments.harness.sweep import Key, Sweep, Trainings
from experiments.reporting.columns import Column
from experiments.reporting.figures import panels, save
from experiments.reporting.page import RESULTS
from experiments.reporting.report import Part, Report
from experiments.reporting.statistics import paired_difference
from pyro_attention import sample_posterior

__all__ = ["UniformityConfig", "run"]

_LAYERS = ("hidden layer", "output layer")
_LEARNED, _UNIFORM = (Column(name, name, 2) for name in ("accuracy %", "with uniform attention"))
_COLUMNS = (_LEARNED, _UNIFORM, *(Column(f"entropy, {layer}", f"entropy, {layer}", 4) for layer in _LAYERS))
_TEXT = (
    "Entropy of the posterior mean attention of a node, divided by that of uniform attention over its neighbours and "
    "itself (1 = uniform); mean over nodes with neighbours and heads. The accuracy on the test nodes is taken with the "
    "learned attention and again, in the same networks, with uniform attention in its place. "
    f"{LEGEND} Mean ± standard deviation over seeds, and the paired difference with its 95 % confidence interval."
)


@exclusive
def run(config: UniformityConfig) -> dict[str, float]:
    """Train what is missing, measure, write the section: ``"<data set>/<row>/<metric>"`` to its mean over seeds."""
    chosen, shared = settings(config.rows), options_of(config, EpochOptions)
    if not config.datasets:
        raise UserError("datasets is empty, expected a data set at least")
    free = ("datasets", "rows", "seeds", "max_epochs")
    sweep = Sweep("experiments.uniformity", config, "studies/uniformity", RESULTS, free=free).open()
    rows = {
        (dataset, row): SUMMED_KL | options | shared | {"dataset": dataset}
        for dataset in config.datasets
        for row, options in chosen.items()
    }
    trained = sweep.train(graph.run, sweep.configs(graph.GraphConfig, rows, range(config.seeds)))
    measured, entropies = _measure(trained)
    picture = save(_figure(config, entropies), sweep.pictures / "uniformity.png")
    table = [
        {"graph": dataset, "attention": row}
        | {column.name: column.cell(runs) for column in _COLUMNS}
        | {"uniform minus learned": paired_difference(_UNIFORM.values(runs), _LEARNED.values(runs)).text()}
        for dataset, row in rows
        for runs in (measured.runs(dataset, row),)
    ]
    parts = [Part(text=_TEXT, rows=table), Part(picture=picture, caption="distance from uniform attention")]
    report = Report("How far learned attention is from uniform", "uniformity", parts)
    return sweep.finish(report, measured)


def _measure(trained: Trainings[graph.GraphConfig]) -> tuple[Trainings[graph.GraphConfig], dict[Key, list[Tensor]]]:
    """What is reported of each network, and its relative entropies, ``[nodes * heads]`` a layer."""
    metrics, entropies = {}, {}
    for key, config in trained.configs.items():
        network = graph.load_trained(config)
        weights = sample_posterior(network.guide, *network.inputs, num_samples=1, noise="none")
        entropies[key] = [layer.flatten().cpu() for layer in relative_entropies(weights, network.graph)]
        learned = trained.metrics[key]["test_mean_accuracy"]
        metrics[key] = {_LEARNED.metric: 100 * learned, _UNIFORM.metric: 100 * _uniform_accuracy(network)}
        for layer, found in zip(_LAYERS, entropies[key], strict=True):
            metrics[key][f"entropy, {layer}"] = found.mean().item()
    return Trainings(trained.configs, metrics), entropies


def _uniform_accuracy(trained: TrainedGraph) -> float:
    """Accuracy on the test nodes with uniform attention."""
    correct = uniform_logits(trained).argmax(-1) == trained.data.labels
    return correct[trained.data.test_mask].float().mean().item()


def _figure(config: UniformityConfig, entropies: Mapping[Key, list[Tensor]]) -> Figure:
    """Distribution of the distance from uniform attention over nodes, heads and seeds; a panel a graph and layer."""
    figure, axes = panels(2, len(config.datasets), size=(3.4 * len(config.datasets), 5.2), sharey=True)
    for column, dataset in enumerate(config.datasets):
        for axis, layer in zip(axes[:, column], range(2), strict=True):
            for row in config.rows:
                found = [entropies[dataset, row, seed][layer] for seed in range(config.seeds)]
                # entropies in 32 bits tell no smaller distance from 1
                values = (1 - torch.cat(found)).clamp(min=1e-7).sort().values.numpy()
                axis.semilogx(values, (torch.arange(len(values)) / len(values)).numpy(), label=row, linewidth=1.5)
            axis.set_title(f"{dataset}, {_LAYERS[layer]}", fontsize=10)
            axis.set_xlim(1e-7, 1.0)
    axes[0, 0].legend(frameon=False)
    figure.supxlabel(
        "1 - entropy of attention / entropy of uniform attention (0 = uniform, 1 = a single neighbour)", fontsize=10
    )
    figure.supylabel("share of nodes and heads below", fontsize=10)
    return figure
