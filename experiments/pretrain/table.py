"""Normalisers of attention, deterministic and Bayesian: pretraining, then fine-tuning."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from experiments.files import UserError, reading
from experiments.harness.folder import exclusive
from experiments.harness.sweep import Key, Sweep, Trainings
from experiments.pretrain import finetune
from experiments.pretrain import train as pretrain
from experiments.pretrain.config import PretrainConfig, PretrainTableConfig
from experiments.pretrain.evaluation import key_masses
from experiments.pretrain.figures import History, hybrid_curves, loss_curves, mass_histogram, scores_figure
from experiments.pretrain.model import load_trained
from experiments.pretrain.rows import ACCURACY, COMPARED, CONTROL, PERPLEXITY, score_rows
from experiments.report.attention_rows import hybrid_rows
from experiments.report.figures import save
from experiments.report.report import Part, Report
from experiments.report.results import RESULTS

__all__ = ["PretrainTableConfig", "run"]


@exclusive
def run(config: PretrainTableConfig) -> dict[str, float]:
    """Train what is not trained yet, print the table, and write results/ with pictures.

    Returns:
        ``"<normaliser>, <guide>/<metric>"`` to its mean over seeds.

    Raises:
        UserError, KeyboardInterrupt: As the methods of :class:`Sweep`.
    """
    if not config.normalizers or not config.guides:
        raise UserError("normalizers or guides is empty, expected one at least of each")
    name, free = f"pretraining-{config.dataset}", ("normalizers", "guides", "seeds")
    script = "experiments.pretrain_table"
    sweep = Sweep(script, config, f"studies/{name}", RESULTS, free=free, always=("dataset",)).open()
    trainings = _train(config, sweep)
    runs = trainings.by_row()
    parts = [Part(text=_text(config, trainings), rows=score_rows(runs))]
    if hybrid := hybrid_rows(runs):
        shares = "Share of doubly normalised attention that hybrid attention ends with, mean over heads"
        parts.append(Part(text=f"{shares} (range of all heads and seeds):", rows=hybrid))
    parts += _pictures(config, trainings, sweep.pictures)
    return sweep.finish(Report(f"Pretraining with normalisers of attention: {config.dataset}", name, parts), trainings)


def _finetune_config(config: PretrainTableConfig, start: PretrainConfig, *, scratch: bool) -> finetune.FinetuneConfig:
    init_from = Path(str(start.out))
    return finetune.FinetuneConfig(
        **config.for_runs(), init_from=init_from, scratch=scratch, train=config.train, seed=start.seed,
        max_epochs=config.finetune_epochs, num_samples=config.num_samples,
        out=init_from.with_name(f"{init_from.name}-sst2{'-scratch' * scratch}"),
    )  # fmt: skip


def _train(config: PretrainTableConfig, sweep: Sweep) -> Trainings[PretrainConfig]:
    """Pretraining, with the accuracies on SST-2 added to its metrics."""
    names = ("dataset", "sentences", "vocabulary", "width", "layers", "max_epochs", "num_samples")
    shared = {name: getattr(config, name) for name in names}
    rows: dict[Key, dict[str, Any]] = {
        (f"{normalizer}, {guide}",): shared | {"normalizer": normalizer, "guide": guide}
        for normalizer in config.normalizers
        for guide in config.guides
    }
    configs = sweep.configs(PretrainConfig, rows, range(config.seeds))
    print(f"Pretraining, in {sweep.folder}:", flush=True)
    pretrained = sweep.train(pretrain.run, configs, shown="val_loss")
    tasks = {
        (column.metric, *key): _finetune_config(config, start, scratch=column is CONTROL)
        for column in (ACCURACY, CONTROL)
        for key, start in configs.items()
    }
    print("Fine-tuning:", flush=True)
    finetuned = sweep.train(finetune.run, tasks).metrics
    added = {
        key: {name: finetuned[name, *key]["test_accuracy"] for name in (ACCURACY.metric, CONTROL.metric)}
        for key in configs
    }
    return Trainings(configs, {key: {**found, **added[key]} for key, found in pretrained.metrics.items()})


def _pictures(config: PretrainTableConfig, trainings: Trainings[PretrainConfig], folder: Path) -> list[Part]:
    stem, runs = f"pretraining_{config.dataset}", trainings.by_row()
    folders = {key: Path(str(found.out)) for key, found in trainings.configs.items()}
    histories = {name: [_history(folders[name, seed]) for seed in trainings.seeds] for name in runs}
    trained = {name: load_trained(folders[name, trainings.seeds[0]], device=config.device) for name in runs}
    scores = {
        column.name: {name: column.values(found) for name, found in runs.items()} for column in (PERPLEXITY, ACCURACY)
    }
    control = {ACCURACY.name: {name: CONTROL.values(found) for name, found in runs.items()}}
    figures = {
        "": ("perplexity and accuracy: every seed and the mean; hollow without pretraining",
             scores_figure(scores, control)),
        "_loss": ("validation loss by epoch: mean and range of the seeds", loss_curves(histories)),
        "_mass": ("attention that keys get in all heads, first seed",
                  mass_histogram({name: key_masses(one) for name, one in trained.items()})),
    }  # fmt: skip
    if "hybrid" in config.normalizers:
        found = {name: history for name, history in histories.items() if name.startswith("hybrid")}
        figures["_hybrid"] = (
            "hybrid weights by epoch: thick the mean over heads and seeds, thin each head of each seed",
            hybrid_curves(found, start=next(iter(trainings.configs.values())).hybrid_share),
        )
    return [
        Part(picture=save(figure, folder / f"{stem}{end}.png"), caption=caption)
        for end, (caption, figure) in figures.items()
    ]


def _history(folder: Path) -> History:
    path, remedy = folder / "history.csv", f"remove {folder} to train it again"
    with reading(path, "a table of numbers", remedy), path.open(newline="") as file:
        return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]


def _text(config: PretrainTableConfig, trainings: Trainings[PretrainConfig]) -> str:
    one, comparisons = next(iter(trainings.configs.values())), len(COMPARED) * (len(trainings.rows) - 1)
    return (
        f"Masked language model: {one.layers} layers of {one.heads} heads, width {one.width}, {one.masked:.0%} of the "
        f"word pieces hidden, at most {one.sentences} sentences, {one.max_epochs} epochs. Perplexity and accuracy are "
        f"those of hidden pieces of the test sentences. Weibull: concentration {one.concentration:g}, {one.prior} "
        f"prior, KL weight {one.kl_weight:g}, test scores over {one.num_samples} posterior samples. SST-2: fine-tuned "
        f"on at most {config.train} sentences and phrases for {config.finetune_epochs} epochs; GLUE hides the labels "
        f"of its test part, so half of its development part validates and the other half (436 sentences, where one "
        f"standard error of an accuracy of 80 % is 1.9 points) tests: these are no GLUE scores. Not pretrained: the "
        f"same from fresh weights. A key's mass is the sum of the weights that all queries give to it, at the mean of "
        f"the attention; it is explained away below {one.epsilon:g}.\n\n"
        f"Mean ± standard deviation over seeds, and differences seed by seed with their 95 % confidence intervals "
        f"(Student's t), not corrected for the number of comparisons, {comparisons}. Losses still fall after "
        f"{one.max_epochs} epochs, so these are speeds of learning as much as qualities. What a step costs is in the "
        f"benchmark of normalisers, measured side by side."
    )
