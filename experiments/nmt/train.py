"""Translation with a latent alignment: train a network, evaluate it, translate files, align files."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from experiments.datasets.places import SPLITS
from experiments.datasets.text.batches import BucketSampler, EncodedText
from experiments.files import user_errors
from experiments.harness.folder import exclusive, open_training
from experiments.nmt.align import aligned_pairs
from experiments.nmt.alignment_figures import pair_figure
from experiments.nmt.config import TranslationConfig
from experiments.nmt.data import load_text
from experiments.nmt.evaluation import evaluate
from experiments.nmt.model import build, load_trained, load_vocabulary
from experiments.report.figures import save
from experiments.report.tables import metrics_table
from experiments.sequence.evaluation import train_and_save
from experiments.sequence.learned import print_verdict

__all__ = ["TranslationConfig", "run", "run_and_show", "run_folder", "with_percent"]


def run_folder(config: TranslationConfig) -> Path:
    """Folder of the run."""
    return config.out or Path("runs", "nmt", f"{config.dataset}-{config.guide}-{config.seed}")


@exclusive
def run(config: TranslationConfig) -> dict[str, float]:
    """Train, evaluate and save; what is in the folder already is not computed again when resuming.

    Raises:
        UserError: Data, options or folder are not right.
        KeyboardInterrupt: Stopped by Ctrl-C or SIGTERM; ``resume`` continues.
    """
    folder = run_folder(config)
    with user_errors(ValueError, OSError):
        # the test text too, so that nothing is found missing after the training
        train_text, val_text, _ = (load_text(config, split) for split in SPLITS)
        metrics = open_training(folder, config, planned=config.planned)
        vocabulary = load_vocabulary(config, folder, train_text)
        trained = build(config, vocabulary)
        train_data, val_data = EncodedText(train_text, vocabulary), EncodedText(val_text, vocabulary)
    if metrics is not None:
        return metrics
    if config.progress and train_text.skipped:
        reasons = ", ".join(f"{count} {reason}" for reason, count in train_text.skipped.items())
        print(f"training text: {len(train_text)} pairs; left out in reading: {reasons}", file=sys.stderr)
    sampler = BucketSampler(train_data.lengths, sentences=config.batch_size, seed=config.seed)
    return train_and_save(
        trained, folder, train_data, val_data, sampler=sampler, evaluate=partial(evaluate, trained, train_text),
        file="translations.txt",
    )  # fmt: skip


def with_percent(metrics: dict[str, float]) -> dict[str, float | str]:
    """Metrics for the terminal: alignment error rates in per cent, where metrics.json has fractions."""
    return {name: f"{100 * value:.1f} %" if name.endswith("_aer") else value for name, value in metrics.items()}


def run_and_show(config: TranslationConfig) -> None:
    """The script: table on the terminal, pictures of the first test sentences in the folder."""
    if config.dataset == "own":
        case = "all letters made small (--no-lowercase keeps them)" if config.lowercase else "capitals kept"
        divided = "words as they stand between blanks"
        if config.words != "none":
            divided = f"punctuation split off words by {config.words} (--tokenize none for text that is tokenised)"
        print(f"{config.text}: {case}, {divided}")
    metrics, folder = run(config), run_folder(config)
    print(metrics_table(with_percent(metrics)))
    print_verdict(metrics)
    trained = load_trained(folder, device=config.device)
    text = load_text(config, "test").first(3)
    links = text.gold
    for place, pair in enumerate(aligned_pairs(trained, text, num_samples=100)):
        gold = None if links is None else links[place]
        figure = pair_figure(pair, gold=gold, title=f"test pair {place + 1}", languages=text.languages)
        print(save(figure, folder / "figures" / f"pair-{place + 1}.png"))
    print(f"\nsaved in {folder}")
