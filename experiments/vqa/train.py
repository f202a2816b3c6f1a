"""Train a model that answers questions about photographs, and evaluate it."""

from __future__ import annotations

from pathlib import Path

from experiments.files import user_errors
from experiments.harness.folder import exclusive, open_training
from experiments.harness.results import write_metrics
from experiments.harness.training import fit_batches
from experiments.report.tables import metrics_table
from experiments.vqa.ask import draw_questions
from experiments.vqa.config import VQAConfig
from experiments.vqa.data import Answered, load_questions, load_words
from experiments.vqa.evaluation import definitions, evaluate, save_predictions
from experiments.vqa.model import build

__all__ = ["run", "run_and_show", "run_folder"]


def run_folder(config: VQAConfig) -> Path:
    """Folder of the run."""
    return config.out or Path("runs", "vqa", f"{config.dataset}-{config.model}-{config.guide}-{config.seed}")


@exclusive
def run(config: VQAConfig) -> dict[str, float]:
    """Train, evaluate and save; what is in the folder already is not computed again when resuming.

    Returns:
        The numbers of metrics.json, which says what they are.

    Raises:
        UserError: Data, options or folder are not right.
        KeyboardInterrupt: Stopped by Ctrl-C or SIGTERM; ``resume`` continues.
    """
    folder = run_folder(config)
    with user_errors(ValueError, OSError):
        questions = load_questions(config)
        metrics = open_training(folder, config)
        if metrics is not None:
            return metrics
        words = load_words(folder, questions["train"], answers=config.answers)
        trained = build(config, words, questions["train"])
        data = {part: Answered(found, words, config.likelihood, seed=config.seed) for part, found in questions.items()}
    train, val = data["train"].answerable(), data["val"].answerable()
    fitted = fit_batches(
        config,
        trained.module,
        train.loader(sentences=config.batch_size, seed=config.seed),
        val.loader(sentences=256, shuffle=False),
        folder=folder,
        patience=config.patience,
    )
    trained.module.eval()
    evaluation = evaluate(trained, data)
    save_predictions(folder / "predictions.npz", evaluation)
    best = fitted.history[fitted.best_epoch]
    metrics = {
        **evaluation.metrics,
        **{name: best[name] for name in ("val_accuracy", "val_loss")},
        **fitted.metrics,
        "train_questions": len(train),
        "parameters": trained.parameters,
    }
    write_metrics(folder, metrics, definitions(metrics))
    return metrics


def run_and_show(config: VQAConfig) -> None:
    """The script: table on the terminal, and pictures of three test questions."""
    metrics, folder = run(config), run_folder(config)
    pictures = draw_questions(folder, 3, device=config.device)
    print("", metrics_table(metrics), "", f"saved in {folder}", *pictures, sep="\n")
