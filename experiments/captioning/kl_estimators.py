"""Two ablations of Bayesian attention: a KL that is sampled, and attention weights that are plain Gaussians."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from experiments.captioning import train as captioning
from experiments.captioning.config import CaptioningConfig, CompareEstimators, EstimatorOptions, Guide, KLEstimator
from experiments.captioning.data import load_images
from experiments.captioning.evaluation import batches
from experiments.captioning.gradient_noise import gradient_noise
from experiments.captioning.kl_estimator_tables import Noise, Runs, flat_metrics, noise_rows, training_rows
from experiments.captioning.model import build, load_trained
from experiments.datasets.text.vocabulary import Vocabulary
from experiments.files import UserError
from experiments.harness.cli import command_line
from experiments.harness.folder import exclusive, open_run
from experiments.harness.options import options_of
from experiments.harness.parallel import run_all
from experiments.harness.results import write_metrics
from experiments.reporting.page import hardware, update_section
from experiments.reporting.tables import as_table, markdown_table

__all__ = ["CompareEstimators", "run"]

Point = Literal["untrained", "trained"]
# What errors say when numbers overflow; others are the user's.
_OVERFLOW = re.compile(r"\bnan\b|\binfinite\b|no epoch has a finite|within the support", re.IGNORECASE)


@dataclass(frozen=True)
class _Measurement:
    """Where gradients are measured: at the start, or at the end, of the training of a configuration."""

    config: CaptioningConfig
    point: Point
    pairs: int


@exclusive
def run(config: CompareEstimators) -> dict[str, float]:
    """Train everything, measure the gradients, and print the tables; ``resume`` repeats no finished training.

    Returns:
        ``"<guide>/<estimator>/<metric>"`` of the trainings, means over the seeds that did not diverge, and
        ``"<guide>/<point>/<metric>"`` of the gradients, where the first seed's training with the closed form starts and
        where it ends.

    Raises:
        UserError: Options or folder are not right.
        KeyboardInterrupt: Stopped by Ctrl-C; ``resume`` continues.
    """
    folder = config.out or Path("runs", "kl_estimators", f"{config.kl_weight:g}")
    if not config.guides:
        raise UserError(f"guides is empty, expected some of {', '.join(get_args(Guide))}")
    open_run(folder, config, free=("guides", "seeds", "pairs"))
    configs = _configs(config, folder)
    print(f"{len(configs)} trainings:", flush=True)
    found = run_all(_train, configs, workers=config.workers, progress=config.progress)
    rows = sorted({key[:2]: None for key in configs}, key=lambda key: config.guides.index(key[0]))
    runs: Runs = {key: [found[*key, seed] for seed in range(config.seeds)] for key in rows}
    points: dict[tuple[str, str], _Measurement] = {
        (guide, point): _Measurement(configs[guide, "closed_form", 0], point, config.pairs)
        for guide, kl in rows
        if kl == "sampled" and not found[guide, "closed_form", 0]["diverged"]
        for point in get_args(Point)
    }
    print(f"Gradients, {2 * config.pairs} draws at each of {len(points)} points:", flush=True)
    noise: Noise = run_all(_measure, points, workers=config.workers, progress=config.progress)
    return _report(config, folder, runs, noise, [Path(str(one.out)) for one in configs.values()])


def _configs(config: CompareEstimators, folder: Path) -> dict[tuple[Guide, KLEstimator, int], CaptioningConfig]:
    """All trainings; soft attention has no KL to estimate."""
    shared = config.for_runs() | options_of(config, EstimatorOptions)
    estimators: dict[Guide, tuple[KLEstimator, ...]] = {"soft": ("closed_form",)}
    return {
        (guide, kl, seed): CaptioningConfig(
            **shared, guide=guide, kl=kl, seed=seed, embedding=max(8, config.hidden // 2),
            out=folder / "runs" / f"{guide}-{kl}-{seed}",
        )
        for seed in range(config.seeds)
        for guide in config.guides
        for kl in estimators.get(guide, get_args(KLEstimator))
    }  # fmt: skip


def _train(config: CaptioningConfig) -> dict[str, float]:
    """Metrics of a training, with ``diverged``, which is all there is of one whose numbers overflow."""
    try:
        metrics = captioning.run(config)
    except UserError as error:
        if not _OVERFLOW.search(str(error)):
            raise
        return {"diverged": 1.0}
    return metrics | {"diverged": float(not metrics["val_ppl"] < metrics["word_pieces"])}


def _measure(at: _Measurement) -> dict[str, float]:
    data, folder = load_images(at.config)["train"], Path(str(at.config.out))
    if at.point == "trained":
        trained = load_trained(folder, data.regions.size(2), device=at.config.device)
    else:
        trained = build(at.config, Vocabulary.load(folder / "vocabulary.json"), data.regions.size(2))
    batch = next(batches(trained, data, references=1))
    return gradient_noise(trained, batch, kl_weight=at.config.kl_weight, pairs=at.pairs)


def _report(
    config: CompareEstimators, folder: Path, runs: Runs, noise: Noise, folders: Sequence[Path]
) -> dict[str, float]:
    """Print and save everything."""
    tables = [rows for rows in (training_rows(runs), noise_rows(noise)) if rows]
    text = _text(config)
    print("", *(f"{as_table(table)}\n" for table in tables), text, sep="\n")
    metrics, definitions = flat_metrics(runs, noise)
    write_metrics(folder, metrics, definitions)
    if config.results is not None:
        command = command_line("experiments.kl_estimators", config, always=("kl_weight",))
        head = f"## Sampled KL and Gaussian weights, KL weight {config.kl_weight:g}"
        parts = [head, f"`{command}`, on {hardware(folders)}.", text, *(markdown_table(table) for table in tables)]
        update_section(config.results, f"kl-estimators-{config.kl_weight:g}", "\n\n".join(parts))
    return metrics


def _text(config: CompareEstimators) -> str:
    """What the tables show."""
    return (
        f"Captions of digit scenes, seeds 0 to {config.seeds - 1}; {config.max_epochs} epochs from the beginning. "
        f"The KL is summed over every weight and weighted by {config.kl_weight:g}; prior {config.prior}. Diverged: "
        "numbers overflow, or the best validation perplexity is no better than guessing among all word pieces; the "
        "other columns are means +- standard deviation over the other seeds. Points: as in the captioning table.\n\n"
        "Gradients: trace of their covariance over draws of the attention on one batch, without dropout, +- standard "
        "error, for the weighted KL alone and for the whole loss per word piece. Both estimators have the same "
        "parameters, where the first seed's training with the closed form starts or those of its best epoch, and the "
        "same draws. Mean squared: squared norm of the mean gradient, what the noise stands against."
    )
