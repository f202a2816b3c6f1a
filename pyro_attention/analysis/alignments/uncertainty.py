"""How certain attention is: entropies, credible intervals, prior against posterior, and the K largest weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_attention._checks import as_float
from pyro_attention.analysis.alignments.inputs import check_weights
from pyro_attention.analysis.inputs import check_floats, equal_tailed, split_entropy

__all__ = [
    "AlignmentUncertainty",
    "AlignmentUpdate",
    "CredibleIntervals",
    "alignment_uncertainty",
    "credible_intervals",
    "k_max",
    "prior_to_posterior",
]


@dataclass(frozen=True)
class AlignmentUncertainty:
    """Entropy of each target word's source distribution by source, in nats: ``entropy = expected + mutual``.

    Attributes:
        entropy: Entropy of the mean weights, ``[M]``, 0 to log N.
        expected_entropy: Mean entropy of the samples' weights, ``[M]``: what stays if the weights were known.
        mutual_information: Entropy minus expected entropy, >= 0, ``[M]``: how much the samples disagree.
    """

    entropy: Tensor
    expected_entropy: Tensor
    mutual_information: Tensor


def alignment_uncertainty(weights: Tensor) -> AlignmentUncertainty:
    r"""Split the entropy of attention, :math:`H[\bar w_j] = \frac1S \sum_s H[w_j^{(s)}] + I_j`.

    ``entropy.mean()`` is the entropy that papers report; for a corpus take the mean over the target words of all
    sentences, not of the sentences' means. Weights on dropped special tokens belong to no source word: renormalise the
    rows first, else they are not distributions.

    Args:
        weights: ``[M, N]``, whose mutual information is 0, or samples of them ``[S, M, N]``.

    Raises:
        TypeError: Weights are no floats.
        ValueError: Wrong shape, entries outside [0, 1], or rows that do not sum to one.

    Example:
        >>> samples = torch.tensor([[[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.5, 0.5]]])
        >>> parts = alignment_uncertainty(samples)
        >>> parts.entropy, parts.mutual_information
        (tensor([0.6931, 0.6931]), tensor([0.6931, 0.0000]))

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, table 3; the split: Depeweg et al. (2018),
    Decomposition of Uncertainty in Bayesian Deep Learning, section 3.
    """
    return AlignmentUncertainty(*split_entropy(check_weights(weights, whole=True)))


@dataclass(frozen=True)
class CredibleIntervals:
    """Mean and equal-tailed credible interval of every weight, each ``[M, N]``.

    Attributes:
        mean: Mean weights.
        low: Lower ends.
        high: Upper ends.
        level: Posterior mass of each interval.
    """

    mean: Tensor
    low: Tensor
    high: Tensor
    level: float

    @property
    def width(self) -> Tensor:
        """Upper minus lower ends, ``[M, N]``, 0 to 1."""
        return self.high - self.low


def credible_intervals(samples: Tensor, *, level: float = 0.9) -> CredibleIntervals:
    r"""Interval of every weight that leaves :math:`(1 - \mathrm{level}) / 2` of the samples on either side.

    The ends are interpolated between samples, as by :func:`torch.quantile`; they say little about a level beyond
    ``1 - 2 / S``. Each interval is that of one weight, not of all of a row at once. Samples of a graph, ``[S, E, H]``,
    are those of :func:`edge_intervals`.

    Args:
        samples: ``[S, M, N]``, S at least 2.
        level: Posterior mass in (0, 1).

    Raises:
        TypeError: Samples are no floats.
        ValueError: Wrong shape, a single sample, entries outside [0, 1], rows that sum to more than one, or a level
            outside (0, 1).

    Example:
        >>> samples = torch.linspace(0, 1, 11).view(11, 1, 1)
        >>> intervals = credible_intervals(torch.cat([samples, 1 - samples], -1), level=0.8)
        >>> intervals.low, intervals.width
        (tensor([[0.1000, 0.1000]]), tensor([[0.8000, 0.8000]]))
    """
    checked = check_weights(samples, name="samples", min_samples=2)
    return CredibleIntervals(*equal_tailed(checked, level), level)


@dataclass(frozen=True)
class AlignmentUpdate:
    """How far the posterior moves each target word's source distribution away from the prior's.

    Attributes:
        kl: KL(posterior || prior), nats, ``[M]``; infinite where the posterior is above 0 and the prior is 0.
        total_variation: Half the sum of absolute differences, 0 to 1, ``[M]``.
    """

    kl: Tensor
    total_variation: Tensor


def prior_to_posterior(prior: Tensor, posterior: Tensor) -> AlignmentUpdate:
    r"""Divergences of mean weights, :math:`\sum_i q_{ji} \log(q_{ji} / p_{ji})` and :math:`\frac12 \|q_j - p_j\|_1`.

    Prior p and posterior q are taken as categorical distributions over source words. For categorical alignments this
    is the KL of the ELBO; for continuous weights that one compares densities of weights and is another number.

    Args:
        prior: Weights of the prior, ``[M, N]``, or samples ``[S, M, N]``.
        posterior: Weights of the posterior, likewise; the numbers of samples may differ.

    Raises:
        TypeError: Weights are no floats.
        ValueError: Wrong or different shapes, entries outside [0, 1], or rows that do not sum to one.

    Example:
        >>> prior_to_posterior(torch.tensor([[0.5, 0.5]]), torch.tensor([[1.0, 0.0]]))
        AlignmentUpdate(kl=tensor([0.6931]), total_variation=tensor([0.5000]))
    """
    pairs = (("prior", prior), ("posterior", posterior))
    checked = [check_weights(weights, name=name, whole=True) for name, weights in pairs]
    shapes = [tuple(weights.shape[1:]) for weights in checked]
    if shapes[0] != shapes[1]:
        raise ValueError(f"prior is of shape [M, N] = {shapes[0]}, posterior {shapes[1]}; expected the same")
    p, q = (weights.double().mean(0) for weights in checked)
    kl = (torch.special.xlogy(q, q) - torch.special.xlogy(q, p)).sum(-1).clamp_min(0.0)
    variation = (q - p).abs().sum(-1) / 2
    return AlignmentUpdate(kl.to(checked[1].dtype), variation.to(checked[1].dtype))


def k_max(weights: Tensor, k: int) -> Tensor:
    r"""Keep the k largest weights of each row, :math:`w_{ji} [i \in K_j] / \sum_{i' \in K_j} w_{ji'}`.

    Of equal weights the first are kept. Zeros, such as masked keys, stay exactly zero, and a row of zeros stays one.

    Args:
        weights: Attention weights ``[..., N]``, >= 0.
        k: Number of weights to keep; at least 1.

    Returns:
        Of the shape of weights, in at least float32; gradients flow through the kept weights.

    Raises:
        TypeError: Weights are no floats, or k is no int.
        ValueError: No weights, negative or infinite ones or NaN, or a k below 1.

    Example:
        >>> k_max(torch.tensor([[0.5, 0.25, 0.25, 0.0], [1.0, 0.0, 0.0, 0.0]]), 2)
        tensor([[0.6667, 0.3333, 0.0000, 0.0000],
                [1.0000, 0.0000, 0.0000, 0.0000]])

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, section 5, K-max.
    """
    check_floats("weights", weights)
    if not isinstance(k, int) or isinstance(k, bool):
        raise TypeError(f"k is {k!r}, expected an int")
    if k < 1:
        raise ValueError(f"k is {k}, expected at least 1")
    if weights.dim() == 0 or weights.size(-1) == 0:
        raise ValueError(f"weights have shape {tuple(weights.shape)}, expected [..., N] with N at least 1")
    if not (weights >= 0).all() or weights.isinf().any():
        raise ValueError("weights have an entry that is below 0, infinite or NaN, expected finite numbers >= 0")
    weights = as_float(weights)
    # stable: topk may take any of equal weights
    order = weights.detach().sort(dim=-1, descending=True, stable=True).indices[..., :k]
    kept = weights * torch.zeros_like(weights).scatter_(-1, order, 1.0)
    sums = kept.sum(-1, keepdim=True)
    return kept / sums.masked_fill(sums == 0, 1.0)
