"""Fine-tune a pretrained encoder to classify sentences."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from experiments.datasets.text.sst2 import CLASSES, load_sst2
from experiments.files import UserError, user_errors
from experiments.harness.folder import exclusive, open_run
from experiments.harness.results import read_metrics, write_metrics
from experiments.harness.training import FITTED, OneCycleTraining, PriorFactory, Trained, fit_batches, seeded_build
from experiments.pretrain.config import FinetuneConfig
from experiments.pretrain.data import LabelledBatch, LabelledSentences
from experiments.pretrain.evaluation import mean_probabilities
from experiments.pretrain.model import TrainedEncoder, load_trained
from experiments.report.classification import SCORES, score
from experiments.report.tables import metrics_table
from experiments.sequence.encoder import text_encoder
from models.text import TextClassifier
from pyro_attention import predict

__all__ = ["FinetuneConfig", "run", "run_and_show", "run_folder"]

_DEFINITIONS = {f"test_{name}": f"{text}; test sentences, mean probability over posterior samples (num_samples of the "
    "configuration; for soft plain)" for name, text in SCORES.items()} | {
    "test_accuracy_before": "the same accuracy ahead of all fine-tuning: its output layer is random",
    "val_accuracy": "fraction of correct classes on the validation sentences at the best epoch, attention at its mean",
    **FITTED,
}  # fmt: skip


class _Training(OneCycleTraining):
    def observations(self, batch: LabelledBatch) -> int:
        return len(batch.labels)

    def evaluate(self, batch: LabelledBatch) -> dict[str, Tensor]:
        logits = predict(self.objective.guide, *batch, num_samples=1, noise="none").mean
        loss = torch.nn.functional.cross_entropy(logits, batch.labels)
        return {"loss": loss, "accuracy": (logits.argmax(-1) == batch.labels).float().mean()}


def run_folder(config: FinetuneConfig) -> Path:
    """Folder of the run."""
    start = "none" if config.init_from is None else config.init_from.name
    name = f"sst2-{start}{'-scratch' * config.scratch}-{config.seed}"
    return config.out or Path("runs", "finetune", name)


@exclusive
def run(config: FinetuneConfig) -> dict[str, float]:
    """Fine-tune, evaluate and save; what is in the folder already is not computed again when resuming.

    Returns:
        The numbers of metrics.json, which says what they are.

    Raises:
        UserError: Data, options or folder are not right.
        KeyboardInterrupt: Stopped by Ctrl-C; ``resume`` continues.
    """
    if config.init_from is None:
        raise UserError("init_from is missing, expected --init-from RUN, the folder of a run of experiments.pretrain")
    folder = run_folder(config)
    with user_errors(ValueError, OSError):
        texts = load_sst2(train=config.train, data_root=config.data_root)
        start = load_trained(config.init_from, device=config.device)
        open_run(folder, config)
        length = start.config.length
        data = {split: LabelledSentences(text, start.vocabulary, length=length) for split, text in texts.items()}
    metrics = read_metrics(folder)
    if metrics is not None:
        return metrics
    trained: Trained[FinetuneConfig, TextClassifier] = Trained(config, _build(config, start))
    before, labels = _probabilities(trained, data["test"])
    fitted = fit_batches(
        config,
        trained.module,
        data["train"].loader(sentences=config.batch_size, seed=config.seed),
        data["val"].loader(sentences=100, shuffle=False),
        folder=folder,
        patience=config.max_epochs,
        monitor={"val_accuracy": "max"},
    )
    after, _ = _probabilities(trained, data["test"])
    metrics = {f"test_{name}": value for name, value in score(after, labels).items()} | {
        "test_accuracy_before": score(before, labels)["accuracy"],
        "val_accuracy": fitted.history[fitted.best_epoch]["val_accuracy"],
        **fitted.metrics,
        "parameters": trained.parameters,
    }
    write_metrics(folder, metrics, _DEFINITIONS)
    return metrics


def _build(config: FinetuneConfig, start: TrainedEncoder) -> _Training:
    scheme = start.config.build_scheme(**({} if config.kl_weight is None else {"kl_weight": config.kl_weight}))

    def make(prior: PriorFactory) -> TextClassifier:
        encoder = text_encoder(start.config, start.vocabulary, prior)
        return TextClassifier(encoder, len(CLASSES), pooling=config.pooling, dropout=start.config.dropout)

    model = seeded_build(make, scheme.prior, seed=config.seed)
    if not config.scratch:
        model.encoder.load_state_dict(start.model.encoder.state_dict())
    return _Training(model, scheme.guide(model), scheme.elbo, learning_rate=config.learning_rate).to(start.device)


def _probabilities(trained: Trained[FinetuneConfig, TextClassifier], data: LabelledSentences) -> tuple[Tensor, Tensor]:
    """Class probabilities ``[sentences, classes]`` and labels."""
    batches = list(data.batches(trained.device))
    found = [mean_probabilities(trained, batch, lambda logits: logits.softmax(-1)) for batch in batches]
    return torch.cat(found), torch.cat([batch.labels for batch in batches])


def run_and_show(config: FinetuneConfig) -> None:
    """The script: table on the terminal."""
    metrics = run(config)
    print(
        f"{metrics_table(metrics)}\n\ntest accuracy before fine-tuning {metrics['test_accuracy_before']:.4f}, "
        f"after {metrics['test_accuracy']:.4f}; saved in {run_folder(config)}"
    )
