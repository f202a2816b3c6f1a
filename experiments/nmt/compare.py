"""Compare inference schemes for the alignment of a translation model: a table, claims, pictures and a report.

python -m experiments.compare
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.harness.folder import exclusive
from experiments.harness.options import options_of
from experiments.harness.sweep import Sweep, Trainings
from experiments.nmt import train as nmt
from experiments.nmt.claims import claim_parts
from experiments.nmt.config import SCHEMES, CompareTranslations, NormalizerName, TranslationConfig, TranslationOptions
from experiments.nmt.evaluation import DEFINITIONS
from experiments.nmt.figures import agreement_figure, ibm_error_rates, sentence_figures
from experiments.nmt.table import COLUMNS, LEGEND, NORMALIZERS
from experiments.reporting.columns import summary_rows
from experiments.reporting.report import Part, Report
from guides.names import SchemeName
from guides.schemes import build_scheme

__all__ = ["SCHEMES", "CompareTranslations", "run"]

TOY_PAIRS = {"train_pairs": 3000, "test_pairs": 250}  # the demo is to take four minutes at most


@exclusive
def run(config: CompareTranslations) -> dict[str, float]:
    """Train all rows, print table and claims, and write pictures and report.html.

    Returns:
        ``"<scheme>/<metric>"`` to its mean over seeds.

    Raises:
        UserError, KeyboardInterrupt: As the methods of :class:`Sweep`.
    """
    name, free = f"translation-{config.dataset}", ("schemes", "seeds", "ibm")
    sweep = Sweep("experiments.compare", config, f"compare/{name}", free=free).open()
    trainings = _train(config, sweep)
    runs, normalised = trainings.by_row(), config.normalizers != ("softmax",)
    legend = f"{_protocol(config)} {LEGEND}{f' {NORMALIZERS}' if normalised else ''}"
    parts = [Part(text=legend, rows=summary_rows("scheme", runs, COLUMNS)), *claim_parts(runs)]
    print("Drawing the pictures ...", flush=True)
    first, folder = {row: trainings.first(row) for row in runs}, sweep.folder / "figures"
    parts += [*sentence_figures(first, folder), agreement_figure(first, folder)]
    baselines = ibm_error_rates(next(iter(first.values())), models=range(1, config.ibm + 1)) if config.ibm else []
    if baselines:
        how = "NLTK's, trained on the same pairs."
        parts.append(Part("IBM Models as baselines", how, rows=baselines, page=False))
    report = Report(
        f"Translation: {config.dataset}{', normalised over the words before' if normalised else ''}",
        f"{name}{'-normalizers' if normalised else ''}",
        parts,
    )
    meanings = {name: f"{text}; mean over seeds" for name, text in DEFINITIONS.items()}
    return sweep.finish(report, trainings, definitions=meanings)


def _train(config: CompareTranslations, sweep: Sweep) -> Trainings[TranslationConfig]:
    """Soft attention first, then all rows from there."""
    bases = {
        (_name("base", normalizer), seed): _base_config(config, sweep.folder, normalizer, seed)
        for normalizer in config.normalizers
        for seed in range(config.seeds)
    }
    configs = {
        (_name(scheme, base.normalizer), seed): _scheme_config(config, base, scheme)
        for scheme in config.schemes
        for (_, seed), base in bases.items()
    }
    print("Training soft attention, once a seed:", flush=True)
    sweep.train(nmt.run, bases, shown="val_ppl")
    print("Going on from there with every scheme:", flush=True)
    return sweep.train(nmt.run, configs, shown="val_ppl")


def _base_config(config: CompareTranslations, folder: Path, normalizer: NormalizerName, seed: int) -> TranslationConfig:
    shared = options_of(config, TranslationOptions)
    if config.dataset == "toy":
        shared |= {name: shared[name] or pairs for name, pairs in TOY_PAIRS.items()}
    epochs = {"max_epochs": config.base_epochs, "patience": config.base_epochs}
    return TranslationConfig(
        **config.for_runs(), **shared, **epochs, guide="soft", normalizer=normalizer, embedding=config.hidden,
        seed=seed, out=folder / "runs" / f"{_name('base', normalizer)}-{seed}",
    )  # fmt: skip


def _name(scheme: str, normalizer: NormalizerName) -> str:
    return scheme if normalizer == "softmax" else f"{scheme}-{normalizer}"


def _scheme_config(config: CompareTranslations, base: TranslationConfig, scheme: SchemeName) -> TranslationConfig:
    start = Path(str(base.out))
    changes: dict[str, Any] = {"kl_weight": config.kl_weight} if scheme in ("weibull", "lognormal", "gamma") else {}
    if build_scheme(scheme).amortised:
        changes["posterior_from_prior"] = True
    return replace(
        base, **changes, guide=scheme, init_from=start, max_epochs=config.epochs, patience=config.epochs,
        learning_rate=config.learning_rate / 2, out=start.with_name(f"{_name(scheme, base.normalizer)}-{base.seed}"),
    )  # fmt: skip


def _protocol(config: CompareTranslations) -> str:
    seeds = "1 seed." if config.seeds == 1 else f"{config.seeds} seeds, mean ± standard deviation."
    return (
        f"{seeds} Soft attention is trained for {config.base_epochs} epochs; every scheme, soft too, goes on from "
        f"there for {config.epochs} at half the learning rate; inference networks start at q = p. "
        f"Translations by a beam of {config.beam}."
    )
