"""Evaluation of a trained graph attention network: predictions, their calibration, and the attention itself."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

import torch
from torch import Tensor

from experiments.classification import DEFINITIONS as SCORES
from experiments.classification import score
from experiments.datasets.graphs import GraphData
from experiments.results import as_table
from experiments.training import ELBOTraining, Fitted
from pyro_attention import AttentionELBO, AttentionGuide, EdgeList, Soft, predict, sample_posterior
from pyro_attention.predictive import Noise, seeded

__all__ = ["DEFINITIONS", "evaluate", "prediction_table"]

# Kind of prediction: what varies between its samples, and what it is.
_PREDICTIONS: dict[str, tuple[Noise, str]] = {
    "mean": ("none", "attention at its posterior mean, no dropout"),
    "attention": ("attention", "mean probability over samples of the attention"),
    "mc_dropout": ("dropout", "mean probability over dropout masks, attention at its posterior mean"),
    "both": ("both", "mean probability over samples of the attention and dropout masks"),
}

DEFINITIONS = {
    f"test_{kind}_{name}": f"{text}; {how}" for kind, (_, how) in _PREDICTIONS.items() for name, text in SCORES.items()
} | {
    "val_accuracy": "accuracy on the validation nodes at the best epoch, attention at its posterior mean",
    "val_loss": "mean negative log-likelihood on the validation nodes at the best epoch, without KL, nats",
    "kl": "KL of the attention, unweighted, summed over edges, heads and layers, nats",
    "kl_gradient_norm": "Euclidean norm of that KL's gradient with respect to all parameters",
    "attention_entropy": "entropy of the mean attention over a node's neighbours and itself, divided by the logarithm "
    "of their number (1 = uniform); mean over nodes with neighbours, heads and layers",
    "best_epoch": "epoch whose weights are evaluated, from 0",
    "epochs": "number of epochs trained",
    "step_ms": "median time of a training step, ms",
    "parameters": "number of trained numbers in network, priors and guide",
}


def evaluate(
    module: ELBOTraining, data: GraphData, graph: EdgeList, fitted: Fitted, *, num_samples: int, seed: int
) -> dict[str, float]:
    """All metrics of a trained module; with the same weights and seed, the same numbers.

    Args:
        module: Has the weights to evaluate.
        data: The graph, on the device of the module.
        graph: Its edges with self loops.
        fitted: What training left.
        num_samples: Samples of a prediction.
        seed: Seed of the samples.
    """
    guide: AttentionGuide = module.objective.guide
    soft = isinstance(guide.family("layers.0"), Soft)
    # labels are given so that none is drawn; the logits do not depend on them
    inputs = data.features, graph, data.labels
    metrics = {}
    for kind, (noise, _) in _PREDICTIONS.items():
        if soft and kind in ("attention", "both"):
            continue
        samples = 1 if noise == "none" else num_samples
        prediction = predict(
            guide, *inputs, num_samples=samples, noise=noise, transform=lambda logits: logits.softmax(-1), seed=seed
        )
        scores = score(prediction.mean[data.test_mask], data.labels[data.test_mask])
        metrics |= {f"test_{kind}_{name}": value for name, value in scores.items()}
    best = fitted.history[fitted.best_epoch]
    return metrics | {
        "val_accuracy": best["val_accuracy"],
        "val_loss": best["val_loss"],
        **_kl_and_gradient(module, inputs, seed),
        "attention_entropy": relative_entropy(sample_posterior(guide, *inputs, num_samples=1, noise="none"), graph),
        "best_epoch": fitted.best_epoch,
        "epochs": len(fitted.history),
        "step_ms": median(row["step_ms"] for row in fitted.history),
        "parameters": sum(parameter.numel() for parameter in module.parameters()),
    }


def _kl_and_gradient(module: ELBOTraining, inputs: tuple[Tensor, EdgeList, Tensor], seed: int) -> dict[str, float]:
    """KL and the norm of its gradient, at one sample of the attention and without dropout."""
    module.eval()
    none_labelled = torch.zeros_like(inputs[2], dtype=torch.bool)  # leaves only the KL of the objective
    parameters = list(module.parameters())
    with seeded(seed):
        kl: Tensor = AttentionELBO()(module.objective.model, module.objective.guide)(*inputs, none_labelled)
    gradients = torch.autograd.grad(kl, parameters, allow_unused=True)
    norms = [gradient.norm() for gradient in gradients if gradient is not None]
    return {"kl": kl.item(), "kl_gradient_norm": torch.stack(norms).norm().item()}


def relative_entropy(weights: Mapping[str, Tensor], graph: EdgeList) -> float:
    """Mean entropy of attention relative to uniform attention, from ``[S, E, H]`` weights of every layer."""
    neighbours = graph.targets.index.bincount(minlength=graph.targets.count)
    several = neighbours > 1
    layers = []
    for layer in weights.values():
        entropy = graph.targets.sum(torch.special.entr(layer))
        layers.append((entropy / neighbours.log().unsqueeze(-1))[:, several].mean())
    return torch.stack(layers).mean().item()


def prediction_table(metrics: Mapping[str, float]) -> str:
    """The test scores as a table, one row a kind of prediction."""
    rows = [
        {"prediction": kind} | {name: metrics[f"test_{kind}_{name}"] for name in SCORES}
        for kind in _PREDICTIONS
        if f"test_{kind}_accuracy" in metrics
    ]
    others = [{"metric": name, "value": value} for name, value in metrics.items() if not name.startswith("test_")]
    return f"{as_table(rows)}\n\n{as_table(others)}"
