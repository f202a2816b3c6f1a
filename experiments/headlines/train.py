"""Headlines by a Transformer with latent attention: train a network and evaluate it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from experiments.datasets.text.batches import BucketSampler, batch_loader
from experiments.datasets.text.headlines import HeadlineText
from experiments.datasets.text.vocabulary import Vocabulary
from experiments.files import read_text, write_text
from experiments.harness.training import Fitted, fit_batches
from experiments.headlines.config import HeadlineConfig
from experiments.headlines.data import LeadSampler, TrainingPairs, first_headlines, load_texts
from experiments.headlines.evaluation import definitions, evaluate
from experiments.headlines.model import TrainedWriter, build, load_vocabulary
from experiments.report.tables import metrics_table
from experiments.run import Task, run_and_show
from experiments.sequence.learned import print_verdict

__all__ = ["HeadlineTask", "summaries", "train"]

SUMMARIES = "summaries.txt"


class HeadlineTask(Task[HeadlineConfig, Mapping[str, HeadlineText], TrainedWriter]):
    """Headlines of texts."""

    config = HeadlineConfig
    script = "experiments.headlines"

    def folder(self, config: HeadlineConfig) -> str:
        return f"headlines/{config.normalizer}-{config.guide}-{config.seed}"

    def planned(self, config: HeadlineConfig) -> bool:  # noqa: ARG002
        return True

    def load(self, config: HeadlineConfig) -> Mapping[str, HeadlineText]:
        return load_texts(config)

    def build(self, config: HeadlineConfig, data: Mapping[str, HeadlineText], folder: Path) -> TrainedWriter:
        return build(config, load_vocabulary(config, folder, data["train"]))

    def restore(self, config: HeadlineConfig, folder: Path) -> TrainedWriter:
        return build(config, Vocabulary.load(folder / "vocabulary.json"))

    def fit(self, trained: TrainedWriter, data: Mapping[str, HeadlineText], folder: Path) -> Fitted:
        config = trained.config
        pairs = TrainingPairs(data["train"], trained.vocabulary, config)
        val = first_headlines(data["val"], trained.vocabulary, config)
        sampler = LeadSampler(pairs, lead_epochs=config.lead_epochs, sentences=config.batch_size, seed=config.seed)
        in_order = BucketSampler(val.lengths, sentences=config.batch_size, shuffle=False)
        loaders = batch_loader(pairs, sampler), batch_loader(val, in_order)
        return fit_batches(config, trained.module, *loaders, folder=folder, patience=config.patience)

    def evaluate(
        self, trained: TrainedWriter, data: Mapping[str, HeadlineText], fitted: Fitted, folder: Path
    ) -> dict[str, float]:
        metrics, headlines = evaluate(trained, data, fitted)
        write_text(folder / SUMMARIES, "".join(f"{headline}\n" for headline in headlines))
        return metrics

    def definitions(self, metrics: Mapping[str, float]) -> Mapping[str, str]:
        return definitions(metrics)

    def show(self, config: HeadlineConfig, metrics: Mapping[str, float], folder: Path) -> None:
        print(metrics_table(metrics))
        print_verdict(metrics)
        test = load_texts(config)["test"]
        for text, people, network in list(zip(test.texts, test.headlines, summaries(folder), strict=True))[:3]:
            print(f"\ntext:      {text}\npeople:    {people[0]}\nnetwork:   {network}")


def summaries(folder: Path) -> list[str]:
    """The headlines that a finished run has written of the test texts, in their order.

    Raises:
        UserError: They cannot be read.
    """
    return read_text(folder / SUMMARIES, "remove the folder to train again").split("\n")[:-1]


def train(config: HeadlineConfig) -> None:
    """The command."""
    run_and_show(HeadlineTask(), config)
