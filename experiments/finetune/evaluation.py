"""Scores of a fine-tuned model: the task's own metrics, calibration before and after scaling, uncertainty."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from experiments.datasets.text.glue import GLUE
from experiments.files import write_atomic
from experiments.finetune.data import EncodedPairs
from experiments.finetune.metrics import METRICS, definition, glue_scores
from experiments.finetune.model import FineTuned, predictions
from experiments.harness.training import FITTED
from experiments.report.classification import SCALED_SCORES, SCORES, score, score_scaled
from pyro_attention.analysis import decompose_uncertainty, fit_temperature, max_probability, selective_accuracy
from pyro_attention.posterior.predictive import Noise, seeded

__all__ = [
    "KINDS", "MEASURES", "OTHERS", "RISKS", "auroc_scores", "definitions", "evaluate", "kinds", "outputs_of",
    "save_predictions",
]  # fmt: skip

Outputs = Mapping[str, Mapping[str, Tensor]]
"""Outputs ``[S, items, outputs]`` by kind of prediction and part; a task that is out of domain is a part too."""

KINDS: dict[str, tuple[Noise, str]] = {
    "mean": ("none", "attention at its mean, no dropout"),
    "attention": ("attention", "mean over posterior samples of the attention"),
    "mc_dropout": ("dropout", "mean over dropout masks"),
}
MEASURES = {"entropy": "entropy of the mean probabilities", "mutual_information": "mutual information"}
"""Measures of uncertainty that tell sentences of other tasks."""
RISKS = (50, 80, 90)
"""Coverages of selective prediction in per cent."""
_CLASSES = {
    "aurc": "mean error over all coverages when the most confident are kept (area under risk-coverage)",
    **{
        f"risk_{percent}": f"error on the {percent} % of the items with the highest probability of the top class"
        for percent in RISKS
    },
    "entropy": "of the mean probabilities, mean over items, nats",
    "mutual_information": "of class and noise, mean over items, nats",
}
_GRADES = {
    "mse": "mean squared error of the mean grade",
    "nll": "mean negative log density of the grade, the mean of Normals around the samples of it with standard "
    "deviation 1, nats",
    "scaled_nll": "the same with the standard deviation of least NLL on the validation part",
}
OTHERS = {
    "val_score": "the task's first metric on the validation part after the last epoch, attention at its mean",
    "val_loss": "cross-entropy, or mean squared error, on the validation part after the last epoch, attention at its "
    "mean",
    **FITTED,
    "train_examples": "number of training examples",
    "noisy_labels": "number of training labels that were replaced",
}
_BATCH = 64


def kinds(guide: str) -> tuple[str, ...]:
    """Kinds of predictions of a model with this guide."""
    return ("mean", "mc_dropout") if guide == "soft" else ("mean", "attention")


def definitions(metrics: Mapping[str, float]) -> dict[str, str]:
    """What every metric means; ``test_KIND_NAME`` is one of a kind of prediction."""
    texts = dict(OTHERS)
    for kind, (_, how) in KINDS.items():
        names = {name: definition(name) for task in METRICS for name in METRICS[task]}
        names = _GRADES | SCORES | SCALED_SCORES | _CLASSES | names
        texts |= {f"test_{kind}_{name}": f"{text}; test part; {how}" for name, text in names.items()}
        texts[f"{kind}_temperature"] = f"temperature of least NLL on the validation part; {how}"
        for name, measure in product(GLUE, MEASURES):
            texts[f"auroc_{kind}_{name}_{measure}"] = (
                f"area under the ROC curve of telling test sentences of {GLUE[name].title} from those of this task by "
                f"the larger {MEASURES[measure]}; {how}"
            )
        texts[f"{kind}_scale"] = f"standard deviation of least NLL on the validation part; {how}"
    return {name: texts[name] for name in metrics}


def outputs_of(trained: FineTuned, data: EncodedPairs, kind: str, *, num_samples: int) -> Tensor:
    """Outputs ``[S, items, outputs]`` of one kind, in the order of the data."""
    noise, _ = KINDS[kind]
    samples = 1 if noise == "none" else num_samples
    found: list[Tensor] = [torch.empty(0)] * len(data)
    with seeded(trained.config.seed):
        for places, batch in data.batches(trained.device, sentences=_BATCH):
            outputs = trained.module.outputs(batch.inputs, num_samples=samples, noise=noise).cpu()
            for column, place in enumerate(places):
                found[place] = outputs[:, column]
    return torch.stack(found, 1)


def evaluate(trained: FineTuned, outputs: Outputs, labels: Mapping[str, Tensor]) -> dict[str, float]:
    """Scores of the test part; what is fitted, temperature and standard deviation, is fitted to the validation part."""
    task = trained.config.task
    metrics = dict[str, float]()
    for kind, parts in outputs.items():
        mean = (parts["test"] if GLUE[task].regression else parts["test"].softmax(-1)).mean(0)
        found: dict[str, float] = glue_scores(task, predictions(mean).numpy(), labels["test"].numpy())
        if GLUE[task].regression:
            found |= _grade_scores(parts, labels)
            metrics[f"{kind}_scale"] = found.pop("scale")
        else:
            found |= _class_scores(parts, labels)
            metrics[f"{kind}_temperature"] = found.pop("temperature")
        metrics |= {f"test_{kind}_{name}": value for name, value in found.items()}
        for name in trained.config.out_of_domain:
            areas = auroc_scores(parts["test"], parts[name])
            metrics |= {f"auroc_{kind}_{name}_{measure}": area for measure, area in areas.items()}
    return metrics


def auroc_scores(own: Tensor, foreign: Tensor) -> dict[str, float]:
    """Area under the ROC curve of telling foreign examples by their larger uncertainty; 0.5 is chance.

    Args:
        own: Logits ``[S, items, classes]``.
        foreign: Logits of the others.
    """
    parts = [decompose_uncertainty(logits.softmax(-1)) for logits in (own, foreign)]
    truth = np.repeat([0, 1], [own.size(1), foreign.size(1)])
    measures = {"entropy": "total"} | ({"mutual_information": "mutual_information"} if len(own) > 1 else {})
    return {
        name: float(roc_auc_score(truth, torch.cat([getattr(part, attribute) for part in parts]).numpy()))
        for name, attribute in measures.items()
    }


def _class_scores(parts: Mapping[str, Tensor], labels: Mapping[str, Tensor]) -> dict[str, float]:
    probabilities = parts["test"].softmax(-1)
    scaling = fit_temperature(parts["val"], labels["val"])
    uncertainty = decompose_uncertainty(probabilities)
    correct = probabilities.mean(0).argmax(-1) == labels["test"]
    found = score(probabilities, labels["test"]) | score_scaled(scaling, parts["test"], labels["test"])
    selective = selective_accuracy(max_probability(probabilities), correct)
    found |= {f"risk_{percent}": 1 - selective.accuracy_at(percent / 100) for percent in RISKS}
    found |= {
        "aurc": selective.area,
        "entropy": uncertainty.total.mean().item(),
        "temperature": scaling.temperature,
    }
    if len(probabilities) > 1:
        found["mutual_information"] = uncertainty.mutual_information.mean().item()
    return found


def _grade_scores(parts: Mapping[str, Tensor], labels: Mapping[str, Tensor]) -> dict[str, float]:
    grades = {part: samples[..., 0].double() for part, samples in parts.items()}
    scale = min((math.exp(step / 50) for step in range(-150, 101)), key=lambda s: _nll(grades["val"], labels["val"], s))
    return {
        "mse": (grades["test"].mean(0) - labels["test"]).square().mean().item(),
        "nll": _nll(grades["test"], labels["test"], 1.0),
        "scaled_nll": _nll(grades["test"], labels["test"], scale),
        "scale": scale,
    }


def _nll(grades: Tensor, labels: Tensor, scale: float) -> float:
    """Mean negative log density of grades under the mean of Normals around samples ``[S, items]``."""
    log_density = torch.distributions.Normal(grades, scale).log_prob(labels.double())
    return -(log_density.logsumexp(0) - math.log(len(grades))).mean().item()


def save_predictions(path: Path, outputs: Outputs, labels: Mapping[str, Tensor]) -> None:
    """Write outputs as ``KIND_PART [S, items, outputs]`` and labels as ``labels_PART``, in the order of the files."""
    arrays: dict[str, Any] = {
        f"{kind}_{part}": found.float().numpy() for kind, parts in outputs.items() for part, found in parts.items()
    }
    arrays |= {f"labels_{part}": found.numpy() for part, found in labels.items()}
    write_atomic(path, lambda file: np.savez_compressed(file, **arrays))
