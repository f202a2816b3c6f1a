"""Normalisers of attention, deterministic and Bayesian: pretraining, then fine-tuning, as a section of RESULTS.md."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.files import UserError, user_errors
from experiments.harness.cli import command_line
from experiments.harness.folder import exclusive, open_run
from experiments.harness.options import options_of
from experiments.harness.parallel import run_all
from experiments.harness.results import write_metrics
from experiments.pretrain import finetune
from experiments.pretrain import train as pretrain
from experiments.pretrain.config import NetworkOptions, NormalizerName, PretrainConfig, PretrainTableConfig
from experiments.pretrain.evaluation import key_masses
from experiments.pretrain.figures import History, hybrid_curves, loss_curves, mass_histogram, scores_figure
from experiments.pretrain.model import load_trained
from experiments.pretrain.rows import COLUMNS, Key, Runs, hybrid_rows, score_rows
from experiments.reporting.figures import save
from experiments.reporting.page import RESULTS, hardware, update_section
from experiments.reporting.statistics import summarise
from experiments.reporting.tables import as_table, markdown_table
from guides.names import WeightsSchemeName

__all__ = ["PretrainTableConfig", "run"]


@exclusive
def run(config: PretrainTableConfig) -> dict[str, float]:
    """Train what is not trained yet, print the table, and write a section of RESULTS.md with pictures.

    Returns:
        ``"<normaliser>, <guide>/<metric>"`` to its mean over seeds.

    Raises:
        UserError: Data, options or folder are not right.
        KeyboardInterrupt: Stopped by Ctrl-C; ``resume`` continues.
    """
    page, folder = config.results or RESULTS, config.out or Path("runs", "studies", f"pretraining-{config.dataset}")
    with user_errors(ValueError, OSError):
        if not config.normalizers or not config.guides:
            raise ValueError("normalizers or guides is empty, expected one at least of each")
        open_run(folder, config, free=("normalizers", "guides", "seeds", "workers", "results"))
    configs = {
        (f"{normalizer}, {guide}", seed): _pretrain_config(config, folder, normalizer, guide, seed)
        for seed in range(config.seeds)
        for normalizer in config.normalizers
        for guide in config.guides
    }
    metrics = _train(config, folder, configs)
    names = list(dict.fromkeys(row for row, _ in configs))
    rows = score_rows(metrics)
    pictures = _pictures(config, configs, metrics, page.parent / "pictures")
    update_section(page, f"pretraining-{config.dataset}", _section(config, configs, metrics, rows, pictures))
    means = {
        f"{name}/{metric}": summarise([metrics[name, seed][metric] for seed in range(config.seeds)]).mean
        for name in names
        for metric in metrics[name, 0]
    }
    write_metrics(folder, means, dict.fromkeys(means, "mean over seeds"))
    print("", as_table(rows), "", page, *pictures.values(), sep="\n")
    return means


def _pretrain_config(
    config: PretrainTableConfig, folder: Path, normalizer: NormalizerName, guide: WeightsSchemeName, seed: int
) -> PretrainConfig:
    shared = options_of(config, NetworkOptions)
    out = folder / "runs" / f"{normalizer}-{guide}-{seed}"
    return PretrainConfig(**config.for_runs(), **shared, normalizer=normalizer, guide=guide, seed=seed, out=out)


def _finetune_config(config: PretrainTableConfig, start: PretrainConfig, *, scratch: bool) -> finetune.FinetuneConfig:
    init_from = Path(str(start.out))
    return finetune.FinetuneConfig(
        **config.for_runs(), dataset="sst2", init_from=init_from, scratch=scratch, train=config.train, seed=start.seed,
        max_epochs=config.finetune_epochs, num_samples=config.num_samples,
        out=init_from.with_name(f"{init_from.name}-sst2{'-scratch' * scratch}"),
    )  # fmt: skip


def _train(
    config: PretrainTableConfig, folder: Path, configs: Mapping[Key, PretrainConfig]
) -> dict[Key, dict[str, float]]:
    """Metrics of pretraining, with the accuracies on SST-2 added."""
    how: dict[str, Any] = {"workers": config.workers, "progress": config.progress}
    print(f"Pretraining, in {folder}:", flush=True)
    pretrained = run_all(pretrain.run, configs, **how)
    tasks = {
        (name, key): _finetune_config(config, start, scratch=name == "scratch_accuracy")
        for name in ("sst2_accuracy", "scratch_accuracy")
        for key, start in configs.items()
    }
    print("Fine-tuning:", flush=True)
    finetuned = run_all(finetune.run, tasks, **how)
    return {
        key: {**found, **{name: one["test_accuracy"] for (name, other), one in finetuned.items() if other == key}}
        for key, found in pretrained.items()
    }


def _pictures(
    config: PretrainTableConfig, configs: Mapping[Key, PretrainConfig], metrics: Runs, folder: Path
) -> dict[str, Path]:
    names, seeds = list(dict.fromkeys(row for row, _ in configs)), range(config.seeds)
    stem = f"pretraining_{config.dataset}"
    histories = {name: [_history(Path(str(configs[name, seed].out))) for seed in seeds] for name in names}
    trained = {name: load_trained(Path(str(configs[name, 0].out)), device=config.device) for name in names}
    scores = {
        title: {name: COLUMNS[title].values(metrics, name) for name in names} for title in ("perplexity", "SST-2 %")
    }
    control = {"SST-2 %": {name: COLUMNS["SST-2 %, not pretrained"].values(metrics, name) for name in names}}
    paths = {
        "perplexity and accuracy: every seed and the mean; hollow without pretraining": save(
            scores_figure(scores, control), folder / f"{stem}.png"
        ),
        "validation loss by epoch: mean and range of the seeds": save(
            loss_curves(histories), folder / f"{stem}_loss.png"
        ),
        "attention that keys get in all heads, first seed": save(
            mass_histogram({name: key_masses(one) for name, one in trained.items()}), folder / f"{stem}_mass.png"
        ),
    }
    if "hybrid" in config.normalizers:
        found = {name: history for name, history in histories.items() if name.startswith("hybrid")}
        what = "hybrid weights by epoch: thick the mean over heads and seeds, thin each head of each seed"
        start = next(iter(configs.values())).hybrid_share
        paths[what] = save(hybrid_curves(found, start=start), folder / f"{stem}_hybrid.png")
    return paths


def _history(folder: Path) -> History:
    path = folder / "history.csv"
    try:
        with path.open() as file:
            return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]
    except (OSError, ValueError, TypeError, csv.Error) as error:  # TypeError: a row of too many cells
        raise UserError(f"{path} cannot be read ({error}); remove {folder} to train it again") from error


def _section(
    config: PretrainTableConfig,
    configs: Mapping[Key, PretrainConfig],
    metrics: Runs,
    rows: Sequence[Mapping[str, str]],
    pictures: Mapping[str, Path],
) -> str:
    one, hybrid = next(iter(configs.values())), hybrid_rows(metrics)
    comparisons = sum(column.compared for column in COLUMNS.values()) * (len(rows) - 1)
    parts = [
        f"## Pretraining with normalisers of attention: {config.dataset}",
        f"`{command_line('experiments.pretrain_table', config, always=('dataset',))}`; seeds 0 to {config.seeds - 1}; "
        f"{hardware([found.out for found in configs.values() if found.out])}.",
        f"Masked language model: {one.layers} layers of {one.heads} heads, width {one.width}, {one.masked:.0%} of the "
        f"word pieces hidden, at most {one.sentences} sentences, {one.max_epochs} epochs. Perplexity and accuracy are "
        f"those of hidden pieces of the test sentences. Weibull: concentration {one.concentration:g}, {one.prior} "
        f"prior, KL weight {one.kl_weight:g}, test scores over {one.num_samples} posterior samples. SST-2: fine-tuned "
        f"on at most {config.train} sentences and phrases for {config.finetune_epochs} epochs; GLUE hides the labels "
        f"of its test part, so half of its development part validates and the other half (436 sentences, where one "
        f"standard error of an accuracy of 80 % is 1.9 points) tests: these are no GLUE scores. Not pretrained: the "
        f"same from fresh weights. A key's mass is the sum of the weights that all queries give to it, at the mean of "
        f"the attention; it is explained away below {one.epsilon:g}.",
        f"Mean ± standard deviation over seeds, and differences seed by seed with their 95 % confidence intervals "
        f"(Student's t), not corrected for the number of comparisons, {comparisons}. Losses still fall after "
        f"{one.max_epochs} epochs, so these are speeds of learning as much as qualities. What a step costs is in the "
        f"benchmark of normalisers, measured side by side.",
        markdown_table(rows),
    ]  # fmt: skip
    if hybrid:
        parts += [
            "Share of doubly normalised attention that hybrid attention ends with, mean over heads (range of all heads "
            "and seeds):",
            markdown_table(hybrid),
        ]
    parts += [f"![{what}](pictures/{path.name})" for what, path in pictures.items()]
    return "\n\n".join(parts)
