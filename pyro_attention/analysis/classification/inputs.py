"""Checks of probabilities, logits, labels and accuracies; each returns what it checked in one form."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_attention.analysis.inputs import ROUNDING, check_samples, seen_type

__all__ = ["check_accuracy", "check_labels", "check_logits", "check_probabilities", "mean_probabilities"]


def _with_samples(name: str, tensor: Tensor, min_samples: int) -> Tensor:
    remedy = "keep the samples S, for example predict(..., keep_samples=True).samples" if min_samples else "S samples"
    return check_samples(name, tensor, axes="items, classes", min_samples=min_samples, remedy=remedy, least=2)


def check_logits(logits: Tensor, *, min_samples: int = 0) -> Tensor:
    """The logits, ``[S, items, classes]`` with S = 1 where there are no samples; they must be finite."""
    checked = _with_samples("logits", logits, min_samples)
    if not checked.isfinite().all():
        raise ValueError(
            f"{(~checked.isfinite()).sum().item()} of {checked.numel()} logits are NaN or infinite, expected finite "
            f"numbers; give classes that are ruled out a large negative logit such as -1e4"
        )
    return checked


def check_probabilities(probabilities: Tensor, *, min_samples: int = 0) -> Tensor:
    """The probabilities, ``[S, items, classes]`` with S = 1 where there are no samples: >= 0 and with a sum of one."""
    checked = _with_samples("probabilities", probabilities, min_samples)
    if checked.isnan().any():
        raise ValueError(f"{checked.isnan().sum().item()} of {checked.numel()} probabilities are NaN")
    if (checked < 0).any():
        raise ValueError(
            f"probabilities have an entry {checked.min().item():.4g}, expected >= 0; apply .softmax(-1) to logits"
        )
    sums = checked.sum(-1)
    worst = sums.flatten()[(sums - 1).abs().argmax()].item()
    if not abs(worst - 1) <= ROUNDING:
        raise ValueError(
            f"probabilities of an item sum to {worst:.4g} over the classes (the last dimension), expected 1; apply "
            f".softmax(-1) to logits"
        )
    return checked


def mean_probabilities(probabilities: Tensor, labels: Tensor | None = None) -> Tensor:
    """Checked probabilities averaged over samples, ``[items, classes]``; the labels are checked against them."""
    # 1 + 1e-7 is rounding; torchmetrics would take it for a sign of logits and apply a softmax to all of them
    mean = check_probabilities(probabilities).mean(0).clamp_max(1.0)
    if labels is not None:
        check_labels(labels, mean)
    return mean


def check_labels(labels: Tensor, classes: Tensor) -> None:
    """Raise unless labels are int64 ``[items]``, in range for scores ``[..., items, classes]`` and beside them."""
    if not isinstance(labels, Tensor) or labels.dtype != torch.int64:
        raise TypeError(f"labels have {seen_type(labels)}, expected a tensor of torch.int64; convert it with .long()")
    items, count = classes.shape[-2:]
    if labels.shape != (items,):
        raise ValueError(f"labels have shape {tuple(labels.shape)}, expected [items] = ({items},)")
    if labels.device != classes.device:
        raise ValueError(f"labels are on {labels.device}, the predictions on {classes.device}; move one with .to()")
    low, high = labels.min().item(), labels.max().item()
    if low < 0 or high >= count:
        raise ValueError(
            f"labels run from {low} to {high}, expected 0 to {count - 1}; drop items without a label, such as -100, "
            f"before"
        )


def check_accuracy(name: str, accuracy: Tensor, items: int | None = None) -> Tensor:
    """The accuracies of items in float64, ``[items]``; they must be boolean, or numbers from 0 to 1."""
    if not isinstance(accuracy, Tensor) or not (accuracy.dtype == torch.bool or accuracy.is_floating_point()):
        raise TypeError(
            f"{name} has {seen_type(accuracy)}, expected a tensor of booleans, or of floats from 0 to 1; compare "
            f"predictions with labels before"
        )
    if accuracy.dim() != 1 or accuracy.numel() == 0 or items not in (None, accuracy.numel()):
        expected = "at least one item" if items is None else f"({items},)"
        raise ValueError(f"{name} has shape {tuple(accuracy.shape)}, expected [items] = {expected}")
    values = accuracy.detach().double()
    wrong = values[~((values >= 0) & (values <= 1))]
    if len(wrong):
        raise ValueError(f"{name} has an entry {wrong[0].item():.4g}, expected numbers from 0 to 1")
    return values
