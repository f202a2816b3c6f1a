"""Selection of items: ranks by uncertainty, a threshold chosen on validation items, and measures of its value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_attention.analysis.classification import UncertaintyDecomposition, decompose_uncertainty, selective_accuracy
from pyro_attention.analysis.inputs import check_floats, check_level
from pyro_attention.guide import AttentionGuide
from pyro_attention.posterior.passes import Noise
from pyro_attention.posterior.predictive import predict

__all__ = [
    "ClassUncertainty", "Interval", "SelectionValue", "Threshold", "choose_threshold", "class_uncertainty",
    "selection_value", "wrong_answer_auroc",
]  # fmt: skip


@dataclass(frozen=True)
class ClassUncertainty:
    """Class probabilities of items and their uncertainty.

    Attributes:
        mean: Mean probabilities over the draws, ``[items, classes]``.
        parts: Entropy of the mean in nats, split into its two parts, each ``[items]``.
        order: Items by falling entropy of the mean, ``[items]``: the first one is the least sure.
    """

    mean: Tensor
    parts: UncertaintyDecomposition
    order: Tensor


def class_uncertainty(
    guide: AttentionGuide,
    *args: object,
    num_samples: int = 30,
    noise: Noise = "attention",
    seed: int | None = None,
    **kwargs: Any,
) -> ClassUncertainty:
    r"""Return class probabilities with their uncertainty, :math:`H[\bar p] = \frac1S \sum_s H[p^{(s)}] + I`.

    Entropy says how sure the network is. Mutual information says how far the draws of the weights change its answer,
    which is small where the width of the weights is a regularizer.

    Args:
        guide: The guide; its model returns logits ``[items, classes]``.
        args: Arguments of the model, without labels.
        num_samples: Number of draws S.
        noise: What is random, as in :func:`predict`.
        seed: Seed of this call alone.
        kwargs: Keyword arguments of the model.

    Raises:
        ValueError: The model returns another shape, or one logit an item.

    Example:
        >>> from pyro_attention import FixedGammaPrior, LatentAttention, Weibull
        >>> attention = LatentAttention("attention", FixedGammaPrior())
        >>> guide = AttentionGuide(lambda scores, values: attention(scores, values).context[0], Weibull())
        >>> values = torch.tensor([[[5.0, 0.0], [0.0, 5.0]]])
        >>> result = class_uncertainty(guide, torch.tensor([[[0.0, 0.0], [4.0, -4.0]]]), values, seed=0)
        >>> result.order, result.parts.total.shape
        (tensor([0, 1]), torch.Size([2]))
    """
    prediction = predict(
        guide, *args, num_samples=num_samples, noise=noise, transform=_probabilities, keep_samples=True, seed=seed,
        **kwargs,
    )  # fmt: skip
    assert prediction.samples is not None  # keep_samples
    parts = decompose_uncertainty(prediction.samples)
    return ClassUncertainty(prediction.mean, parts, parts.total.argsort(descending=True, stable=True))


def _probabilities(logits: Tensor) -> Tensor:
    if logits.dim() != 3 or logits.size(-1) < 2:
        raise ValueError(
            f"the model returns logits of shape {tuple(logits.shape[1:])}, expected [items, classes] with two or more "
            f"classes; for tokens of generated text use answer_uncertainty of pyro_attention.integrations.huggingface"
        )
    return logits.softmax(-1)


@dataclass(frozen=True)
class Threshold:
    """Largest uncertainty up to which items are kept.

    Attributes:
        value: The threshold; an item is kept if its uncertainty is at most that.
        coverage: Share of the validation items that are kept.
        accuracy: Accuracy of these.
    """

    value: float
    coverage: float
    accuracy: float


def choose_threshold(uncertainty: Tensor, correct: Tensor, *, accuracy: float) -> Threshold:
    """Choose the largest threshold on validation items at which the kept items reach an accuracy.

    Args:
        uncertainty: Uncertainty of the validation items ``[items]``, larger is less sure, in any unit.
        correct: Whether the prediction is right ``[items]``; or soft accuracies from 0 to 1.
        accuracy: The accuracy to reach, above 0 and up to 1.

    Raises:
        ValueError: Wrong shapes or NaN; all items are right or all are wrong; no threshold reaches the accuracy.

    Example:
        >>> choose_threshold(torch.tensor([0.1, 0.2, 0.3, 0.9]), torch.tensor([1.0, 1.0, 1.0, 0.0]), accuracy=0.95)
        Threshold(value=0.3, coverage=0.75, accuracy=1.0)
    """
    if not 0 < accuracy <= 1:
        raise ValueError(f"accuracy is {accuracy}, expected a number above 0 and up to 1, such as 0.95")
    check_floats("uncertainty", uncertainty)
    curve = selective_accuracy(-uncertainty, correct).accuracy
    _check_mixed("the validation items", correct)
    rising = uncertainty.detach().sort().values
    last = torch.cat([rising[1:] > rising[:-1], torch.tensor([True], device=rising.device)])  # ties are kept together
    enough = (last & (curve >= accuracy - 1e-12)).nonzero().flatten()
    if not len(enough):
        raise ValueError(
            f"no threshold reaches an accuracy of {accuracy} on the {len(curve)} validation items: the best is "
            f"{curve[last].max().item():.3f}; ask for less, or take a better model"
        )
    last_kept = int(enough[-1])
    return Threshold(rising[last_kept].item(), (last_kept + 1) / len(curve), curve[last_kept].item())


@dataclass(frozen=True)
class Interval:
    """A number and its bootstrap interval over the items.

    Attributes:
        value: The number, on all items.
        low: Lower end of the interval.
        high: Upper end.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class SelectionValue:
    """Value of ordering items by an uncertainty.

    Attributes:
        area: Area under the risk-coverage curve: mean error over all coverages, lower is better.
        auroc: Probability that a wrong item is less sure than a right one; 0.5 is chance.
        error: Error of all items, which is the area under a random order.
        best: Area where all right items come first.
    """

    area: Interval
    auroc: Interval
    error: float
    best: float


def selection_value(
    uncertainty: Tensor, correct: Tensor, *, level: float = 0.95, num_resamples: int = 1000, seed: int = 0
) -> SelectionValue:
    """Measure an uncertainty on test items: areas under the risk-coverage and the ROC curve, with intervals.

    Intervals are percentiles of a bootstrap over the items.

    Args:
        uncertainty: ``[items]``, larger is less sure, in any unit.
        correct: Whether the prediction is right, ``[items]``: boolean, or 0 and 1.
        level: Level of the intervals.
        num_resamples: Number of resamples of the bootstrap.
        seed: Seed of the resamples.

    Raises:
        ValueError: Wrong shapes, NaN, soft accuracies, all items are right or all are wrong, a level outside (0, 1), or
            no resample in which some items are right and some are not.

    Example:
        >>> value = selection_value(torch.tensor([0.1, 0.2, 0.3, 0.9]), torch.tensor([1.0, 1.0, 0.0, 0.0]))
        >>> value.auroc.value, value.error
        (1.0, 0.5)

    Source: Geifman et al. (2019), Bias-Reduced Uncertainty Estimation for Deep Neural Classifiers.
    """
    check_level(level)
    right = _mixed("the items", uncertainty, correct)
    scores = uncertainty.detach().double().cpu()
    generator = torch.Generator().manual_seed(seed)
    draws = [torch.randint(len(right), (len(right),), generator=generator) for _ in range(num_resamples)]
    best = selective_accuracy(right.double(), right).area
    areas = [_area(scores[draw], right[draw]) for draw in draws]
    aurocs = [
        wrong_answer_auroc(scores[draw], right[draw]) for draw in draws if 0 < right[draw].sum() < len(right)
    ]  # fmt: skip
    if not aurocs:
        raise ValueError(
            f"num_resamples is {num_resamples}, and no resample of the {len(right)} items has right and wrong ones; "
            f"expected more resamples, such as 1000"
        )
    return SelectionValue(
        _interval(_area(scores, right), areas, level),
        _interval(wrong_answer_auroc(scores, right), aurocs, level),
        error=1 - right.double().mean().item(),
        best=best,
    )


def wrong_answer_auroc(uncertainty: Tensor, correct: Tensor) -> float:
    """Return the probability that a wrong item is less sure than a right one; of equal ones half count.

    Args:
        uncertainty: ``[items]``, larger is less sure.
        correct: Whether the prediction is right, ``[items]``: boolean, or 0 and 1; some are and some are not.

    Example:
        >>> wrong_answer_auroc(torch.tensor([0.1, 0.5, 0.5]), torch.tensor([True, True, False]))
        0.75
    """
    right = _mixed("the items", uncertainty, correct)
    ordered, group = uncertainty.detach().double().cpu().unique(return_inverse=True)
    sizes = torch.bincount(group, minlength=len(ordered)).double()
    ranks = (sizes.cumsum(0) - (sizes - 1) / 2)[group]  # mean rank of equal items, from 1
    wrong = int((~right).sum())
    above = ranks[~right].sum().item() - wrong * (wrong + 1) / 2
    return above / (wrong * (len(right) - wrong))


def _area(scores: Tensor, right: Tensor) -> float:
    return selective_accuracy(-scores, right).area


def _interval(value: float, resampled: list[float], level: float) -> Interval:
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = torch.tensor(resampled, dtype=torch.float64).quantile(tails).tolist()
    return Interval(value, low, high)


def _mixed(what: str, uncertainty: Tensor, correct: Tensor) -> Tensor:
    """Return whether items are right, on the CPU; raise ValueError unless some are and some are not."""
    check_floats("uncertainty", uncertainty)
    selective_accuracy(uncertainty, correct)  # checks shapes and numbers
    _check_mixed(what, correct)
    accuracy = correct.detach().cpu()
    right = accuracy.bool()
    if (soft := accuracy[accuracy != right]).numel():
        raise ValueError(
            f"correct holds {soft[0].item():.4g}, expected booleans, or 0 and 1; of soft "
            f"accuracies say which predictions are right, such as correct >= 0.5"
        )
    return right


def _check_mixed(what: str, correct: Tensor) -> None:
    """Raise ValueError where all predictions are right, or all are wrong."""
    accuracy = correct.detach().double()
    if (accuracy == 1).all() or (accuracy == 0).all():
        kind = "right" if accuracy[0] == 1 else "wrong"
        raise ValueError(
            f"{what} are of one class: all {len(accuracy)} predictions are {kind}, so no uncertainty can tell right "
            f"from wrong ones; add items of the other kind"
        )
