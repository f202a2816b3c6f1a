"""Translation with a latent alignment: train a network, evaluate it, translate files, align files."""

from __future__ import annotations

from pathlib import Path

from experiments.datasets.places import SPLITS
from experiments.datasets.text.batches import BucketSampler, EncodedText, batch_loader
from experiments.files import user_errors, write_atomic
from experiments.harness.extension import open_training
from experiments.harness.folder import exclusive
from experiments.harness.results import write_environment, write_metrics
from experiments.harness.training import fit_batches
from experiments.nmt.align import aligned_pairs, draw_pair
from experiments.nmt.config import TranslationConfig
from experiments.nmt.data import load_text
from experiments.nmt.evaluation import evaluate
from experiments.nmt.model import build, load_trained, load_vocabulary
from experiments.reporting.tables import metrics_table
from pyro_attention.analysis import GoldAlignment

__all__ = ["TranslationConfig", "run", "run_and_show", "run_folder"]

PICTURES = 3


def run_folder(config: TranslationConfig) -> Path:
    """Folder of the run."""
    return config.out or Path("runs", "nmt", f"{config.dataset}-{config.guide}-{config.seed}")


@exclusive
def run(config: TranslationConfig) -> dict[str, float]:
    """Train, evaluate and save; what is in the folder already is not computed again when resuming.

    Returns:
        The numbers of metrics.json; ``experiments.nmt.evaluation.DEFINITIONS`` says what they are.

    Raises:
        UserError: Data, options or folder are not right.
        KeyboardInterrupt: Stopped by Ctrl-C or SIGTERM; ``resume`` continues.
    """
    folder = run_folder(config)
    with user_errors(ValueError, OSError):
        # the test text too, so that nothing is found missing after the training
        train_text, val_text, _ = (load_text(config, split) for split in SPLITS)
        metrics = open_training(folder, config)
        vocabulary = load_vocabulary(config, folder)
        trained = build(config, vocabulary)
        train_data, val_data = EncodedText(train_text, vocabulary), EncodedText(val_text, vocabulary)
    if metrics is not None:
        return metrics
    write_environment(folder, trained.device)
    sampler = BucketSampler(train_data.lengths, sentences=config.batch_size, seed=config.seed)
    fitted = fit_batches(
        config,
        trained.module,
        batch_loader(train_data, sampler),
        batch_loader(val_data, BucketSampler(val_data.lengths, sentences=config.batch_size, shuffle=False)),
        folder=folder,
        patience=config.patience,
    )
    evaluation = evaluate(trained, fitted)
    lines = "".join(f"{line}\n" for line in evaluation.translations)
    write_atomic(folder / "translations.txt", lambda file: file.write(lines.encode()))
    write_metrics(folder, evaluation.metrics, evaluation.definitions)
    return evaluation.metrics


def run_and_show(config: TranslationConfig) -> None:
    """The script: table on the terminal, pictures of the first test sentences in the folder."""
    if config.dataset == "own":
        print(_reading(config))
    metrics, folder = run(config), run_folder(config)
    print(metrics_table(metrics))
    trained = load_trained(folder, device=config.device)
    text = load_text(config, "test").first(PICTURES)
    for place, pair in enumerate(aligned_pairs(trained, text, num_samples=100)):
        gold = None if text.alignments is None else GoldAlignment(text.alignments[place].links)
        print(draw_pair(pair, folder / "figures" / f"pair-{place + 1}.png", gold=gold))
    print(f"\nsaved in {folder}")


def _reading(config: TranslationConfig) -> str:
    """What becomes of one's own text."""
    case = "all letters made small (--no-lowercase keeps them)" if config.lowercase else "capitals kept"
    divided = "words as they stand between blanks"
    if config.words != "none":
        divided = f"punctuation split off words by {config.words} (--tokenize none for text that is tokenised already)"
    return f"{config.text}: {case}, {divided}"
