"""Probabilities of classes: scores, calibration, certainty, sources of uncertainty, selective prediction.

Samples of probabilities are averaged before they are scored.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pyro_attention.analysis.inputs import ROUNDING, check_floats, check_samples
from pyro_attention.posterior.predictive import Prediction

__all__ = [
    "ClassificationScores",
    "SelectiveAccuracy",
    "TemperatureScaling",
    "UncertaintyDecomposition",
    "classification_scores",
    "decompose_uncertainty",
    "fit_temperature",
    "pavpu",
    "selective_accuracy",
    "split_variance",
    "top_two_p_values",
]


@dataclass(frozen=True)
class ClassificationScores:
    """Scores of class probabilities, each a mean over items.

    Attributes:
        accuracy: Fraction of items whose most probable class is the true one, 0 to 1.
        nll: Negative log probability of the true class, nats.
        ece: Expected calibration error of the top class, 0 to 1.
        brier: Squared distance of the probabilities from the one-hot class, summed over classes, 0 to 2.
    """

    accuracy: float
    nll: float
    ece: float
    brier: float


def classification_scores(probabilities: Tensor, labels: Tensor, *, bins: int = 15) -> ClassificationScores:
    r"""Score the mean probabilities :math:`\bar p = \frac1S \sum_s p^{(s)}`.

    .. math:: \mathrm{NLL} = -\log \bar p_y, \qquad \mathrm{Brier} = \sum_c (\bar p_c - [c = y])^2, \qquad
              \mathrm{ECE} = \sum_b \frac{n_b}{n} |\mathrm{accuracy}_b - \mathrm{confidence}_b|

    In the NLL probabilities below 1e-12 count as 1e-12. The ECE is that of torchmetrics: bins of equal width
    ``[low, high)``, and one of its own for a confidence of exactly 1.

    Args:
        probabilities: ``[items, classes]``, or samples of them ``[S, items, classes]``; two classes or more.
        labels: Integers ``[items]``, from 0 to classes - 1.
        bins: Number of bins of the ECE.

    Raises:
        ImportError: torchmetrics is not installed.
        TypeError: Probabilities are no floats, or labels no integers.
        ValueError: Wrong shapes, one class, NaN, no probabilities, no bins, or labels of another number than there are
            items, or outside the classes.

    Example:
        >>> classification_scores(torch.tensor([[0.75, 0.25], [0.75, 0.25]]), torch.tensor([0, 1]))
        ClassificationScores(accuracy=0.5, nll=0.836..., ece=0.25, brier=0.625)

    Source: Guo et al. (2017), On Calibration of Modern Neural Networks, equation 3; Brier (1950), Verification of
    forecasts expressed in terms of probability.
    """
    try:
        from torchmetrics.functional.classification import multiclass_calibration_error
    except ImportError as error:
        problem = "the expected calibration error needs torchmetrics"
        raise ImportError(f"{problem}: pip install 'pyro-attention[analysis]'") from error
    # 1 + 1e-7 is rounding; torchmetrics would take it for a sign of logits and apply a softmax to all of them
    mean = _check_probabilities(probabilities).mean(0).clamp_max(1.0)
    labels, classes = _check_labels(labels, mean), mean.size(-1)
    return ClassificationScores(
        accuracy=(mean.argmax(-1) == labels).float().mean().item(),
        # a mean over few samples may be exactly 0
        nll=nn.functional.nll_loss(mean.clamp_min(1e-12).log(), labels).item(),
        ece=float(multiclass_calibration_error(mean, labels, classes, n_bins=bins).item()),
        brier=(mean - nn.functional.one_hot(labels, classes)).square().sum(-1).mean().item(),
    )


@dataclass(frozen=True)
class TemperatureScaling:
    r"""Probabilities at a temperature, :math:`\frac1S \sum_s \mathrm{softmax}(\ell^{(s)} / T)`.

    Attributes:
        temperature: T > 0; above 1 makes the probabilities less confident.

    Example:
        >>> TemperatureScaling(temperature=2.0)(torch.tensor([[2.0, 0.0]]))
        tensor([[0.7311, 0.2689]])
    """

    temperature: float

    def __call__(self, logits: Tensor) -> Tensor:
        """Return probabilities ``[items, classes]`` of logits ``[items, classes]`` or ``[S, items, classes]``."""
        return (_check_logits(logits) / self.temperature).softmax(-1).mean(0)


def fit_temperature(logits: Tensor, labels: Tensor) -> TemperatureScaling:
    r"""Fit T to validation items, :math:`\min_T -\sum_n \log \frac1S \sum_s \mathrm{softmax}(\ell_n^{(s)} / T)_{y_n}`.

    Without samples the NLL is convex in 1/T. With samples it is that of the averaged probabilities, which need not be
    convex; so both are searched on a grid of T from .01 to 100, and then around its best point by golden sections, in
    float64. The result is never worse than T = 1, and is T = 1 where nothing else is better. At an end of the grid the
    labels determine no temperature, as where every label is the most probable class, and a warning says so.

    Args:
        logits: ``[items, classes]``, or samples of them ``[S, items, classes]``; two classes or more.
        labels: Integers ``[items]``, from 0 to classes - 1.

    Raises:
        TypeError: Logits are no floats, or labels no integers.
        ValueError: Wrong shapes, one class, logits that are not finite, or labels of another number than there are
            items, or outside the classes.

    Example:
        >>> scaling = fit_temperature(torch.tensor([[2.0, 0.0]]).expand(4, 2), torch.tensor([0, 0, 0, 1]))
        >>> round(scaling.temperature, 3), round(2 / math.log(3), 3)
        (1.82, 1.82)
        >>> scaling(torch.tensor([[2.0, 0.0]]))
        tensor([[0.7500, 0.2500]])

    Source: Guo et al. (2017), On Calibration of Modern Neural Networks, section 4.2, for the case without samples.
    """
    samples = _check_logits(logits)
    labels = _check_labels(labels, samples[0])

    def nll(log_temperature: float) -> float:
        temperature = math.exp(log_temperature)
        # sample by sample: only one of them is held in float64
        scores = [(sample.double() / temperature).log_softmax(-1).gather(-1, labels[:, None]) for sample in samples]
        return math.log(len(scores)) - torch.stack(scores).logsumexp(0).mean().item()

    end = math.log(100.0)
    nll_by_log_temperature = _values_around_minimum(nll, end)
    least = min(nll_by_log_temperature.values())
    # the first one of those that are equal, up to rounding
    best = next(x for x, value in nll_by_log_temperature.items() if value <= least + 1e-13 * max(1.0, least))
    if abs(best) > 0.999 * end:
        reason = "the labels are (nearly) always the most probable class"
        if best > 0:
            reason = "uniform probabilities predict the labels as well as the logits do, or better"
        warnings.warn(
            f"the temperature stands at the end of its grid, {math.exp(best):.4g}: {reason}, so that the "
            f"{len(labels)} labels determine no temperature; check that labels and logits are of the same items in the "
            f"same order, or take more items",
            stacklevel=2,
        )
    return TemperatureScaling(math.exp(best))


def _values_around_minimum(function: Callable[[float], float], end: float) -> dict[float, float]:
    """Return values of a function by argument: on a grid from -end to end, and near the best point of the grid.

    Zero and the ends come first, as they say more where other arguments are as good.
    """
    values = {x: function(x) for x in (0.0, -end, end)}
    step = end / 32
    grid = [number * step for number in range(-32, 33)]
    values |= {x: function(x) for x in grid if x not in values}
    best = min(grid, key=values.__getitem__)
    _golden_section(function, values, max(best - step, -end), min(best + step, end))
    return values


def _golden_section(function: Callable[[float], float], values: dict[float, float], left: float, right: float) -> None:
    """Add values of a function to those by argument, until its minimum lies between two of them 1e-7 apart."""
    ratio = (math.sqrt(5) - 1) / 2

    def inner(start: float, end: float) -> float:
        """Return the point of the golden section that is further from the start, with its value known."""
        x = start + ratio * (end - start)
        values[x] = function(x)
        return x

    low, high = inner(right, left), inner(left, right)
    while right - left > 1e-7:
        if values[low] <= values[high]:
            right, high = high, low
            low = inner(right, left)
        else:
            left, low = low, high
            high = inner(left, right)


def pavpu(logits: Tensor, accuracy: Tensor, *, thresholds: Sequence[float] = (0.01, 0.05, 0.1)) -> dict[float, float]:
    r"""Compute patch accuracy versus patch uncertainty, :math:`\frac1N \sum_n a_n c_n + (1 - a_n)(1 - c_n)`.

    An item is certain, c = 1, when the p-value of a paired two-sided t-test, that the two classes of largest mean
    probability score the same in the M samples, is at most the threshold. Any gap becomes certain as M grows, so only
    results of one M are comparable. With identical samples every item without a tie is certain, and PAvPU is the
    accuracy.

    Args:
        logits: Samples ``[M, items, classes]``, at least two; of any noise. Logs of probabilities serve as well.
        accuracy: Accuracy of the deterministic prediction, ``[items]``: boolean, or soft accuracies from 0 to 1 as in
            VQA.
        thresholds: Levels of the test, each between 0 and 1.

    Returns:
        The fraction of items accurate and certain, or inaccurate and uncertain, for each threshold; 0 to 1.

    Raises:
        ImportError: SciPy is not installed.
        TypeError: Logits are no floats.
        ValueError: Wrong shapes, fewer than two samples, or numbers out of range or not finite.

    Example:
        >>> logits = torch.tensor([[[2.0, 0.0], [1.0, 0.0]], [[2.1, 0.0], [-0.8, 0.0]], [[1.9, 0.0], [0.1, 0.0]]])
        >>> pavpu(logits, torch.tensor([True, True]), thresholds=[0.05])
        {0.05: 0.5}

    Source: Mukhoti and Gal (2018), Evaluating Bayesian Deep Learning Methods for Semantic Segmentation; the test is
    that of Fan et al. (2020), Bayesian Attention Modules.
    """
    p_values = top_two_p_values(logits)
    accurate = _check_accuracy("accuracy", accuracy, len(p_values)).to(p_values.device)
    if not thresholds or not all(0 < threshold < 1 for threshold in thresholds):
        raise ValueError(f"thresholds is {tuple(thresholds)}, expected numbers between 0 and 1, such as 0.05")
    return {threshold: accurate.where(p_values <= threshold, 1 - accurate).mean().item() for threshold in thresholds}


def top_two_p_values(logits: Tensor) -> Tensor:
    """Test whether the two most probable classes of each item score the same, by a paired two-sided t-test.

    Args:
        logits: Samples ``[M, items, classes]``, at least two; of any noise. Any gap becomes certain as M grows, so only
            results of one M are comparable.

    Returns:
        p-values, float64 ``[items]``; 0 where the differences are all the same, or 1 where they are 0.

    Raises:
        ImportError: SciPy is not installed.
        TypeError: Logits are no floats.
        ValueError: Wrong shapes, fewer than two samples, or numbers that are not finite.

    Example:
        >>> logits = torch.tensor([[[2.0, 0.0], [1.0, 0.0]], [[2.1, 0.0], [-0.8, 0.0]], [[1.9, 0.0], [0.1, 0.0]]])
        >>> [round(value, 3) for value in top_two_p_values(logits).tolist()]
        [0.001, 0.865]

    Source: Fan et al. (2020), Bayesian Attention Modules, figure 2 and section 4.2.
    """
    try:
        from scipy.special import stdtr
    except ImportError as error:
        raise ImportError("the t-test of PAvPU needs SciPy: pip install 'pyro-attention[analysis]'") from error
    samples = _check_logits(logits, min_samples=2)
    top = samples.softmax(-1).mean(0).topk(2).indices.expand(len(samples), -1, -1)
    scores = samples.gather(-1, top).double()
    differences = scores[..., 0] - scores[..., 1]
    mean, deviation = differences.mean(0), differences.std(0)
    t = mean.abs() * math.sqrt(len(samples)) / deviation
    p_values = 2 * torch.from_numpy(stdtr(len(samples) - 1, -t.cpu().numpy())).to(t.device)
    return torch.where(deviation == 0, (mean == 0).double(), p_values)


@dataclass(frozen=True)
class UncertaintyDecomposition:
    """Uncertainty of each item, in nats.

    Attributes:
        total: Entropy of the mean probabilities, ``[items]``.
        aleatoric: Mean entropy of the samples' probabilities, ``[items]``: what stays if the weights were known.
        mutual_information: Total minus aleatoric, >= 0, ``[items]``: how much the samples disagree.
    """

    total: Tensor
    aleatoric: Tensor
    mutual_information: Tensor


def decompose_uncertainty(probabilities: Tensor) -> UncertaintyDecomposition:
    r"""Split the predictive entropy, :math:`H[\bar p] = \frac1S \sum_s H[p^{(s)}] + I`.

    Args:
        probabilities: Samples ``[S, items, classes]``, or ``[items, classes]``, whose mutual information is 0. Items
            may be the rows of attention weights, ``[S, queries, keys]``.

    Raises:
        TypeError: Probabilities are no floats.
        ValueError: Wrong shape, negative entries or NaN, or sums over the classes that are not one.

    Example:
        >>> parts = decompose_uncertainty(torch.tensor([[[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.5, 0.5]]]))
        >>> parts.total, parts.mutual_information
        (tensor([0.6931, 0.6931]), tensor([0.6931, 0.0000]))

    Source: Depeweg et al. (2018), Decomposition of Uncertainty in Bayesian Deep Learning, section 3.
    """
    samples = _check_probabilities(probabilities)
    exact = samples.double()  # a difference of nearly equal entropies, where the samples hardly differ
    total, aleatoric = torch.special.entr(exact.mean(0)).sum(-1), torch.special.entr(exact).sum(-1).mean(0)
    parts = total, aleatoric, (total - aleatoric).clamp_min(0.0)
    return UncertaintyDecomposition(*(part.to(samples.dtype) for part in parts))


def split_variance(*, attention: Prediction, dropout: Prediction, both: Prediction) -> dict[str, float]:
    r"""Return shares of a prediction's variance by source, :math:`V_{ad} = V_a + V_d + V_\mathrm{interaction}`.

    Variances are summed over all entries. A variance of S samples is uncertain by about a fraction
    ``sqrt(2 / (S - 1))`` of itself in each entry, and the interaction, a difference, by more than that fraction of the
    total.

    Args:
        attention: Result of ``predict(..., noise="attention")``.
        dropout: Result of ``predict(..., noise="dropout")``, of the same guide, arguments and transform.
        both: Result of ``predict(..., noise="both")``, of the same guide, arguments and transform.

    Returns:
        The shares of "attention", "dropout" and "interaction", which sum to one; the last is negative where one source
        dampens the other. NaN when there is no variance at all.

    Raises:
        ValueError: A prediction of one sample, or predictions of other items.

    Example:
        >>> ones = torch.ones(3)
        >>> predictions = [Prediction(mean=ones, variance=v * ones, num_samples=100) for v in (3.0, 2.0, 4.0)]
        >>> split_variance(attention=predictions[0], dropout=predictions[1], both=predictions[2])
        {'attention': 0.75, 'dropout': 0.5, 'interaction': -0.25}

    Source: Fan et al. (2020), Bayesian Attention Modules, section 4.2, for the use of both sources of noise.
    """
    predictions, parts = {"attention": attention, "dropout": dropout, "both": both}, dict[str, float]()
    for name, prediction in predictions.items():
        if prediction.num_samples < 2:
            raise ValueError(f"{name} has {prediction.num_samples} sample, expected at least 2 for a variance")
        shape, expected = tuple(prediction.variance.shape), tuple(both.variance.shape)
        if shape != expected:
            raise ValueError(f"{name} has shape {shape}, both {expected}; expected predictions of the same items")
        parts[name] = prediction.variance.double().sum().item()
    total = parts.pop("both")
    parts["interaction"] = total - parts["attention"] - parts["dropout"]
    return {source: part / total if total else math.nan for source, part in parts.items()}


@dataclass(frozen=True)
class SelectiveAccuracy:
    """Accuracy on the k most confident items, for every k.

    Attributes:
        accuracy: Mean accuracy of the k most confident ones, k = 1 to all of them, float64 ``[items]``; where equal
            confidence leaves open which these are, the mean over all choices.
    """

    accuracy: Tensor

    def accuracy_at(self, coverage: float) -> float:
        """Return the accuracy on the least number of most confident items that reaches a coverage in (0, 1]."""
        if not 0 < coverage <= 1:
            raise ValueError(f"coverage is {coverage}, expected a fraction of the items in (0, 1]")
        # 0.07 * 100 is 7.000000000000001, and means 7
        return self.accuracy[math.ceil(coverage * len(self.accuracy) * (1 - 1e-12)) - 1].item()

    @property
    def area(self) -> float:
        """Area under the risk-coverage curve (AURC): mean error over all coverages; 0 to 1, lower is better."""
        return (1 - self.accuracy).mean().item()


def selective_accuracy(confidence: Tensor, correct: Tensor) -> SelectiveAccuracy:
    r"""Compute accuracy against coverage, :math:`A(k/N) = \frac1k \sum_{i \le k} a_{(i)}`, items by falling confidence.

    Args:
        confidence: ``[items]``, larger is surer, in any unit: the largest probability is the usual choice, minus the
            mutual information of ``decompose_uncertainty`` another. Only its order matters.
        correct: ``[items]``: boolean, or soft accuracies from 0 to 1.

    Example:
        >>> curve = selective_accuracy(torch.tensor([0.9, 0.6, 0.8, 0.7]), torch.tensor([True, False, True, False]))
        >>> curve.accuracy_at(0.5), curve.accuracy_at(1.0), curve.area
        (1.0, 0.5, 0.20833)

    Source: Geifman and El-Yaniv (2017), Selective Classification for Deep Neural Networks; the area: Geifman et al.
    (2019), Bias-Reduced Uncertainty Estimation for Deep Neural Classifiers.
    """
    check_floats("confidence", confidence)
    accuracy = _check_accuracy("correct", correct, len(confidence))
    if confidence.isnan().any():
        raise ValueError("confidence holds NaN, expected numbers that can be ordered")
    falling, order = confidence.detach().sort(descending=True)
    _, group, sizes = falling.unique_consecutive(return_inverse=True, return_counts=True)
    sums = torch.zeros(len(sizes), dtype=torch.float64, device=sizes.device)
    sums.index_add_(0, group, accuracy.to(sizes.device)[order])
    # items of equal confidence in any order: each counts as their mean
    expected = (sums / sizes)[group].cumsum(0)
    counts = torch.arange(1, len(group) + 1, device=sizes.device)
    return SelectiveAccuracy(expected / counts)


def _check_logits(logits: Tensor, *, min_samples: int = 0) -> Tensor:
    """Return logits as ``[S, items, classes]``, with S = 1 where there are no samples; they must be finite."""
    checked = check_samples("logits", logits, axes="items, classes", min_samples=min_samples)
    _check_classes("logits", checked)
    if not checked.isfinite().all():
        count = (~checked.isfinite()).sum().item()
        raise ValueError(f"{count} of {checked.numel()} logits are NaN or infinite; rule out a class by one of -1e4")
    return checked


def _check_probabilities(probabilities: Tensor) -> Tensor:
    """Return probabilities as ``[S, items, classes]``, with S = 1 where there are no samples.

    They must be >= 0 with a sum of one.
    """
    checked = check_samples("probabilities", probabilities, axes="items, classes")
    sums = checked.sum(-1)
    if not ((checked >= 0).all() and ((sums - 1).abs() <= ROUNDING).all()):
        worst = sums.flatten()[(sums - 1).abs().argmax()].item()
        raise ValueError(
            f"probabilities go down to {checked.min().item():.4g}, and of an item sum to {worst:.4g} over the classes "
            f"(the last dimension); expected >= 0 and 1; apply .softmax(-1) to logits"
        )
    return checked


def _check_classes(name: str, checked: Tensor) -> None:
    """Raise ValueError where there is one class, whose probability is 1 whatever its logit is."""
    if checked.size(-1) < 2:
        raise ValueError(
            f"{name} have one class (the last dimension), expected two or more; for a single logit z of a binary "
            f"problem pass torch.stack([torch.zeros_like(z), z], -1)"
        )


def _check_labels(labels: object, rows: Tensor) -> Tensor:
    """Return labels ``[items]`` as int64, on the device of ``rows [items, classes]``; raise where they do not fit."""
    items, classes = rows.shape
    _check_classes("probabilities", rows)
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex():
        actual = f"of dtype {labels.dtype}" if isinstance(labels, Tensor) else f"a {type(labels).__name__}"
        raise TypeError(f"labels are {actual}, expected a tensor of integers, the class of each item; use .long()")
    if labels.shape != (items,):
        raise ValueError(
            f"labels have shape {tuple(labels.shape)}, expected [items] = ({items},), one for each row of the logits "
            f"or probabilities; label i is that of row i"
        )
    outside = (labels < 0) | (labels >= classes)
    if outside.any():
        raise ValueError(
            f"labels: {int(outside.sum())} of {items} lie outside 0 to {classes - 1}, such as "
            f"{int(labels[outside][0])}, with {classes} classes; leave out items without a label"
        )
    return labels.to(rows.device, torch.int64)


def _check_accuracy(name: str, accuracy: Tensor, items: int) -> Tensor:
    """Return the accuracies of items in float64, ``[items]``; they must be boolean, or numbers from 0 to 1."""
    if not isinstance(accuracy, Tensor):
        raise TypeError(f"{name} is a {type(accuracy).__name__}, expected a tensor of booleans, or numbers from 0 to 1")
    values = accuracy.detach().double()
    if not values.numel():
        raise ValueError(f"{name} has shape {tuple(values.shape)}, expected [items] = ({items},), one item or more")
    if values.shape != (items,) or not ((values >= 0) & (values <= 1)).all():
        problem = f"{name} has shape {tuple(values.shape)} and entries from {values.min():.4g} to {values.max():.4g}"
        raise ValueError(f"{problem}, expected [items] = ({items},) and booleans, or numbers from 0 to 1")
    return values
