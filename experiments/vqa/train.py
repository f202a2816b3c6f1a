"""Answers to questions about photographs, by a network with latent attention to their regions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from experiments.datasets.questions.data import Questions
from experiments.harness.training import Fitted, fit_batches
from experiments.report.tables import metrics_table
from experiments.run import Task, run_and_show
from experiments.vqa.accuracy import guesses
from experiments.vqa.ask import draw_questions
from experiments.vqa.config import VQAConfig
from experiments.vqa.data import load_questions, load_words
from experiments.vqa.evaluation import definitions, evaluate, save_predictions
from experiments.vqa.model import TrainedAnswers, build

__all__ = ["VQATask", "train"]


class VQATask(Task[VQAConfig, Mapping[str, Questions], TrainedAnswers]):
    """Questions about photographs, or about scenes of digits."""

    config = VQAConfig
    script = "experiments.vqa"

    def folder(self, config: VQAConfig) -> str:
        return f"vqa/{config.dataset}-{config.model}-{config.guide}-{config.seed}"

    def load(self, config: VQAConfig) -> Mapping[str, Questions]:
        return load_questions(config)

    def build(self, config: VQAConfig, data: Mapping[str, Questions], folder: Path) -> TrainedAnswers:
        return build(config, load_words(folder, data["train"], answers=config.answers), data["train"])

    def fit(self, trained: TrainedAnswers, data: Mapping[str, Questions], folder: Path) -> Fitted:
        config = trained.config
        train, val = (trained.answered(data[part]).answerable() for part in ("train", "val"))
        loaders = (
            train.loader(sentences=config.batch_size, seed=config.seed), val.loader(sentences=256, shuffle=False)
        )  # fmt: skip
        return fit_batches(config, trained.module, *loaders, folder=folder, patience=config.patience)

    def evaluate(
        self, trained: TrainedAnswers, data: Mapping[str, Questions], fitted: Fitted, folder: Path
    ) -> dict[str, float]:
        evaluation = evaluate(trained, data)
        save_predictions(folder / "predictions.npz", evaluation)
        best = fitted.history[fitted.best_epoch]
        return {
            **evaluation.metrics,
            **guesses(data["train"], data["test"]),
            **{name: best[name] for name in ("val_accuracy", "val_loss")},
            "train_questions": len(trained.answered(data["train"]).answerable()),
        }

    def definitions(self, metrics: Mapping[str, float]) -> Mapping[str, str]:
        return definitions(metrics)

    def show(self, config: VQAConfig, metrics: Mapping[str, float], folder: Path) -> None:
        print(metrics_table(metrics), "", *draw_questions(folder, 3, device=config.device), sep="\n")


def train(config: VQAConfig) -> None:
    """The command."""
    run_and_show(VQATask(), config)
