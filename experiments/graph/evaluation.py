"""Evaluation of a trained graph attention network: predictions, their calibration, and the attention itself."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from experiments.datasets.graphs.load import GraphData
from experiments.graph.model import TrainedGraph
from experiments.harness.training import FITTED, Fitted
from experiments.report.classification import (
    KINDS,
    SAMPLED_SCORES,
    SCALED_SCORES,
    SCORES,
    roc_auc,
    score,
    score_samples,
    score_scaled,
)
from experiments.report.report import as_table, metrics_table
from pyro_attention import (
    AttentionELBO,
    AttentionGuide,
    EdgeList,
    GraphAttention,
    Soft,
    Softmax,
    predict,
    sample_posterior,
)
from pyro_attention.analysis import (
    fit_temperature,
    hybrid_weights,
    max_probability,
    selective_accuracy,
    split_variance,
)
from pyro_attention.posterior.predictive import Prediction, seeded

_SOURCES = ("attention", "dropout", "interaction")  # of the variance

_MORE_SCORES = {
    "roc_auc": "area under the ROC curve of the second of two classes",
    "aurc": "area under the risk-coverage curve: mean error when the most confident are kept",
    **SAMPLED_SCORES,
}
_OTHERS = {
    **{f"variance_share_{source}": f"share of {source} in the variance of the probabilities" for source in _SOURCES},
    "val_accuracy": "accuracy on the validation nodes at the best epoch, attention at its posterior mean",
    "val_roc_auc": "ROC AUC on the validation nodes at the best epoch, attention at its posterior mean",
    "val_loss": "mean negative log-likelihood on the validation nodes at the best epoch, without KL, nats",
    "kl": "KL of the attention, unweighted, summed over edges, heads and layers, nats",
    "attention_entropy": "entropy of a node's mean attention, relative to that of uniform attention",
    "uniform_accuracy": "accuracy on the test nodes with uniform attention in place of the learned one",
    "uniform_roc_auc": "ROC AUC on the test nodes with uniform attention in place of the learned one",
    "other_class_attention": "attention to the edges that join different classes, divided by that of uniform attention",
    "noise_edge_attention": "attention to the edges added as noise, divided by that of uniform attention",
    **FITTED,
}


def definitions(metrics: Mapping[str, float]) -> dict[str, str]:
    """What the metrics of a network mean."""
    texts = dict(_OTHERS)
    for kind, (_, how) in KINDS.items():
        scores = SCORES | SCALED_SCORES | _MORE_SCORES
        texts |= {f"test_{kind}_{name}": f"{text}; {how}" for name, text in scores.items()}
        texts[f"{kind}_temperature"] = f"temperature of least NLL on the validation nodes; {how}"
    share = "share of doubly normalised attention in {}, mean over heads, at the best epoch"
    return {name: texts.get(name) or share.format(name.removeprefix("hybrid_")) for name in metrics}


def evaluate(trained: TrainedGraph, fitted: Fitted) -> tuple[dict[str, float], Tensor]:
    """All metrics of a trained network, and the logits of its posterior mean for all nodes, ``[N, classes]``.

    With the same weights and seed these are the same numbers.
    """
    guide, inputs, data, num_samples = trained.guide, trained.inputs, trained.data, trained.config.num_samples
    soft = isinstance(guide.family("layers.0"), Soft)
    samples: dict[str, Any] = {}
    for kind, (noise, _) in KINDS.items():
        if soft and kind in ("attention", "both"):
            continue
        count, seed = 1 if noise == "none" else num_samples, trained.config.seed
        samples[kind] = predict(guide, *inputs, num_samples=count, noise=noise, keep_samples=True, seed=seed).samples
    metrics: dict[str, float] = {}
    for kind, logits in samples.items():
        metrics |= prediction_scores(kind, logits, data)
        if kind != "mean" and num_samples > 1:
            accurate = samples["mean"][0, data.test_mask].argmax(-1) == data.labels[data.test_mask]
            found = score_samples(logits[:, data.test_mask], accurate)
            metrics |= {f"test_{kind}_{name}": value for name, value in found.items()}
    if not soft and num_samples > 1:
        metrics |= _variance_shares(samples, data)
    weights = sample_posterior(guide, *inputs, num_samples=1, noise="none")
    if trained.noise is not None:
        metrics["noise_edge_attention"] = relative_attention(weights, trained.graph, trained.noise)
    others = edges_to_other_classes(trained.graph, data)
    if others.any():
        metrics["other_class_attention"] = relative_attention(weights, trained.graph, others)
    uniform = predict(uniform_guide(trained), *inputs, num_samples=1, noise="none").mean[data.test_mask]
    labels = data.labels[data.test_mask]
    metrics["uniform_accuracy"] = (uniform.argmax(-1) == labels).float().mean().item()
    if _has_roc_auc(data):
        metrics["uniform_roc_auc"] = roc_auc(uniform.double().softmax(-1), labels)
    best = fitted.history[fitted.best_epoch]
    metrics |= {name: best[name] for name in ("val_accuracy", "val_roc_auc", "val_loss") if name in best}
    metrics |= {f"hybrid_{site}": shares.mean().item() for site, shares in hybrid_weights(trained.model).items()}
    metrics["kl"] = _kl(trained)
    metrics["attention_entropy"] = fmean(layer.mean().item() for layer in relative_entropies(weights, trained.graph))
    return metrics, samples["mean"][0]


# predictions


def prediction_scores(kind: str, logits: Tensor, data: GraphData) -> dict[str, float]:
    """Scores of the mean probability before and after temperature scaling, from logits ``[S, N, classes]``."""
    scaling = fit_temperature(logits[:, data.val_mask], data.labels[data.val_mask])
    tested, labels = logits[:, data.test_mask], data.labels[data.test_mask]
    probabilities = tested.softmax(-1).mean(0)
    scores = score(probabilities, labels) | score_scaled(scaling, tested, labels)
    if _has_roc_auc(data):
        scores["roc_auc"] = roc_auc(tested.double().softmax(-1).mean(0), labels)
    scores["aurc"] = selective_accuracy(max_probability(probabilities), probabilities.argmax(-1) == labels).area
    return {f"test_{kind}_{name}": value for name, value in scores.items()} | {
        f"{kind}_temperature": scaling.temperature
    }


def _has_roc_auc(data: GraphData) -> bool:
    return data.num_classes == 2 and len(data.labels[data.test_mask].unique()) == 2


def _variance_shares(samples: Mapping[str, Tensor], data: GraphData) -> dict[str, float]:
    def moments(logits: Tensor) -> Prediction:
        probabilities = logits[:, data.test_mask].softmax(-1)
        return Prediction(mean=probabilities.mean(0), variance=probabilities.var(0), num_samples=len(logits))

    attention, dropout, both = (moments(samples[kind]) for kind in ("attention", "mc_dropout", "both"))
    split = split_variance(attention=attention, dropout=dropout, both=both)
    return {f"variance_share_{source}": getattr(split, f"{source}_share") for source in _SOURCES}


def prediction_table(metrics: Mapping[str, float]) -> str:
    """The test scores as tables, a row a kind of prediction, and the other metrics below."""
    shown = [kind for kind in KINDS if f"test_{kind}_accuracy" in metrics]
    tables = []
    for scores in ([*SCORES, *SCALED_SCORES], [name for name in _MORE_SCORES if f"test_mc_dropout_{name}" in metrics]):
        rows = [
            {"prediction": kind, **{name: metrics.get(f"test_{kind}_{name}", "-") for name in scores}} for kind in shown
        ]
        tables.append(as_table(rows))
    others = {name: value for name, value in metrics.items() if not name.startswith("test_")}
    return "\n\n".join([*tables, metrics_table(others)])


# attention


def relative_entropies(weights: Mapping[str, Tensor], graph: EdgeList) -> list[Tensor]:
    """Entropy of attention relative to uniform attention, of every layer ``[S, nodes with neighbours, H]``."""
    neighbours = graph.targets.index.bincount(minlength=graph.targets.count)
    several = neighbours > 1
    return [
        (graph.targets.sum(torch.special.entr(layer)) / neighbours.log().unsqueeze(-1))[:, several]
        for layer in weights.values()
    ]


def relative_attention(weights: Mapping[str, Tensor], graph: EdgeList, edges: Tensor) -> float:
    """Attention on some edges, relative to uniform attention."""
    uniform = 1 / graph.targets.index.bincount(minlength=graph.targets.count)[graph.targets.index]
    share = uniform[edges].sum()
    return fmean((layer[:, edges].sum(1) / share).mean().item() for layer in weights.values())


def edges_to_other_classes(graph: EdgeList, data: GraphData) -> Tensor:
    """True at the edges that join different classes of nodes in some mask; others may have no class that is known."""
    known = data.train_mask | data.val_mask | data.test_mask
    sources, targets = graph.sources.index, graph.targets.index
    return known[sources] & known[targets] & (data.labels[sources] != data.labels[targets])


def uniform_guide(trained: TrainedGraph) -> AttentionGuide:
    """The guide over a copy of the network whose equal scores make the attention over the neighbours uniform.

    A softmax stands in for normalizers over queries too, under which equal scores are not uniform attention.
    """
    model, guide = deepcopy((trained.model, trained.guide))
    for layer in model.modules():
        if isinstance(layer, GraphAttention):
            layer.attention.normalizer = Softmax()
            for parameter in layer.score.parameters():
                parameter.data.zero_()
    return guide


def _kl(trained: TrainedGraph) -> float:
    """At one sample of the attention and without dropout."""
    none_labelled = torch.zeros_like(trained.data.labels, dtype=torch.bool)  # leaves only the KL of the objective
    with seeded(trained.config.seed):
        return AttentionELBO().loss(trained.model, trained.guide, *trained.inputs, none_labelled)
