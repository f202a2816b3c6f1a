"""PAvPU: is a model certain where it is right and uncertain where it is wrong?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Literal

import torch
from torch import Tensor

from pyro_attention.analysis.classification.inputs import check_accuracy, check_logits
from pyro_attention.analysis.inputs import check_choice

__all__ = ["PAvPU", "Tested", "pavpu", "top_two_p_values"]

Tested = Literal["logits", "probabilities"]


@dataclass(frozen=True)
class PAvPU:
    """Items by accuracy and certainty at a threshold; counts of batches may be added, ``first + second``.

    Every count is a sum over items: of the accuracies ``a`` where it says accurate, of ``1 - a`` where it says
    inaccurate; whole numbers unless accuracies are soft.

    Attributes:
        threshold: An item is uncertain when its p-value exceeds it.
        test: What was tested, "logits" or "probabilities".
        num_samples: Number of samples M of the test. Any gap becomes certain as it grows, so only results of one M
            are comparable.
        accurate_certain: Items accurate and certain.
        accurate_uncertain: Items accurate and uncertain.
        inaccurate_certain: Items inaccurate and certain.
        inaccurate_uncertain: Items inaccurate and uncertain.
    """

    threshold: float
    test: Tested
    num_samples: int
    accurate_certain: float
    accurate_uncertain: float
    inaccurate_certain: float
    inaccurate_uncertain: float

    @property
    def pavpu(self) -> float:
        """Fraction of items accurate and certain, or inaccurate and uncertain; 0 to 1."""
        certain, uncertain = self.accurate_certain, self.inaccurate_uncertain
        return (certain + uncertain) / (certain + uncertain + self.accurate_uncertain + self.inaccurate_certain)

    @property
    def accurate_given_certain(self) -> float:
        """Fraction of the certain items that are accurate; NaN when none is certain."""
        return _ratio(self.accurate_certain, self.inaccurate_certain)

    @property
    def uncertain_given_inaccurate(self) -> float:
        """Fraction of the inaccurate items that are uncertain; NaN when none is inaccurate."""
        return _ratio(self.inaccurate_uncertain, self.inaccurate_certain)

    def __add__(self, other: PAvPU) -> PAvPU:
        if not isinstance(other, PAvPU):
            return NotImplemented
        mine, others = astuple(self), astuple(other)
        if mine[:3] != others[:3]:
            raise ValueError(f"threshold, test and num_samples are {mine[:3]} and {others[:3]}, expected the same")
        return PAvPU(*mine[:3], *(count + more for count, more in zip(mine[3:], others[3:], strict=True)))


def _ratio(part: float, rest: float) -> float:
    return part / (part + rest) if part + rest else math.nan


def pavpu(
    logits: Tensor, accuracy: Tensor, *, test: Tested, thresholds: Sequence[float] = (0.01, 0.05, 0.1)
) -> dict[float, PAvPU]:
    r"""Patch accuracy versus patch uncertainty, :math:`\frac1N \sum_n a_n c_n + (1 - a_n)(1 - c_n)`.

    An item is certain, c = 1, when its p-value of :func:`top_two_p_values` is at most the threshold. With identical
    samples every item without a tie is certain, and PAvPU is the accuracy.

    Args:
        logits: Samples ``[M, items, classes]``, at least two; of any noise. Logs of probabilities serve as well.
        accuracy: Of the deterministic prediction, ``[items]``: boolean, or soft accuracies from 0 to 1 as in VQA.
        test: Compare "logits", as Bayesian Attention Modules does, or "probabilities".
        thresholds: Levels of the test, each between 0 and 1.

    Returns:
        The result for each threshold.

    Raises:
        ImportError: SciPy is not installed.
        TypeError: Logits are no floats, or accuracy is neither boolean nor float.
        ValueError: Wrong shapes, fewer than two samples, numbers out of range or not finite, or an unknown test.

    Example:
        >>> logits = torch.tensor([[[2.0, 0.0], [1.0, 0.0]], [[2.1, 0.0], [-0.8, 0.0]], [[1.9, 0.0], [0.1, 0.0]]])
        >>> at = pavpu(logits, torch.tensor([True, True]), test="logits")[0.05]
        >>> at.pavpu, at.accurate_certain, at.accurate_uncertain
        (0.5, 1.0, 1.0)

    Source: Mukhoti and Gal (2018), Evaluating Bayesian Deep Learning Methods for Semantic Segmentation; the test is
    that of Fan et al. (2020), Bayesian Attention Modules.
    """
    p_values = top_two_p_values(logits, test=test)
    accurate = check_accuracy("accuracy", accuracy, len(p_values)).to(p_values.device)
    if not thresholds or not all(0 < threshold < 1 for threshold in thresholds):
        raise ValueError(f"thresholds is {tuple(thresholds)}, expected numbers between 0 and 1, such as 0.05")
    results = {}
    for threshold in thresholds:
        uncertain = p_values > threshold
        parts = [part[where].sum().item() for part in (accurate, 1 - accurate) for where in (~uncertain, uncertain)]
        results[threshold] = PAvPU(threshold, test, len(logits), *parts)
    return results


def top_two_p_values(logits: Tensor, *, test: Tested) -> Tensor:
    r"""Paired two-sided t-test, over M samples, that the two classes of largest mean probability score the same.

    :math:`t = \bar d \sqrt{M} / s_d` of the M differences d, with M - 1 degrees of freedom. Differences that are all
    the same have no variance: then p is 0, or 1 where they are 0 (an exact tie); it is never NaN.

    Args:
        logits: Samples ``[M, items, classes]``, at least two.
        test: Take the differences of "logits" or of "probabilities"; logits may share noise that these do not.

    Returns:
        p-values, float64 ``[items]``.

    Raises:
        ImportError: SciPy is not installed.
        TypeError: Logits are no floats.
        ValueError: Wrong shape, fewer than two samples, logits that are not finite, or an unknown test.

    Example:
        >>> top_two_p_values(torch.tensor([[[1.0, 0.0]], [[3.0, 0.0]]]), test="logits")   # t = 2, one degree of freedom
        tensor([0.2952], dtype=torch.float64)
    """
    try:
        from scipy.special import stdtr
    except ImportError as error:
        raise ImportError("the t-test of PAvPU needs SciPy: pip install 'pyro-attention[analysis]'") from error
    check_choice("test", test, Tested)
    samples = check_logits(logits, min_samples=2)
    probabilities = samples.softmax(-1)
    top = probabilities.mean(0).topk(2).indices.expand(len(samples), -1, -1)
    scores = (samples if test == "logits" else probabilities).gather(-1, top).double()
    differences = scores[..., 0] - scores[..., 1]
    mean, deviation = differences.mean(0), differences.std(0)
    t = mean.abs() * math.sqrt(len(samples)) / deviation
    p_values = 2 * torch.from_numpy(stdtr(len(samples) - 1, -t.cpu().numpy())).to(t.device)
    return torch.where(deviation == 0, (mean == 0).double(), p_values)
