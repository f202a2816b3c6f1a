"""Fine-tune a pretrained encoder to classify sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from experiments.datasets.text.masked_text import EpochSampler, encode_sentences, padded
from experiments.datasets.text.sst2 import CLASSES, LabelledText, load_sst2
from experiments.datasets.text.vocabulary import Vocabulary
from experiments.files import UserError, user_errors
from experiments.harness.folder import exclusive, open_run
from experiments.harness.results import read_metrics, write_environment, write_metrics
from experiments.harness.training import PriorFactory, fit_batches, seeded_build
from experiments.pretrain.config import FinetuneConfig
from experiments.pretrain.evaluation import is_random
from experiments.pretrain.model import TextTraining, Trained, build_encoder, load_trained, scheme_of
from experiments.reporting.classification import SCORES, score
from experiments.reporting.tables import metrics_table
from guides.schemes import build_scheme
from models.text import TextClassifier
from pyro_attention import predict

__all__ = ["FinetuneConfig", "run", "run_folder"]

_DEFINITIONS = {f"test_{name}": f"{text}; test sentences, mean probability over posterior samples (num_samples of the "
    "configuration; for soft plain)" for name, text in SCORES.items()} | {
    "test_accuracy_before": "the same accuracy ahead of all fine-tuning: its output layer is random",
    "val_accuracy": "fraction of correct classes on the validation sentences at the best epoch, attention at its mean",
    "best_epoch": "epoch of the kept weights, counted from 0",
    "epochs": "number of epochs trained",
    "updates": "number of training steps",
    "step_ms": "median over epochs of the mean time of a training step, in milliseconds",
    "parameters": "number of trained parameters, prior networks too",
}  # fmt: skip


class _Batch(NamedTuple):
    """Arguments of a :class:`TextClassifier`."""

    tokens: Tensor
    mask: Tensor
    labels: Tensor


class _Training(TextTraining):
    def observations(self, batch: _Batch) -> int:
        return len(batch.labels)

    def evaluate(self, batch: _Batch) -> dict[str, Tensor]:
        logits = predict(self.objective.guide, *batch, num_samples=1, noise="none").mean
        loss = torch.nn.functional.cross_entropy(logits, batch.labels)
        return {"loss": loss, "accuracy": (logits.argmax(-1) == batch.labels).float().mean()}


class _Encoded(Dataset[_Batch]):
    """Labelled sentences; indexed by an epoch, which does not matter, and a list of places."""

    def __init__(self, text: LabelledText, vocabulary: Vocabulary, length: int) -> None:
        self.rows, self.labels = encode_sentences(text.sentences, vocabulary, length=length), text.labels

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: tuple[int, Sequence[int]]) -> _Batch:
        _, places = index
        return _Batch(*padded([self.rows[place] for place in places]), self.labels[list(places)])

    def sampler(self, **options: Any) -> EpochSampler:
        """Batches of similar lengths."""
        return EpochSampler(self.rows, **options)


def run_folder(config: FinetuneConfig) -> Path:
    """Folder of the run."""
    start = "none" if config.init_from is None else config.init_from.name
    name = f"{config.dataset}-{start}{'-scratch' * config.scratch}-{config.seed}"
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
        data = {split: _Encoded(text, start.vocabulary, length) for split, text in texts.items()}
    metrics = read_metrics(folder)
    if metrics is not None:
        return metrics
    write_environment(folder, start.device)
    module = _build(config, start)
    before = _probabilities(config, module, data["test"])[0]
    sampler = data["train"].sampler(sentences=config.batch_size, seed=config.seed)
    fitted = fit_batches(
        config,
        module,
        DataLoader(data["train"], sampler=sampler, batch_size=None),
        DataLoader(data["val"], sampler=data["val"].sampler(sentences=100, shuffle=False), batch_size=None),
        folder=folder,
        patience=config.max_epochs,
        monitor={"val_accuracy": "max"},
    )
    probabilities, labels = _probabilities(config, module, data["test"])
    metrics = {f"test_{name}": value for name, value in score(probabilities, labels).items()} | {
        "test_accuracy_before": score(before, labels)["accuracy"],
        "val_accuracy": fitted.history[fitted.best_epoch]["val_accuracy"],
        **fitted.metrics,
        "parameters": sum(parameter.numel() for parameter in module.parameters()),
    }
    write_metrics(folder, metrics, _DEFINITIONS)
    return metrics


def _build(config: FinetuneConfig, start: Trained) -> _Training:
    changes = {} if config.kl_weight is None else {"kl_weight": config.kl_weight}
    scheme = scheme_of(start.config, **changes)

    def make(prior: PriorFactory) -> TextClassifier:
        encoder = build_encoder(start.config, start.vocabulary, prior)
        return TextClassifier(encoder, len(CLASSES), pooling=config.pooling, dropout=start.config.dropout)

    model = seeded_build(make, scheme.prior, plain=build_scheme("soft").prior, seed=config.seed)
    if not config.scratch:
        model.encoder.load_state_dict(start.model.encoder.state_dict())
    return _Training(model, scheme.guide(model), scheme.elbo, learning_rate=config.learning_rate).to(start.device)


def _probabilities(config: FinetuneConfig, module: _Training, data: _Encoded) -> tuple[Tensor, Tensor]:
    """Class probabilities ``[sentences, classes]`` and labels."""
    guide, found, labels = module.objective.guide, [], []
    random = is_random(guide)
    for batch in _batches(data, module.device):
        prediction = predict(
            guide, *batch, num_samples=config.num_samples if random else 1, seed=config.seed,
            noise="attention" if random else "none", transform=lambda logits: logits.softmax(-1),
        )  # fmt: skip
        found.append(prediction.mean)
        labels.append(batch.labels)
    return torch.cat(found), torch.cat(labels)


def _batches(data: _Encoded, device: torch.device) -> Iterator[_Batch]:
    for index in data.sampler(sentences=100, shuffle=False):
        yield _Batch(*(tensor.to(device) for tensor in data[index]))


def _run_and_show(config: FinetuneConfig) -> None:
    """The script: table on the terminal."""
    metrics = run(config)
    print(
        f"{metrics_table(metrics)}\n\ntest accuracy before fine-tuning {metrics['test_accuracy_before']:.4f}, "
        f"after {metrics['test_accuracy']:.4f}; saved in {run_folder(config)}"
    )
