"""Compare inference schemes for the attention of a captioning model: a table, pictures and a report.

python -m experiments.compare --task captioning
python -m experiments.compare --task captioning --dataset flickr8k --results experiments/RESULTS.md
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.captioning import train as captioning
from experiments.captioning.config import SCHEMES, CaptioningConfig, CaptioningOptions, CompareCaptions
from experiments.captioning.data import load_images
from experiments.captioning.evaluation import DEFINITIONS
from experiments.captioning.figures import caption_sections
from experiments.captioning.model import load_trained
from experiments.datasets.images.region_captions import RegionCaptions
from experiments.files import user_errors
from experiments.harness.cli import command_line
from experiments.harness.folder import exclusive, open_run
from experiments.harness.options import options_of
from experiments.harness.parallel import run_all
from experiments.harness.results import write_metrics
from experiments.reporting.html import Section, write_report
from experiments.reporting.page import hardware, update_section
from experiments.reporting.scheme_table import Runs, mean_metrics, scheme_rows
from experiments.reporting.tables import as_table, markdown_table
from guides.names import SchemeName

__all__ = ["SCHEMES", "CompareCaptions", "run"]

BAYESIAN = ("weibull", "lognormal", "gamma")
SHOWN = ("weibull", "hard_enum")  # rows that are drawn
COLUMNS = {
    "BLEU-1": ("test_bleu_1", 1, 1.0),
    "BLEU-2": ("test_bleu_2", 1, 1.0),
    "BLEU-3": ("test_bleu_3", 1, 1.0),
    "BLEU-4": ("test_bleu_4", 1, 1.0),
    "ROUGE-L": ("test_rouge_l", 1, 1.0),
    "CIDEr-D": ("test_cider_d", 1, 1.0),
    "METEOR": ("test_nltk_meteor", 1, 1.0),
    "true %": ("test_true_captions", 1, 100.0),
    "perplexity": ("test_ppl", 3, 1.0),
    "points %": ("test_pointing", 1, 100.0),
    "samples %": ("test_pointing_samples", 1, 100.0),
    "mass %": ("test_pointing_mass", 1, 100.0),
    "prior points %": ("test_pointing_prior", 1, 100.0),
    "entropy": ("test_entropy", 3, 1.0),
    "ms/step": ("step_ms", 0, 1.0),
    "parameters": ("parameters", 0, 1.0),
}
LEGEND = (
    "BLEU by sacrebleu's counts, METEOR is NLTK-METEOR; CIDEr-D and ROUGE-L as in coco-caption. Perplexity: alignments "
    "summed out exactly; weibull and lognormal: predictive, over posterior samples. Entropy of the mean weights "
    "that predict."
)
POINTING = (
    "Points: share of the digit words of the captions made whose largest mean posterior weight is on the digit's own "
    "cell; samples and mass: of posterior samples, and the mean weight there. The posterior of soft, weibull and "
    "lognormal has not seen the word, that of the hard schemes has, and their prior has not."
)


@exclusive
def run(config: CompareCaptions) -> dict[str, float]:
    """Train all rows, print the table, and write pictures and report.html.

    Returns:
        ``"<scheme>/<metric>"`` to its mean over seeds.

    Raises:
        UserError: Data, options or folder are not right.
        KeyboardInterrupt: Stopped by Ctrl-C; ``resume`` continues.
    """
    folder = config.out or Path("runs", "compare", f"captioning-{config.dataset}")
    first = _config(config, folder, "soft", 0)
    with user_errors(ValueError, OSError, ImportError):
        # features are made here, once a seed, and not by several workers at a time
        for seed in range(config.seeds if config.dataset != "digits" else 1):
            data = load_images(replace(first, seed=seed), progress=config.progress)
        open_run(folder, config, free=("schemes", "pictures"))
    configs, runs = _train(config, folder)
    table, legend = scheme_rows(runs, COLUMNS), _legend(config, data["test"], runs)
    print(f"\n{as_table(table)}\n\n{textwrap.fill(legend, 100)}\n\nDrawing the pictures ...", flush=True)
    pictures = _pictures(config, configs, folder)
    sections = [Section("Test results", legend, table=as_table(table)), *pictures]
    sections.append(Section("Configuration", table=(folder / "config.yaml").read_text()))
    report = write_report(folder / "report.html", "Captions with latent attention to regions", sections)
    means = mean_metrics(runs)
    write_metrics(folder, means, {key: f"{DEFINITIONS[key.split('/')[1]]}; mean over seeds" for key in means})
    if config.results is not None:
        parts = [
            f"## Captioning: {config.dataset}",
            f"`{command_line('experiments.compare', config, always=('task',))}`, on "
            f"{hardware([Path(str(found.out)) for found in configs.values()])}.",
            legend,
            markdown_table(table),
        ]
        update_section(config.results, f"captioning-{config.dataset}", "\n\n".join(parts))
    print("\n" + "\n".join(str(path) for path in [*(section.picture for section in pictures), report]))
    return means


def _train(
    config: CompareCaptions, folder: Path
) -> tuple[dict[str, CaptioningConfig], dict[str, list[dict[str, float]]]]:
    """The runs of the first seed, and the metrics of all, by scheme."""
    seeds = range(config.seeds)
    how: dict[str, Any] = {"workers": config.workers, "progress": config.progress, "describe": _describe}
    if config.base_epochs:
        print("Training soft attention, once a seed:", flush=True)
        run_all(captioning.run, {("soft at first", seed): _base(config, folder, seed) for seed in seeds}, **how)
    print("Training every scheme:", flush=True)
    configs = {(scheme, seed): _config(config, folder, scheme, seed) for scheme in config.schemes for seed in seeds}
    metrics = run_all(captioning.run, configs, **how)
    runs: dict[str, list[dict[str, float]]] = {
        scheme: [metrics[scheme, seed] for seed in seeds] for scheme in config.schemes
    }
    return {scheme: configs[scheme, 0] for scheme in config.schemes}, runs


def _base(config: CompareCaptions, folder: Path, seed: int) -> CaptioningConfig:
    """Soft attention, from the beginning."""
    shared = options_of(config, CaptioningOptions)
    epochs = max(1, config.base_epochs)
    return CaptioningConfig(
        **config.for_runs(), **shared, guide="soft", embedding=max(8, config.hidden // 2), seed=seed, max_epochs=epochs,
        patience=epochs, out=folder / "runs" / f"base-{seed}",
    )  # fmt: skip


def _config(config: CompareCaptions, folder: Path, scheme: SchemeName, seed: int) -> CaptioningConfig:
    """A scheme, from soft attention or from the beginning."""
    base = _base(config, folder, seed)
    changes: dict[str, Any] = {"kl_weight": config.kl_weight} if scheme in BAYESIAN else {"kl_weight": 1.0}
    if scheme == "dirichlet":
        changes["warm_start"] = config.epochs // 2
    if config.base_epochs:
        changes |= {"init_from": base.out, "learning_rate": config.learning_rate / 2}
    return replace(
        base, **changes, guide=scheme, max_epochs=config.epochs, patience=config.patience,
        out=folder / "runs" / f"{scheme}-{seed}",
    )  # fmt: skip


def _describe(key: tuple[str, int], metrics: Mapping[str, float]) -> str:
    return f"{key[0]}, seed {key[1]}: validation perplexity {metrics['val_ppl']:.2f}"


def _legend(config: CompareCaptions, test: RegionCaptions, runs: Runs) -> str:
    """How the numbers came about, and what random captions score."""
    parts = ["1 seed." if config.seeds == 1 else f"{config.seeds} seeds, mean +- standard deviation."]
    if config.base_epochs:
        parts.append(
            f"Soft attention is trained for {config.base_epochs} epochs; every scheme, soft too, goes on from there "
            f"for {config.epochs} at half the learning rate."
        )
    else:
        parts.append(f"Every scheme is trained from the beginning, for {config.epochs} epochs at most.")
    encoder = test.encoder if config.dataset == "digits" or config.encoder != "own" else "content-encoder, one a seed"
    rows, columns = test.grid
    parts.append(f"Features: {encoder}, {rows} x {columns} regions; {len(test)} test images.")
    floor = runs[config.schemes[0]][0]
    parts.append(
        f"Captions of random training images: BLEU-1 {floor['floor_bleu_1']:.1f}, CIDEr-D {floor['floor_cider_d']:.1f}."
    )
    return " ".join([*parts, LEGEND, POINTING] if test.scenes is not None else [*parts, LEGEND])


def _pictures(config: CompareCaptions, configs: Mapping[str, CaptioningConfig], folder: Path) -> list[Section]:
    """Attention and uncertainty of the captions that the first seed made of some test images."""
    data = load_images(replace(next(iter(configs.values())), seed=0))["test"]
    # the longest captions show most
    places = sorted(range(len(data)), key=lambda image: -len(data.captions[image][0].split()))[: config.pictures]
    sections = []
    for scheme in SHOWN:
        if scheme in configs:
            out = Path(str(configs[scheme].out))
            trained = load_trained(out, data.regions.size(2), device=config.device)
            captions = (out / "captions.txt").read_text().splitlines()
            sections += caption_sections(trained, data, captions, places, folder / "figures", name=scheme)
    return sections
