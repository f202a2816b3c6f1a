"""Links out of the probabilities of one direction of translation, or of both."""

from __future__ import annotations

from torch import Tensor

from experiments.nmt.alignments import PairAlignment
from experiments.nmt.config import CombineName, MethodName, ProbabilityCombineName
from pyro_attention.analysis import Alignment, hard_alignment, mbr_alignment, symmetrise

__all__ = ["choose_links", "combine_pairs", "combine_weights", "link_both"]


def combine_weights(forward: Tensor, backward: Tensor, *, combine: ProbabilityCombineName) -> Tensor:
    r"""Probability of every link by both directions: the product of their posteriors, its root, or the mean.

    The product, :math:`p_{ji}\, p'_{ij}`, is large only where both directions agree, but smaller than both where they
    do: of two probabilities of .6 it makes .36. Its root, the geometric mean, keeps their scale, by which minimum Bayes
    risk chooses links.

    Args:
        forward: Weights of source words for each target word, ``[..., M, N]``.
        backward: Of target words for each source word, ``[..., N, M]``.
        combine: "product", "geometric" or "mean".

    Returns:
        ``[..., M, N]``, in [0, 1]; rows may have any sum.

    Example:
        >>> import torch
        >>> forward, backward = torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [0.5, 0.5]])
        >>> combine_weights(forward, backward, combine="product")
        tensor([[0.5000, 0.2500],
                [0.0000, 0.5000]])
        >>> combine_weights(forward, backward, combine="geometric")
        tensor([[0.7071, 0.5000],
                [0.0000, 0.7071]])

    Source: Liang, Taskar and Klein (2006), Alignment by Agreement, section 2, for the product.
    """
    turned = backward.mT
    if combine == "mean":
        return (forward + turned) / 2
    product = forward * turned
    return product if combine == "product" else product.sqrt()


def combine_pairs(forward: PairAlignment, backward: PairAlignment, *, combine: ProbabilityCombineName) -> PairAlignment:
    """The alignment of one sentence pair by both directions, whose rows may have any sum; draws are put together.

    Where one direction has a single posterior and the other one samples, each sample meets the single one.
    """
    posterior = combine_weights(*_as_many(forward.posterior, backward.posterior), combine=combine)
    prior = None
    if forward.prior is not None and backward.prior is not None:
        prior = combine_weights(forward.prior, backward.prior, combine=combine)
    return PairAlignment(forward.source, forward.target, prior, posterior)


def _as_many(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Samples ``[S, ...]`` of both, as many; the smaller number counts unless it is 1."""
    counts = {len(first), len(second)} - {1}
    count = min(counts, default=1)
    cut = [samples[:count].expand(count, *samples.shape[1:]) for samples in (first, second)]
    return cut[0], cut[1]


def choose_links(probabilities: Tensor, *, method: MethodName, threshold: float = 0.5) -> Alignment:
    """Links by probabilities ``[M, N]`` whose rows may have any sum; no argmax, which says nothing of no link.

    Raises:
        ValueError: The method is argmax, or probabilities outside [0, 1].
    """
    if method == "mbr":
        return mbr_alignment(probabilities)
    if method == "threshold":
        return Alignment.from_matrix(probabilities > threshold)
    raise ValueError(f"method is {method}, expected mbr or threshold for probabilities of both directions")


def link_both(
    forward: Tensor, backward: Tensor, *, combine: CombineName, method: MethodName = "argmax", threshold: float = 0.5
) -> Alignment:
    """Links by the weights of both directions, ``[M, N]`` and ``[N, M]``: their links or their probabilities combined.

    Args:
        forward: Weights of source words for each target word.
        backward: Weights of target words for each source word.
        combine: How links are symmetrised, or "product", "geometric" or "mean" of the probabilities.
        method: How links are chosen, of each direction or of the combined probabilities.
        threshold: Least probability of a link, for the method "threshold".
    """
    if combine == "product" or combine == "geometric" or combine == "mean":
        return choose_links(combine_weights(forward, backward, combine=combine), method=method, threshold=threshold)
    first, second = (hard_alignment(part, method=method, threshold=threshold) for part in (forward, backward))
    return symmetrise(first, second.transposed(), method=combine)
