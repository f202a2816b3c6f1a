"""Fine-tune a pretrained transformer to answer questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.datasets.text.squad import load_squad
from experiments.finetune.config import QaConfig
from experiments.finetune.data import share_of
from experiments.finetune.pretrained import load_tokenizer
from experiments.finetune.qa.evaluation import definitions, evaluate
from experiments.finetune.qa.model import QaTuned, build
from experiments.finetune.qa.windows import Windows
from experiments.finetune.train import FineTuneTask
from experiments.harness.training import Fitted
from experiments.run import run_and_show

__all__ = ["QaTask", "train"]


class QaTask(FineTuneTask[QaConfig, Windows, QaTuned]):
    """Answers to questions as spans of a text."""

    config = QaConfig
    prefix = "squad-"

    def load(self, config: QaConfig) -> dict[str, Windows]:
        questions = load_squad(
            config.task, data_root=config.data_root, train_file=config.train_file, test_file=config.test_file
        )
        chosen = share_of(len(questions["train"]), config.train_share, seed=config.seed)
        questions["train"] = [questions["train"][place] for place in chosen.tolist()]
        tokenizer = load_tokenizer(config.model)
        return {part: Windows(asked, tokenizer, config, train=part == "train") for part, asked in questions.items()}

    def network(self, config: QaConfig, *, lengths: Sequence[int] = (1,)) -> QaTuned:
        return build(config, lengths=lengths)

    def fit(self, trained: QaTuned, data: Mapping[str, Windows], folder: Path) -> Fitted:
        trained.module.validation = data["val"]
        return super().fit(trained, data, folder)

    def scores(self, trained: QaTuned, data: Mapping[str, Windows], folder: Path) -> dict[str, float]:
        metrics = evaluate(trained, data, folder) | {"left_out": data["train"].left_out}
        for part, windows in data.items():
            metrics[f"{part}_questions"] = len(windows.questions)
            metrics[f"{part}_without_answer"] = sum(not question.answers for question in windows.questions)
            metrics[f"{part}_windows"] = len(windows)
        return metrics

    def definitions(self, metrics: Mapping[str, float]) -> Mapping[str, str]:
        return definitions(metrics)


def train(config: QaConfig) -> None:
    """The command."""
    run_and_show(QaTask(), config)
