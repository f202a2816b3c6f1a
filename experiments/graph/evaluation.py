"""Evaluation of a trained graph attention network: predictions, their calibration, and the attention itself."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from experiments.datasets.graphs.load import GraphData
from experiments.graph.attention import (
    attention_to_other_classes,
    relative_attention,
    relative_entropies,
    uniform_logits,
)
from experiments.graph.model import TrainedGraph
from experiments.harness.training import FITTED, Fitted
from experiments.report.classification import SCALED_SCORES, SCORES, roc_auc, score, score_scaled
from experiments.report.tables import as_table, metrics_table
from pyro_attention import AttentionELBO, Soft, predict, sample_posterior
from pyro_attention.analysis import (
    decompose_uncertainty,
    fit_temperature,
    hybrid_weights,
    max_probability,
    pavpu,
    selective_accuracy,
    split_variance,
)
from pyro_attention.posterior.predictive import Noise, Prediction, seeded

__all__ = [
    "DEFINITIONS",
    "definitions",
    "evaluate",
    "prediction_scores",
    "prediction_table",
]


# Kind of prediction: what varies between its samples, and what it is.
_PREDICTIONS: dict[str, tuple[Noise, str]] = {
    "mean": ("none", "attention at its posterior mean, no dropout"),
    "attention": ("attention", "mean probability over samples of the attention"),
    "mc_dropout": ("dropout", "mean probability over dropout masks, attention at its posterior mean"),
    "both": ("both", "mean probability over samples of the attention and dropout masks"),
}
_SAMPLED = ("attention", "mc_dropout", "both")
_THRESHOLDS = {"01": 0.01, "05": 0.05, "10": 0.1}
_SOURCES = ("attention", "dropout", "interaction")  # of the variance

_SCORES = {"aurc": "mean error over all coverages when the most confident are kept (area under risk-coverage)"}
_TWO_CLASSES = {"roc_auc": "area under the ROC curve of the second of two classes"}
_SAMPLE_SCORES = {
    f"pavpu_{name}": f"PAvPU: accurate and certain or neither; paired t-test on logits of the two top classes over the "
    f"samples, level {level}; accurate: attention at its posterior mean, no dropout"
    for name, level in _THRESHOLDS.items()
} | {"mutual_information": "of class and noise, mean over nodes, nats"}

DEFINITIONS = {
    **{
        f"test_{kind}_{name}": f"{text}; {how}"
        for kind, (_, how) in _PREDICTIONS.items()
        for name, text in (
            SCORES | SCALED_SCORES | _SCORES | _TWO_CLASSES | (_SAMPLE_SCORES if kind in _SAMPLED else {})
        ).items()
    },
    **{
        f"{kind}_temperature": f"temperature of least NLL on the validation nodes; {how}"
        for kind, (_, how) in _PREDICTIONS.items()
    },
    **{
        f"variance_share_{source}": f"share of {source} in the variance of the class probabilities of the test nodes"
        for source in _SOURCES
    },
    "val_accuracy": "accuracy on the validation nodes at the best epoch, attention at its posterior mean",
    "val_roc_auc": "ROC AUC on the validation nodes at the best epoch, attention at its posterior mean",
    "val_loss": "mean negative log-likelihood on the validation nodes at the best epoch, without KL, nats",
    "kl": "KL of the attention, unweighted, summed over edges, heads and layers, nats",
    "kl_gradient_norm": "Euclidean norm of that KL's gradient with respect to all parameters",
    "attention_entropy": "entropy of the mean attention over a node's neighbours and itself, divided by the "
    "logarithm of their number (1 = uniform); mean over nodes with neighbours, heads and layers",
    "uniform_accuracy": "accuracy on the test nodes with uniform attention in place of the learned one, no dropout",
    "uniform_roc_auc": "area under the ROC curve on the test nodes with uniform attention in place of the learned one",
    "other_class_attention": "attention paid to the edges that join different classes, divided by what uniform "
    "attention would pay them (1 = no preference); mean over heads and layers",
    "noise_edge_attention": "attention paid to the edges added as noise, divided by what uniform attention would "
    "pay them; mean over heads and layers",
    **FITTED,
}


def definitions(metrics: Mapping[str, float]) -> dict[str, str]:
    """What the metrics of a network mean, with those that depend on how many layers it has."""
    hybrid = [name for name in metrics if name.startswith("hybrid_")]
    share = "share of doubly normalised attention in {}, mean over heads, at the best epoch"
    return DEFINITIONS | {name: share.format(name.removeprefix("hybrid_")) for name in hybrid}


def evaluate(trained: TrainedGraph, fitted: Fitted) -> tuple[dict[str, float], Tensor]:
    """All metrics of a trained network, which ``DEFINITIONS`` explains, and the logits of its posterior mean.

    With the same weights and seed these are the same numbers. The logits are those of all nodes, ``[N, classes]``.
    """
    guide, inputs, data, num_samples = trained.guide, trained.inputs, trained.data, trained.config.num_samples
    soft = isinstance(guide.family("layers.0"), Soft)
    samples: dict[str, Any] = {}
    for kind, (noise, _) in _PREDICTIONS.items():
        if soft and kind in ("attention", "both"):
            continue
        count, seed = 1 if noise == "none" else num_samples, trained.config.seed
        samples[kind] = predict(guide, *inputs, num_samples=count, noise=noise, keep_samples=True, seed=seed).samples
    metrics: dict[str, float] = {}
    for kind, logits in samples.items():
        metrics |= prediction_scores(kind, logits, data)
        if kind in _SAMPLED and num_samples > 1:
            metrics |= _sample_scores(kind, logits[:, data.test_mask], samples["mean"][0, data.test_mask], data)
    if not soft and num_samples > 1:
        metrics |= _variance_shares(samples, data)
    weights = sample_posterior(guide, *inputs, num_samples=1, noise="none")
    if trained.noise is not None:
        metrics["noise_edge_attention"] = relative_attention(weights, trained.graph, trained.noise)
    others = attention_to_other_classes(weights, trained.graph, data)
    if others is not None:
        metrics["other_class_attention"] = others
    metrics |= {f"uniform_{name}": value for name, value in _quality(uniform_logits(trained), data).items()}
    best = fitted.history[fitted.best_epoch]
    metrics |= {name: best[name] for name in ("val_accuracy", "val_roc_auc", "val_loss") if name in best}
    metrics |= {f"hybrid_{site}": shares.mean().item() for site, shares in hybrid_weights(trained.model).items()}
    metrics |= _kl_and_gradient(trained)
    metrics["attention_entropy"] = fmean(layer.mean().item() for layer in relative_entropies(weights, trained.graph))
    return metrics, samples["mean"][0]


def prediction_scores(kind: str, logits: Tensor, data: GraphData) -> dict[str, float]:
    """Scores of the mean probability before and after temperature scaling, from logits ``[S, N, classes]``."""
    scaling = fit_temperature(logits[:, data.val_mask], data.labels[data.val_mask])
    tested, labels = logits[:, data.test_mask], data.labels[data.test_mask]
    probabilities = tested.softmax(-1).mean(0)
    correct = probabilities.argmax(-1) == labels
    scores = score(probabilities, labels) | score_scaled(scaling, tested, labels)
    if _has_roc_auc(data):
        scores["roc_auc"] = roc_auc(tested.double().softmax(-1).mean(0), labels)
    scores["aurc"] = selective_accuracy(max_probability(probabilities), correct).area
    return {f"test_{kind}_{name}": value for name, value in scores.items()} | {
        f"{kind}_temperature": scaling.temperature
    }


def _quality(logits: Tensor, data: GraphData) -> dict[str, float]:
    """Accuracy, and ROC AUC of two classes, on the test nodes, from logits ``[N, classes]``."""
    tested, labels = logits[data.test_mask], data.labels[data.test_mask]
    found = {"accuracy": (tested.argmax(-1) == labels).float().mean().item()}
    return found | ({"roc_auc": roc_auc(tested.double().softmax(-1), labels)} if _has_roc_auc(data) else {})


def _has_roc_auc(data: GraphData) -> bool:
    return data.num_classes == 2 and len(data.labels[data.test_mask].unique()) == 2


def _sample_scores(kind: str, logits: Tensor, mean_logits: Tensor, data: GraphData) -> dict[str, float]:
    accuracy = mean_logits.argmax(-1) == data.labels[data.test_mask]
    levels = pavpu(logits, accuracy, test="logits", thresholds=tuple(_THRESHOLDS.values()))
    information = decompose_uncertainty(logits.softmax(-1)).mutual_information.mean().item()
    return {f"test_{kind}_pavpu_{name}": levels[level].pavpu for name, level in _THRESHOLDS.items()} | {
        f"test_{kind}_mutual_information": information
    }


def _variance_shares(samples: Mapping[str, Tensor], data: GraphData) -> dict[str, float]:
    def moments(logits: Tensor) -> Prediction:
        probabilities = logits[:, data.test_mask].softmax(-1)
        return Prediction(mean=probabilities.mean(0), variance=probabilities.var(0), num_samples=len(logits))

    attention, dropout, both = (moments(samples[kind]) for kind in ("attention", "mc_dropout", "both"))
    split = split_variance(attention=attention, dropout=dropout, both=both)
    return {f"variance_share_{source}": getattr(split, f"{source}_share") for source in _SOURCES}


def _kl_and_gradient(trained: TrainedGraph) -> dict[str, float]:
    """KL and the norm of its gradient, at one sample of the attention and without dropout."""
    trained.module.eval()
    none_labelled = torch.zeros_like(trained.data.labels, dtype=torch.bool)  # leaves only the KL of the objective
    with seeded(trained.config.seed):
        kl: Tensor = AttentionELBO().differentiable_loss(trained.model, trained.guide, *trained.inputs, none_labelled)
    gradients = torch.autograd.grad(kl, list(trained.module.parameters()), allow_unused=True)
    norms = [gradient.norm() for gradient in gradients if gradient is not None]
    return {"kl": kl.item(), "kl_gradient_norm": torch.stack(norms).norm().item()}


def prediction_table(metrics: Mapping[str, float]) -> str:
    """The test scores as a table, one row a kind of prediction, and the other metrics below."""
    two_classes = _TWO_CLASSES if "test_mean_roc_auc" in metrics else {}
    columns = {**SCORES, **SCALED_SCORES, **_SCORES, **_SAMPLE_SCORES, **two_classes}
    rows: list[dict[str, Any]] = [
        {"prediction": kind, **{name: metrics.get(f"test_{kind}_{name}", "-") for name in columns}}
        for kind in _PREDICTIONS
        if f"test_{kind}_accuracy" in metrics
    ]
    names = ("prediction", *SCORES, *SCALED_SCORES)
    others = {name: value for name, value in metrics.items() if not name.startswith("test_")}
    samples = as_table(rows, ["prediction", *two_classes, *_SCORES, *_SAMPLE_SCORES])
    return f"{as_table(rows, names)}\n\n{samples}\n\n{metrics_table(others)}"
