"""GLUE: examples as tokens with noise in their labels, training, scores of classes and grades, and the task."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef, roc_auc_score
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

from experiments.data.dataset_names import GlueName
from experiments.data.text.glue import GLUE, LabeledPairs, load_glue
from experiments.files import UserError, write_atomic
from experiments.finetune.config import GlueConfig
from experiments.finetune.model import ClassTraining, EncodedTexts, FineTuneTask, Tuned, kinds, load_tokenizer, share_of
from experiments.report.statistics import KINDS, score, score_scaled
from experiments.run import show_run
from models.transformers import PairModel
from pyro_attention.analysis import decompose_uncertainty, fit_temperature, selective_accuracy
from pyro_attention.posterior.predictive import seeded

Array = NDArray[Any]
METRICS: Mapping[GlueName, tuple[str, ...]] = {
    "rte": ("accuracy",),
    "mrpc": ("f1", "accuracy"),
    "cola": ("matthews", "accuracy"),
    "sst2": ("accuracy",),
    "stsb": ("pearson", "spearman"),
    "mnli": ("accuracy",),
    "qnli": ("accuracy",),
    "qqp": ("accuracy", "f1"),
    "wnli": ("accuracy",),
}
"""Metrics of each task; tables and searches compare rows by the first one."""
MEASURES = ("entropy", "mutual_information")
"""Measures of uncertainty by which sentences of other tasks are recognized."""
RISKS = (50, 80, 90)
"""Coverages of selective prediction in per cent."""


# examples


class PairBatch(NamedTuple):
    """Arguments of a :class:`PairModel`, and the indices of the examples."""

    inputs: dict[str, Tensor]  # outputs of the tokenizer [B, N], by the names of the network's arguments
    labels: Tensor  # classes or grades [B]
    indices: Tensor  # indices of the examples [B]


class EncodedPairs(EncodedTexts[PairBatch]):
    """Examples of GLUE as tokens, cut off at a length."""

    def __init__(self, text: LabeledPairs, tokenizer: Any, *, length: int) -> None:
        encoded = tokenizer(text.first, text.second, truncation=True, max_length=length, padding=False)
        names = [name for name in tokenizer.model_input_names if name in encoded]
        rows = [{name: torch.tensor(encoded[name][index]) for name in names} for index in range(len(text))]
        super().__init__(rows, tokenizer)
        self.labels = text.labels

    def __getitem__(self, index: tuple[int, Sequence[int]]) -> PairBatch:
        _, indices = index
        return PairBatch(self.padded(indices), self.labels[list(indices)], torch.tensor(indices))


def load_texts(config: GlueConfig) -> dict[str, LabeledPairs]:
    """Load the parts of a task by name, and the test parts of the tasks out of domain by the names of the tasks.

    The training part is cut to ``train_share``, and ``label_noise`` of its labels are replaced. Where the task has
    single sentences, a task of pairs out of domain gives its first sentences.
    """
    spec, parts = GLUE[config.task], load_glue(config.task, data_root=config.data_root)
    train, pairs = parts["train"], spec.second is not None
    if config.train_share < 1:
        train = train.select(share_of(len(train), config.train_share, seed=config.seed))
    labels = noisy_labels(train.labels, config.label_noise, classes=len(spec.classes), seed=config.seed)
    parts["train"] = LabeledPairs(train.first, train.second, labels)
    for name in config.out_of_domain:
        text = load_glue(name, data_root=config.data_root)["test"]
        if spec.regression or name == config.task or (pairs and text.second is None):
            raise UserError(
                f"out_of_domain is {name} for {config.task}; expected another task, with pairs of sentences if "
                f"{config.task} has pairs, and a task with classes"
            )
        parts[name] = LabeledPairs(text.first, text.second if pairs else None, torch.zeros_like(text.labels).long())
    return parts


def noisy_labels(labels: Tensor, share: float, *, classes: int, seed: int) -> Tensor:
    """Replace a share of the labels: a class by another random class, a grade by the grade of a random example.

    A larger share replaces the labels of a smaller one too. ``classes`` is the number of classes, or 0 for grades.

    Example:
        >>> noisy_labels(torch.tensor([0, 1, 1, 0]), 0.5, classes=2, seed=0).ne(torch.tensor([0, 1, 1, 0])).sum().item()
        2
    """
    generator = torch.Generator().manual_seed(seed)
    indices = torch.randperm(len(labels), generator=generator)[: round(share * len(labels))]
    noisy = labels.clone()
    if classes:
        noisy[indices] = (labels[indices] + torch.randint(1, classes, indices.shape, generator=generator)) % classes
    else:
        noisy[indices] = labels[torch.randint(len(labels), indices.shape, generator=generator)]
    return noisy


# training


class PairTraining(ClassTraining):
    """Training of a :class:`PairModel`; it takes the arguments of :class:`FineTuning`."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.task = parts[-1].task

    def arguments(self, batch: PairBatch) -> Sequence[Any]:
        return batch[:2]

    def on_validation_epoch_end(self) -> None:
        """Log the score and the loss over all validation examples: most scores are no means over batches."""
        logits, labels = self.validated()
        predicted = predictions(logits)
        loss = nn.functional.cross_entropy if logits.size(-1) > 1 else nn.functional.mse_loss
        self.log("val_loss", loss(logits if logits.size(-1) > 1 else predicted, labels))
        self.log("val_score", glue_scores(self.task, predicted.numpy(), labels.numpy())[METRICS[self.task][0]])


def predictions(outputs: Tensor) -> Tensor:
    """Return the class of every example, or its grade, ``[items]``, from outputs ``[items, outputs]``."""
    return outputs.argmax(-1) if outputs.size(-1) > 1 else outputs[..., 0]


FineTuned: TypeAlias = Tuned[GlueConfig, PairModel]


# scores


def glue_scores(task: GlueName, predicted: Array, labels: Array) -> dict[str, float]:
    """Return the official metrics of predicted classes, or grades, ``[items]``.

    A correlation or F1 that does not exist, because all predictions are equal, counts as 0.

    Example:
        >>> glue_scores("cola", np.array([1, 1, 0, 1]), np.array([1, 1, 0, 0]))
        {'matthews': 0.577..., 'accuracy': 0.75}
    """
    scores: dict[str, Callable[[], float]] = {
        "accuracy": lambda: accuracy_score(labels, predicted),
        "f1": lambda: f1_score(labels, predicted, zero_division=0.0),
        "matthews": lambda: matthews_corrcoef(labels, predicted),
        "pearson": lambda: _correlation(predicted, labels),
        "spearman": lambda: _correlation(rankdata(predicted), rankdata(labels)),
    }
    return {name: float(scores[name]()) for name in METRICS[task]}


def _correlation(predicted: Array, labels: Array) -> float:
    return float(np.corrcoef(predicted, labels)[0, 1]) if np.ptp(predicted) and np.ptp(labels) else 0.0


def outputs_of(trained: Tuned[Any, Any], data: EncodedTexts[Any], kind: str, *, num_samples: int) -> Tensor:
    """Return the outputs ``[S, items, outputs]`` of a kind of prediction, in the order of the data.

    The last argument of the model, which holds the labels, is left out.
    """
    noise = KINDS[kind]
    samples = 1 if noise == "none" else num_samples
    outputs, indices = list[Tensor](), list[Tensor]()
    with seeded(trained.config.seed):
        for batch in data.batches(trained.device, sentences=64):
            inputs = trained.module.arguments(batch)[:-1]
            outputs.append(trained.module.outputs(*inputs, num_samples=samples, noise=noise).cpu())
            indices.append(batch.indices.cpu())
    return torch.cat(outputs, 1)[:, torch.cat(indices).argsort()]


def auroc_scores(in_domain: Tensor, out_of_domain: Tensor) -> dict[str, float]:
    """Return the areas under the ROC curve of recognizing examples out of domain by their larger uncertainty.

    Logits are ``[S, items, classes]``.
    """
    uncertainty, foreign_uncertainty = (
        decompose_uncertainty(logits.softmax(-1)) for logits in (in_domain, out_of_domain)
    )
    truth = np.repeat([0, 1], [in_domain.size(1), out_of_domain.size(1)])
    pairs = {"entropy": (uncertainty.total, foreign_uncertainty.total)}
    if len(in_domain) > 1:
        pairs["mutual_information"] = uncertainty.mutual_information, foreign_uncertainty.mutual_information
    return {name: float(roc_auc_score(truth, torch.cat(pair).numpy())) for name, pair in pairs.items()}


def class_scores(parts: Mapping[str, Tensor], labels: Mapping[str, Tensor]) -> tuple[dict[str, float], float]:
    """Return the scores of class probabilities, and the temperature that is fitted to the validation part."""
    probabilities = parts["test"].softmax(-1)
    scaling = fit_temperature(parts["val"], labels["val"])
    uncertainty = decompose_uncertainty(probabilities)
    scores = score(probabilities, labels["test"]) | score_scaled(scaling, parts["test"], labels["test"])
    correct = probabilities.mean(0).argmax(-1) == labels["test"]
    selective = selective_accuracy(probabilities.mean(0).amax(-1), correct)
    scores |= {f"risk_{percent}": 1 - selective.accuracy_at(percent / 100) for percent in RISKS}
    scores |= {"aurc": selective.area, "entropy": uncertainty.total.mean().item()}
    if len(probabilities) > 1:
        scores["mutual_information"] = uncertainty.mutual_information.mean().item()
    return scores, scaling.temperature


def grade_scores(parts: Mapping[str, Tensor], labels: Mapping[str, Tensor]) -> tuple[dict[str, float], float]:
    """Return the scores of grades, and the standard deviation that is fitted to the validation part."""
    grades = {part: samples[..., 0].double() for part, samples in parts.items()}

    def nll(part: str, scale: float) -> float:
        log_density = torch.distributions.Normal(grades[part], scale).log_prob(labels[part].double())
        return -(log_density.logsumexp(0) - math.log(len(log_density))).mean().item()

    scale = min((math.exp(step / 50) for step in range(-150, 101)), key=lambda scale: nll("val", scale))
    mse = (grades["test"].mean(0) - labels["test"]).square().mean().item()
    return {"mse": mse, "nll": nll("test", 1.0), "scaled_nll": nll("test", scale)}, scale


class GlueTask(FineTuneTask[GlueConfig, EncodedPairs]):
    """Fine-tuning for classes or grades of sentences, or of pairs of sentences."""

    config = GlueConfig
    head, training = AutoModelForSequenceClassification, PairTraining

    def folder_name(self, config: GlueConfig) -> str:
        return config.task

    def main_metrics(self, config: GlueConfig, metrics: Mapping[str, float]) -> Sequence[str]:  # noqa: ARG002
        scores = [f"test_mean_{name}" for name in METRICS[config.task]]
        return (*scores, "test_mean_nll", "test_mean_ece", "test_mean_mse", "val_score")

    def wrap(self, config: GlueConfig, network: Any) -> PairModel:
        return PairModel(network, pair=config.pooling == "pair")

    def output(self, config: GlueConfig) -> dict[str, Any]:
        labels = dict(enumerate(GLUE[config.task].classes)) or {0: "grade"}
        return {"id2label": labels, "label2id": {name: index for index, name in labels.items()}}

    def load(self, config: GlueConfig) -> dict[str, EncodedPairs]:
        texts, tokenizer = load_texts(config), load_tokenizer(config.pretrained)
        if config.pooling == "pair" and "token_type_ids" not in tokenizer.model_input_names:
            raise UserError(
                f"pooling is pair, but the tokenizer of {config.model} does not mark the second sentence; pass "
                f"--pooling head"
            )
        return {part: EncodedPairs(text, tokenizer, length=config.length) for part, text in texts.items()}

    def scores(self, trained: FineTuned, data: Mapping[str, EncodedPairs], folder: Path) -> dict[str, float]:
        """Return the scores of the test part; temperature and standard deviation are fitted to the validation part.

        predictions.npz gets outputs ``KIND_PART`` and labels ``labels_PART``, in the order of the files.
        """
        config, grades = trained.config, GLUE[trained.config.task].regression
        labels = {part: data[part].labels for part in ("val", "test")}
        arrays: dict[str, Any] = {f"labels_{part}": values.numpy() for part, values in labels.items()}
        metrics: dict[str, float] = {"train_examples": len(data["train"])}
        for kind in kinds(config.guide):
            parts = {
                part: outputs_of(trained, data[part], kind, num_samples=config.num_samples)
                for part in ("val", "test", *config.out_of_domain)
            }
            arrays |= {f"{kind}_{part}": outputs.float().numpy() for part, outputs in parts.items()}
            mean = (parts["test"] if grades else parts["test"].softmax(-1)).mean(0)
            more, fitted = (grade_scores if grades else class_scores)(parts, labels)
            metrics[f"{kind}_scale" if grades else f"{kind}_temperature"] = fitted
            scores = glue_scores(config.task, predictions(mean).numpy(), labels["test"].numpy()) | more
            metrics |= {f"test_{kind}_{name}": value for name, value in scores.items()}
            for name in config.out_of_domain:
                areas = auroc_scores(parts["test"], parts[name])
                metrics |= {f"auroc_{kind}_{name}_{measure}": area for measure, area in areas.items()}
        write_atomic(folder / "predictions.npz", lambda file: np.savez_compressed(file, **arrays))
        return metrics


def train(config: GlueConfig) -> None:
    """Run the command."""
    task = GlueTask()
    show_run(task, config, task.run(config))
