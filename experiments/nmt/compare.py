"""Compare inference schemes for the alignment of a translation model: a table, claims, pictures and a report.

python -m experiments.compare
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.files import user_errors
from experiments.harness.cli import command_line
from experiments.harness.folder import exclusive, open_run
from experiments.harness.options import options_of
from experiments.harness.parallel import run_all
from experiments.harness.results import write_metrics
from experiments.nmt import train as nmt
from experiments.nmt.claims import claims
from experiments.nmt.config import (
    SCHEMES,
    CompareTranslations,
    NormalizerName,
    TranslationConfig,
    TranslationOptions,
)
from experiments.nmt.evaluation import DEFINITIONS
from experiments.nmt.figures import agreement_figure, ibm_error_rates, sentence_figures
from experiments.nmt.table import LEGEND, NORMALIZERS, table_rows
from experiments.reporting.html import Section, write_report
from experiments.reporting.page import hardware, update_section
from experiments.reporting.scheme_table import mean_metrics
from experiments.reporting.tables import as_table, markdown_table
from guides.names import SchemeName
from guides.schemes import build_scheme

__all__ = ["SCHEMES", "CompareTranslations", "run"]


Metrics = Mapping[str, float]

TOY_PAIRS = {"train_pairs": 3000, "test_pairs": 250}  # the demo is to take four minutes at most


@exclusive
def run(config: CompareTranslations) -> dict[str, float]:
    """Train all rows, print table and claims, and write pictures and report.html.

    Returns:
        ``"<scheme>/<metric>"`` to its mean over seeds.

    Raises:
        UserError: Data, options or folder are not right.
        KeyboardInterrupt: Stopped by Ctrl-C; ``resume`` continues.
    """
    folder = config.out or Path("runs", "compare", f"translation-{config.dataset}")
    with user_errors(ValueError, OSError):
        open_run(folder, config, free=("schemes", "seeds", "ibm"))
    configs, runs = _train(config, folder)
    table, checked = table_rows(runs), claims(runs)
    legend = _legend(config)
    print(f"\n{as_table(table)}\n\n{textwrap.fill(legend, 100)}\n")
    print("\n".join(map(str, checked)))
    print("\nDrawing the pictures ...", flush=True)
    pictures = [*sentence_figures(configs, folder / "figures"), agreement_figure(configs, folder / "figures")]
    sections = [Section("Test results", legend, table=as_table(table))]
    if checked:
        text = "Mean differences over the seeds with 95 % confidence intervals; a claim holds where all are below 0."
        sections.append(Section("Claims of the paper", text, table="\n".join(map(str, checked))))
    sections += pictures
    if config.ibm:
        baselines = as_table(ibm_error_rates(next(iter(configs.values())), models=range(1, config.ibm + 1)))
        print(f"\n{baselines}")
        sections.append(Section("IBM Models as baselines", "NLTK's, trained on the same pairs.", table=baselines))
    sections.append(Section("Configuration", table=(folder / "config.yaml").read_text()))
    report = write_report(folder / "report.html", "Alignment as a latent variable", sections)
    means = mean_metrics(runs)
    write_metrics(folder, means, {key: f"{DEFINITIONS[key.split('/')[1]]}; mean over seeds" for key in means})
    if config.results is not None:
        _write_section(config, config.results, table, [str(claim) for claim in checked], configs)
    print("\n" + "\n".join(str(path) for path in [*(section.picture for section in pictures), report]))
    return means


def _train(
    config: CompareTranslations, folder: Path
) -> tuple[dict[str, TranslationConfig], dict[str, list[dict[str, float]]]]:
    """The runs of the first seed, and the metrics of all, by scheme."""
    seeds = range(config.seeds)
    bases = {
        (normalizer, seed): _base_config(config, folder, normalizer, seed)
        for normalizer in config.normalizers
        for seed in seeds
    }
    configs = {
        (_name(scheme, normalizer), seed): _scheme_config(config, base, scheme)
        for scheme in config.schemes
        for (normalizer, seed), base in bases.items()
    }
    how: dict[str, Any] = {"workers": config.workers, "progress": config.progress, "describe": _describe}
    print("Training soft attention, once a seed:", flush=True)
    run_all(nmt.run, bases, **how)
    print("Going on from there with every scheme:", flush=True)
    metrics = run_all(nmt.run, configs, **how)
    rows = list(dict.fromkeys(row for row, _ in configs))
    return {row: configs[row, 0] for row in rows}, {row: [metrics[row, seed] for seed in seeds] for row in rows}


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


def _normalised(config: CompareTranslations) -> bool:
    return config.normalizers != ("softmax",)


def _legend(config: CompareTranslations) -> str:
    return f"{_protocol(config)} {LEGEND}{f' {NORMALIZERS}' if _normalised(config) else ''}"


def _protocol(config: CompareTranslations) -> str:
    seeds = "1 seed." if config.seeds == 1 else f"{config.seeds} seeds, mean +- standard deviation."
    return (
        f"{seeds} Soft attention is trained for {config.base_epochs} epochs; every scheme, soft too, goes on from "
        f"there for {config.epochs} at half the learning rate; inference networks start at q = p. "
        f"Translations by a beam of {config.beam}."
    )


def _describe(key: tuple[str, int], metrics: Mapping[str, float]) -> str:
    return f"{key[0]}, seed {key[1]}: validation perplexity {metrics['val_ppl']:.2f}"


def _write_section(
    config: CompareTranslations,
    page: Path,
    table: list[dict[str, str]],
    checked: list[str],
    configs: Mapping[str, TranslationConfig],
) -> None:
    folders = [Path(str(found.out)) for found in configs.values()]
    parts = [
        f"## Translation: {config.dataset}{', normalised over the words before' if _normalised(config) else ''}",
        f"`{command_line('experiments.compare', config)}`, on {hardware(folders)}.",
        _legend(config),
        markdown_table(table),
    ]
    if checked:
        parts.append("```\n" + "\n".join(checked) + "\n```")
    name = f"translation-{config.dataset}" + ("-normalizers" if _normalised(config) else "")
    update_section(page, name, "\n\n".join(parts))
