"""Alignments of given translations: prior and posterior between words, by one direction or by both, and links."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from torch import Tensor
from tqdm import tqdm

from experiments.datasets.text.batches import Batch
from experiments.datasets.text.parallel_text import ParallelText
from experiments.nmt.config import CombineName, MethodName, ProbabilityCombineName
from experiments.nmt.model import Trained, batches
from experiments.sequence.alignments import EntropySums, align_batch, has_posterior_gap, predicts_by_posterior
from pyro_attention.analysis import (
    Alignment,
    alignment_error_rate,
    hard_alignment,
    mbr_alignment,
    merge_pieces,
    symmetrise,
)

__all__ = [
    "PairAlignment", "align_pairs", "aligned_pairs", "alignment_summary", "combine_pairs", "combine_weights",
    "link_both",
]  # fmt: skip


@dataclass(frozen=True)
class PairAlignment:
    """Weights between the words of one sentence pair; what a row lacks to one is the probability of no link.

    Attributes:
        source: Words of the source, N.
        target: Words of the target, M.
        prior: Mean of the prior ``[M, N]``; None where it is the same for all words, or under soft attention.
        posterior: ``[S, M, N]``.
        exact: The exact posterior ``[M, N]``, where it was asked for and ``posterior`` is that of an inference network.
    """

    source: list[str]
    target: list[str]
    prior: Tensor | None
    posterior: Tensor
    exact: Tensor | None = None

    @property
    def links(self) -> Alignment:
        """Every target word with its most probable source word; none where NULL is more probable."""
        return hard_alignment(self.posterior.mean(0))


def align_pairs(
    trained: Trained,
    text: ParallelText,
    batches: Iterable[Batch],
    *,
    num_samples: int,
    exact: bool = False,
    entropies: EntropySums | None = None,
) -> Iterator[tuple[int, PairAlignment]]:
    """Place in the text and word alignment of every sentence pair; entropies are summed where they are asked for.

    ``exact`` as in :func:`experiments.sequence.alignments.align_batch`.
    """
    null = trained.model.null_word is not None
    for batch in batches:
        found = align_batch(trained, batch, num_samples=num_samples, exact=exact)
        if entropies is not None:
            entropies.add(trained, batch, found)
        for row, index in enumerate(batch.indices.tolist()):
            source = trained.vocabulary.words(batch.source[row][batch.source_mask[row]].tolist())
            target = trained.vocabulary.words(batch.target_out[row][batch.target_mask[row]].tolist())
            if null:
                source = [None, *source]
            cut = slice(len(target)), slice(len(source))
            merge = partial(merge_pieces, source=source, target=target, renormalise=not null)
            prior = None if found.prior is None else merge(found.prior[row][cut])
            posterior = merge(found.posterior[:, row][:, *cut])
            summed = None if found.exact is None else merge(found.exact[row][cut])
            words = text.source[index].split(), text.target[index].split()
            yield index, PairAlignment(*words, prior, posterior, summed)


def aligned_pairs(
    trained: Trained, text: ParallelText, *, num_samples: int, exact: bool = False, progress: bool = False
) -> list[PairAlignment]:
    """Alignments of all sentence pairs, in the order of the text; ``exact`` as of a batch."""
    found = align_pairs(trained, text, batches(trained, text), num_samples=num_samples, exact=exact)
    shown = tqdm(found, desc="aligning", total=len(text), unit="sentence", disable=not progress)
    return [pair for _, pair in sorted(shown, key=lambda one: one[0])]


def alignment_summary(trained: Trained, text: ParallelText) -> dict[str, float]:
    """Entropies, and alignment error rates where the text has gold links; see the DEFINITIONS of the evaluation."""
    count, exact, entropies = trained.config.num_samples, has_posterior_gap(trained), EntropySums()
    pairs = dict(
        align_pairs(trained, text, batches(trained, text), num_samples=count, exact=exact, entropies=entropies)
    )
    summary = entropies.metrics
    gold = text.gold
    if gold is None:
        return summary
    ordered = [pairs[index] for index in range(len(text))]
    found = [hard_alignment(pair.prior) for pair in ordered if pair.prior is not None]
    # the prior of Bayesian attention sees the source alone, and is the same for every target word: it aligns nothing
    if found and not predicts_by_posterior(trained):
        summary["test_prior_aer"] = alignment_error_rate(found, gold).aer
    summary["test_posterior_aer"] = alignment_error_rate([pair.links for pair in ordered], gold).aer
    return summary


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


def _choose_links(probabilities: Tensor, *, method: MethodName, threshold: float = 0.5) -> Alignment:
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
        return _choose_links(combine_weights(forward, backward, combine=combine), method=method, threshold=threshold)
    first, second = (hard_alignment(part, method=method, threshold=threshold) for part in (forward, backward))
    return symmetrise(first, second.transposed(), method=combine)
