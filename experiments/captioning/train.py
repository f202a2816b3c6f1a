"""Captioning of images with a latent attention to regions: train a network and evaluate it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from experiments.captioning.config import CaptioningConfig
from experiments.captioning.data import load_images, load_maps
from experiments.captioning.evaluation import evaluate
from experiments.captioning.model import build, load_vocabulary
from experiments.datasets.images.region_captions import EncodedCaptions, OneCaptionSampler
from experiments.files import user_errors
from experiments.harness.folder import exclusive, open_training
from experiments.report.tables import metrics_table
from experiments.sequence.evaluation import train_and_save
from experiments.sequence.learned import print_verdict

__all__ = ["CaptioningConfig", "run", "run_and_show", "run_folder"]


def run_folder(config: CaptioningConfig) -> Path:
    """Folder of the run."""
    return config.out or Path("runs", "captioning", f"{config.dataset}-{config.guide}-{config.seed}")


@exclusive
def run(config: CaptioningConfig) -> dict[str, float]:
    """Train, evaluate and save; what is in the folder already is not computed again when resuming.

    Raises:
        UserError: Data, options or folder are not right.
        KeyboardInterrupt: Stopped by Ctrl-C or SIGTERM; ``resume`` continues.
    """
    folder = run_folder(config)
    with user_errors(ValueError, OSError, ImportError):
        # all splits, so that nothing is found bad or missing after the training
        data, maps = load_images(config, progress=config.progress), load_maps(config)
        metrics = open_training(folder, config, planned=config.planned)
        vocabulary = load_vocabulary(config, folder, data["train"])
        trained = build(config, vocabulary, features=data["train"].regions.size(2))
    if metrics is not None:
        return metrics
    train_data = EncodedCaptions(data["train"], vocabulary)
    val_data = EncodedCaptions(data["val"], vocabulary, references=1)
    sampler = OneCaptionSampler(train_data, sentences=config.batch_size, seed=config.seed)
    return train_and_save(
        trained, folder, train_data, val_data, sampler=sampler, evaluate=partial(evaluate, trained, data, maps),
        file="captions.txt",
    )  # fmt: skip


def run_and_show(config: CaptioningConfig) -> None:
    """The script: table on the terminal."""
    metrics = run(config)
    print(metrics_table(metrics))
    print_verdict(metrics)
    print(f"\nsaved in {run_folder(config)}")
