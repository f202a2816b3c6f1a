"""Two ablations of Bayesian attention: a KL that is sampled, and attention weights that are plain Gaussians."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, get_args

from experiments.captioning import train as captioning
from experiments.captioning.config import CaptioningConfig, CompareEstimators, EstimatorOptions, Guide, KLEstimator
from experiments.captioning.data import load_images
from experiments.captioning.evaluation import batches
from experiments.captioning.gradient_noise import gradient_noise
from experiments.captioning.kl_estimator_tables import DEFINITIONS, Noise, flat_metrics, noise_rows, training_rows
from experiments.captioning.model import build, load_trained
from experiments.datasets.text.vocabulary import Vocabulary
from experiments.files import UserError
from experiments.harness.folder import exclusive
from experiments.harness.options import options_of
from experiments.harness.parallel import run_all
from experiments.harness.sweep import Key, Sweep
from experiments.report.report import Part, Report

__all__ = ["CompareEstimators", "run"]

Point = Literal["untrained", "trained"]
# What errors say when numbers overflow; others are the user's.
_OVERFLOW = re.compile(r"\bnan\b|\binfinite\b|no epoch has a finite|within the support", re.IGNORECASE)


@exclusive
def run(config: CompareEstimators) -> dict[str, float]:
    """Train everything, measure the gradients, and print the tables; ``resume`` repeats no finished training.

    Returns:
        ``"<guide>/<estimator>/<metric>"`` of the trainings, means over the seeds that did not diverge, and
        ``"<guide>/<point>/<metric>"`` of the gradients, where the first seed's training with the closed form starts and
        where it ends.
    """
    if not config.guides:
        raise UserError(f"guides is empty, expected some of {', '.join(get_args(Guide))}")
    name, free = f"{config.kl_weight:g}", ("guides", "seeds", "pairs")
    sweep = Sweep("experiments.kl_estimators", config, f"kl_estimators/{name}", free=free, always=("kl_weight",)).open()
    configs = sweep.configs(CaptioningConfig, _rows(config), range(config.seeds))
    print(f"{len(configs)} trainings:", flush=True)
    trainings = sweep.train(_train, configs, shown="val_ppl")
    runs = {(guide, kl): trainings.runs(guide, kl) for guide, kl in trainings.rows}
    points = {
        (guide, point): (trainings.first(guide, "closed_form"), point, config.pairs)
        for guide, kl in runs
        if kl == "sampled" and not runs[guide, "closed_form"][0]["diverged"]
        for point in get_args(Point)
    }
    print(f"Gradients, {2 * config.pairs} draws at each of {len(points)} points:", flush=True)
    noise: Noise = run_all(_measure, points, workers=config.workers, cluster=config.cluster, progress=config.progress)
    parts = [Part(text=_text(config)), *(Part(rows=rows) for rows in (training_rows(runs), noise_rows(noise)) if rows)]
    title = f"Sampled KL and Gaussian weights, KL weight {name}"
    report = Report(title, f"kl-estimators-{name}", parts)
    return sweep.finish(report, trainings, flat_metrics(runs, noise), DEFINITIONS)


def _rows(config: CompareEstimators) -> dict[Key, dict[str, object]]:
    """Options of all rows; soft attention has no KL to estimate."""
    shared = options_of(config, EstimatorOptions) | {"embedding": max(8, config.hidden // 2)}
    estimators: dict[Guide, tuple[KLEstimator, ...]] = {"soft": ("closed_form",)}
    return {
        (guide, kl): shared | {"guide": guide, "kl": kl}
        for guide in config.guides
        for kl in estimators.get(guide, get_args(KLEstimator))
    }


def _train(config: CaptioningConfig) -> dict[str, float]:
    """Metrics of a training, with ``diverged``, which is all there is of one whose numbers overflow."""
    try:
        metrics = captioning.run(config)
    except UserError as error:
        if not _OVERFLOW.search(str(error)):
            raise
        return {"diverged": 1.0}
    return metrics | {"diverged": float(not metrics["val_ppl"] < metrics["word_pieces"])}


def _measure(at: tuple[CaptioningConfig, Point, int]) -> dict[str, float]:
    """Noise of the gradients of a network, where its training starts or where it ends."""
    config, point, pairs = at
    data, folder = load_images(config)["train"], Path(str(config.out))
    if point == "trained":
        trained = load_trained(folder, data.regions.size(2), device=config.device)
    else:
        trained = build(config, Vocabulary.load(folder / "vocabulary.json"), data.regions.size(2))
    batch = next(batches(trained, data, references=1))
    return gradient_noise(trained, batch, kl_weight=config.kl_weight, pairs=pairs)


def _text(config: CompareEstimators) -> str:
    """What the tables show."""
    return (
        f"Captions of digit scenes, seeds 0 to {config.seeds - 1}; {config.max_epochs} epochs from the beginning. "
        f"The KL is summed over every weight and weighted by {config.kl_weight:g}; prior {config.prior}. Diverged: "
        "numbers overflow, or the best validation perplexity is no better than guessing among all word pieces; the "
        "other columns are means ± standard deviation over the other seeds. Points: as in the captioning table.\n\n"
        "Gradients: trace of their covariance over draws of the attention on one batch, without dropout, ± standard "
        "error, for the weighted KL alone and for the whole loss per word piece. Both estimators have the same "
        "parameters, where the first seed's training with the closed form starts or those of its best epoch, and the "
        "same draws. Mean squared: squared norm of the mean gradient, what the noise stands against."
    )
