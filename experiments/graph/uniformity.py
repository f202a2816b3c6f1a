"""How far learned graph attention is from uniform attention, and what it is worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from experiments.datasets.names import GraphName
from experiments.files import user_errors
from experiments.graph import train as graph
from experiments.graph.config import UniformityConfig
from experiments.graph.evaluation import relative_entropies
from experiments.graph.rows import LEGEND, ROWS, SEARCHED
from experiments.harness.cli import command_line, expected_one_of
from experiments.harness.folder import exclusive, open_run
from experiments.harness.parallel import run_all
from experiments.harness.results import write_metrics
from experiments.reporting.figures import save
from experiments.reporting.page import RESULTS, hardware, update_section
from experiments.reporting.statistics import paired_difference, summarise
from experiments.reporting.tables import as_table, markdown_table
from pyro_attention import predict, sample_posterior

__all__ = ["UniformityConfig", "run"]

_LAYERS = ("hidden layer", "output layer")


@dataclass(frozen=True)
class _Measured:
    """Of one network: relative entropies of each layer ``[nodes * heads]``, test accuracy under uniform attention."""

    entropies: list[Tensor]
    uniform_accuracy: float


@exclusive
def run(config: UniformityConfig) -> dict[str, float]:
    """Train what is not trained yet, measure, and write a section of RESULTS.md with a picture.

    Returns:
        ``"<data set>/<row>/<metric>"`` to its mean over seeds.

    Raises:
        UserError: Data, options or folder are not right.
        KeyboardInterrupt: Stopped by Ctrl-C; ``resume`` continues.
    """
    page, folder = config.results or RESULTS, config.out or Path("runs", "studies", "uniformity")
    with user_errors(ValueError, OSError):
        unknown = next((row for row in config.rows if row not in ROWS), "")
        if unknown or not config.rows or not config.datasets:
            raise ValueError(f"rows '{unknown}': {expected_one_of(ROWS, unknown)}, and a data set")
        open_run(folder, config, free=("datasets", "rows", "seeds", "max_epochs"))
    configs: dict[tuple[str, str, int], graph.GraphConfig] = {
        (dataset, row, seed): _run_config(config, folder, dataset, row, seed)
        for seed in range(config.seeds)
        for dataset in config.datasets
        for row in config.rows
    }
    metrics = run_all(graph.run, configs, workers=config.workers, progress=config.progress)
    measured = {key: _measure(found) for key, found in configs.items()}
    values = {
        key: {
            "accuracy %": 100 * metrics[key]["test_mean_accuracy"],
            "with uniform attention": 100 * one.uniform_accuracy,
        }
        | {f"entropy, {layer}": found.mean().item() for layer, found in zip(_LAYERS, one.entropies, strict=True)}
        for key, one in measured.items()
    }
    rows = [_row(config, values, dataset, row) for dataset in config.datasets for row in config.rows]
    picture = save(_figure(config, measured), page.parent / "pictures" / "uniformity.png")
    machine = hardware([found.out for found in configs.values() if found.out])
    update_section(page, "uniformity", _section(config, rows, machine, f"pictures/{picture.name}"))
    means = {
        f"{dataset}/{row}/{name}": summarise([values[dataset, row, seed][name] for seed in range(config.seeds)]).mean
        for dataset in config.datasets
        for row in config.rows
        for name in values[dataset, row, 0]
    }
    write_metrics(folder, means, dict.fromkeys(means, "mean over seeds"))
    print(f"\n{as_table(rows)}\n\n{page}\n{picture}")
    return means


def _run_config(config: UniformityConfig, folder: Path, dataset: GraphName, row: str, seed: int) -> graph.GraphConfig:
    options = ROWS[row] | SEARCHED.get(row, {}) | {"max_epochs": config.max_epochs, "patience": config.patience}
    out = folder / "runs" / f"{dataset}-{row.replace(' ', '-')}-{seed}"
    return graph.GraphConfig(**config.for_runs(), **options, dataset=dataset, seed=seed, out=out)


def _measure(config: graph.GraphConfig) -> _Measured:
    trained = graph.load_trained(config)
    weights = sample_posterior(trained.guide, *trained.inputs, num_samples=1, noise="none")
    entropies = [layer.flatten().cpu() for layer in relative_entropies(weights, trained.graph)]
    with torch.no_grad():
        for name, parameter in trained.module.named_parameters():
            if ".score." in name:  # equal scores
                parameter.zero_()
    prediction = predict(trained.guide, *trained.inputs, num_samples=1, noise="none")
    correct = prediction.mean.argmax(-1) == trained.data.labels
    return _Measured(entropies, correct[trained.data.test_mask].float().mean().item())


def _row(
    config: UniformityConfig, values: Mapping[tuple[str, str, int], Mapping[str, float]], dataset: str, row: str
) -> dict[str, str]:
    seeds = [values[dataset, row, seed] for seed in range(config.seeds)]
    cells = {"graph": dataset, "attention": row}
    for name in seeds[0]:
        summary, digits = summarise([found[name] for found in seeds]), 4 if "entropy" in name else 2
        cells[name] = f"{summary.mean:.{digits}f}" + (f" ± {summary.spread:.{digits}f}" if config.seeds > 1 else "")
    difference = paired_difference(
        *([found[name] for found in seeds] for name in ("with uniform attention", "accuracy %"))
    )
    interval = f" [{difference.low:+.2f}, {difference.high:+.2f}]" if config.seeds > 1 else ""
    return cells | {"uniform minus learned": f"{difference.mean:+.2f}{interval}"}


def _section(config: UniformityConfig, rows: list[dict[str, str]], machine: str, picture: str) -> str:
    return f"""## How far learned attention is from uniform

`{command_line("experiments.uniformity", config)}`; seeds 0 to {config.seeds - 1}; {machine}.

Entropy of the posterior mean attention of a node, divided by that of uniform attention over its neighbours and itself \
(1 = uniform); mean over nodes with neighbours and heads. The accuracy on the test nodes is taken with the learned \
attention and again, in the same networks, with uniform attention in its place. {LEGEND} Mean ± standard deviation \
over seeds, and the paired difference with its 95 % confidence interval.

{markdown_table(rows)}

![distance from uniform attention]({picture})"""


def _figure(config: UniformityConfig, measured: Mapping[tuple[str, str, int], _Measured]) -> Figure:
    """Distribution of the distance from uniform attention over nodes, heads and seeds; a panel a graph and layer."""
    figure = Figure(figsize=(3.4 * len(config.datasets), 5.2), layout="constrained")
    axes = figure.subplots(2, len(config.datasets), squeeze=False, sharey=True)
    for column, dataset in enumerate(config.datasets):
        for axis, layer in zip(axes[:, column], range(2), strict=True):
            for row in config.rows:
                found = [measured[dataset, row, seed].entropies[layer] for seed in range(config.seeds)]
                # entropies in 32 bits tell no smaller distance from 1
                values = (1 - torch.cat(found)).clamp(min=1e-7).sort().values.numpy()
                axis.semilogx(values, (torch.arange(len(values)) / len(values)).numpy(), label=row, linewidth=1.5)
            axis.set_title(f"{dataset}, {_LAYERS[layer]}", fontsize=10)
            axis.spines[["top", "right"]].set_visible(False)
            axis.set_xlim(1e-7, 1.0)
    axes[0, 0].legend(frameon=False)
    figure.supxlabel(
        "1 - entropy of attention / entropy of uniform attention (0 = uniform, 1 = a single neighbour)", fontsize=10
    )
    figure.supylabel("share of nodes and heads below", fontsize=10)
    return figure
