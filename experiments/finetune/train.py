"""Fine-tune a pretrained transformer on a task of GLUE; what its trainings share with those on questions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from experiments.finetune.config import GlueConfig, QaConfig
from experiments.finetune.data import EncodedPairs, EncodedTexts, load_texts
from experiments.finetune.evaluation import definitions, evaluate, kinds, outputs_of, save_predictions
from experiments.finetune.model import FineTuned, Tuned, build
from experiments.finetune.pretrained import load_tokenizer
from experiments.harness.training import Fitted, fit_batches
from experiments.harness.weights import remove_weights
from experiments.run import Task, run_and_show

__all__ = ["FineTuneTask", "GlueTask", "train"]

Config = TypeVar("Config", bound=GlueConfig | QaConfig)
Texts = TypeVar("Texts", bound=EncodedTexts[Any])
Network = TypeVar("Network", bound=Tuned[Any, Any])


class FineTuneTask(Task[Config, Mapping[str, Texts], Network]):
    """Fine-tuning, whatever the task: a network is built of its pretrained model alone."""

    script = "experiments.finetune"
    prefix = ""  # of the task in the name of a folder

    @abstractmethod
    def network(self, config: Config, *, lengths: Sequence[int] = (1,)) -> Network:
        """The network with its pretrained weights; ``lengths`` are the tokens of every training text."""

    @abstractmethod
    def scores(self, trained: Network, data: Mapping[str, Texts], folder: Path) -> dict[str, float]:
        """Scores of the test part; predictions are put into the folder."""

    def folder(self, config: Config) -> str:
        row = config.guide if config.guide == "soft" else f"{config.guide}-{config.prior}"
        return f"finetune/{self.prefix}{config.task}-{config.model_name}-{row}-{config.seed}"

    def build(self, config: Config, data: Mapping[str, Texts], folder: Path) -> Network:  # noqa: ARG002
        return self.network(config, lengths=data["train"].lengths)

    def restore(self, config: Config, folder: Path) -> Network:  # noqa: ARG002
        return self.network(config)

    def fit(self, trained: Network, data: Mapping[str, Texts], folder: Path) -> Fitted:
        """Train for all epochs, as the learning rate is planned over them, and keep the last one.

        The validation parts of small tasks have a few hundred examples: the best of their scores is often that of an
        epoch in which the network still gave nearly all examples to the larger class.
        """
        config = trained.config
        train = data["train"].loader(sentences=config.batch_size, seed=config.seed)
        val = data["val"].loader(sentences=64, shuffle=False)
        return fit_batches(
            config, trained.module, train, val, folder=folder, patience=config.max_epochs,
            monitor={"val_score": "max"}, keep="last",
        )  # fmt: skip

    def evaluate(self, trained: Network, data: Mapping[str, Texts], fitted: Fitted, folder: Path) -> dict[str, float]:
        last = fitted.history[fitted.best_epoch]
        metrics = self.scores(trained, data, folder) | {name: last[name] for name in ("val_score", "val_loss")}
        # three times the weights, and nothing goes on from it
        (folder / "checkpoints" / "last.ckpt").unlink(missing_ok=True)
        if not trained.config.keep_weights:
            remove_weights(folder)
        return metrics

    def planned(self, config: Config) -> bool:  # noqa: ARG002
        return True


class GlueTask(FineTuneTask[GlueConfig, EncodedPairs, FineTuned]):
    """Classes or grades of sentences, or of pairs of them."""

    config = GlueConfig

    def load(self, config: GlueConfig) -> dict[str, EncodedPairs]:
        texts, tokenizer = load_texts(config), load_tokenizer(config.model)
        return {part: EncodedPairs(text, tokenizer, length=config.length) for part, text in texts.items()}

    def network(self, config: GlueConfig, *, lengths: Sequence[int] = (1,)) -> FineTuned:
        return build(config, lengths=lengths)

    def scores(self, trained: FineTuned, data: Mapping[str, EncodedPairs], folder: Path) -> dict[str, float]:
        config = trained.config
        parts = ("val", "test", *config.out_of_domain)
        outputs = {
            kind: {part: outputs_of(trained, data[part], kind, num_samples=config.num_samples) for part in parts}
            for kind in kinds(config.guide)
        }
        labels = {part: data[part].labels for part in ("val", "test")}
        save_predictions(folder / "predictions.npz", outputs, labels)
        examples = len(data["train"])
        noisy = round(config.label_noise * examples)
        return evaluate(trained, outputs, labels) | {"train_examples": examples, "noisy_labels": noisy}

    def definitions(self, metrics: Mapping[str, float]) -> Mapping[str, str]:
        return definitions(metrics)


def train(config: GlueConfig) -> None:
    """The command."""
    run_and_show(GlueTask(), config)
