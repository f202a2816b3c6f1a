"""Headlines by a Transformer with latent attention: train a network and evaluate it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from experiments.files import read_text, user_errors
from experiments.harness.folder import exclusive, open_run
from experiments.harness.results import read_metrics
from experiments.headlines.config import HeadlineConfig
from experiments.headlines.data import LeadSampler, TrainingPairs, first_headlines, load_texts
from experiments.headlines.evaluation import evaluate
from experiments.headlines.model import build, load_vocabulary
from experiments.report.tables import metrics_table
from experiments.sequence.evaluation import train_and_save
from experiments.sequence.learned import print_verdict

__all__ = ["SUMMARIES", "HeadlineConfig", "run", "run_and_show", "run_folder"]

SUMMARIES = "summaries.txt"  # headlines of the test texts, in their order


def run_folder(config: HeadlineConfig) -> Path:
    """Folder of the run."""
    return config.out or Path("runs", "headlines", f"{config.normalizer}-{config.guide}-{config.seed}")


@exclusive
def run(config: HeadlineConfig) -> dict[str, float]:
    """Train, evaluate and save; what is in the folder already is not computed again when resuming.

    Raises:
        UserError: Data, options or folder are not right.
        KeyboardInterrupt: Stopped by Ctrl-C or SIGTERM; ``resume`` continues.
    """
    folder = run_folder(config)
    with user_errors(ValueError, OSError):
        # all splits, so that nothing is found bad or missing after the training
        data = load_texts(config)
        open_run(folder, config)
        metrics = read_metrics(folder)
        if metrics is not None:
            return metrics
        vocabulary = load_vocabulary(config, folder, data["train"])
        trained = build(config, vocabulary)
    pairs = TrainingPairs(data["train"], vocabulary, config)
    sampler = LeadSampler(pairs, lead_epochs=config.lead_epochs, sentences=config.batch_size, seed=config.seed)
    return train_and_save(
        trained, folder, pairs, first_headlines(data["val"], vocabulary, config), sampler=sampler,
        evaluate=partial(evaluate, trained, data["test"]), file=SUMMARIES, written=pairs.targets[: sum(pairs.counts)],
    )  # fmt: skip


def run_and_show(config: HeadlineConfig) -> None:
    """The script: table on the terminal, and the first headlines."""
    metrics, folder = run(config), run_folder(config)
    print(metrics_table(metrics))
    print_verdict(metrics)
    texts = load_texts(config)["test"]
    for number, headline in enumerate(
        read_text(folder / SUMMARIES, "remove the folder to train again").split("\n")[:3]
    ):
        print(f"\ntext:      {texts.texts[number]}\npeople:    {texts.headlines[number][0]}\nnetwork:   {headline}")
    print(f"\nsaved in {folder}")
