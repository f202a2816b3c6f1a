"""Alignments of given translations: prior and posterior between words, by one direction or by both, and links."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor
from tqdm import tqdm

from experiments.datasets.text.parallel_text import ParallelText
from experiments.nmt.config import CombineName, ProbabilityCombineName
from experiments.nmt.model import Trained, batches
from experiments.sequence.alignments import EntropySums, align_batch, has_posterior_gap, predicts_by_posterior
from pyro_attention.analysis import (
    Alignment,
    alignment_error_rate,
    hard_alignment,
    mbr_alignment,
    merge_pieces,
    symmetrize,
)


@dataclass(frozen=True)
class PairAlignment:
    """Weights between the words of one sentence pair; what a row lacks to one is the probability of no link."""

    source: list[str]  # N words
    target: list[str]  # M words
    prior: Tensor | None  # its mean [M, N]; None where it is the same for all words, or under soft attention
    posterior: Tensor  # [S, M, N]
    exact: Tensor | None = None  # [M, N], where it was asked for and the posterior is none of z given y

    @property
    def links(self) -> Alignment:
        """Every target word with its most probable source word; none where NULL is more probable."""
        return hard_alignment(self.posterior.mean(0))


def aligned_pairs(
    trained: Trained,
    text: ParallelText,
    *,
    num_samples: int,
    exact: bool = False,
    entropies: EntropySums | None = None,
    progress: bool = False,
    **drawing: Any,
) -> list[PairAlignment]:
    """Word alignments of all sentence pairs, in the order of the text.

    ``exact`` and ``drawing`` as of :func:`experiments.sequence.alignments.align_batch`; the entropies are summed where
    they are given.
    """
    null = trained.model.null_word is not None
    pairs = dict[int, PairAlignment]()
    bar = tqdm(desc="aligning", total=len(text), unit="sentence", disable=not progress)
    for batch in batches(trained, text):
        found = align_batch(trained, batch, num_samples=num_samples, exact=exact, **drawing)
        if entropies is not None:
            entropies.add(trained, batch, found)
        for row, index in enumerate(batch.indices.tolist()):
            source = trained.vocabulary.words(batch.source[row][batch.source_mask[row]].tolist())
            target = trained.vocabulary.words(batch.target_out[row][batch.target_mask[row]].tolist())
            if null:
                source = [None, *source]
            cut = slice(len(target)), slice(len(source))
            merge = partial(merge_pieces, source=source, target=target, renormalize=not null)
            prior, summed = (None if part is None else merge(part[row][cut]) for part in (found.prior, found.exact))
            words = text.source[index].split(), text.target[index].split()
            pairs[index] = PairAlignment(*words, prior, merge(found.posterior[:, row][:, *cut]), summed)
        bar.update(len(batch))
    bar.close()
    return [pairs[index] for index in range(len(text))]


def alignment_summary(trained: Trained, text: ParallelText) -> dict[str, float]:
    """Entropies, and alignment error rates where the text has gold links; see the DEFINITIONS of the evaluation."""
    count, exact, entropies = trained.config.num_samples, has_posterior_gap(trained), EntropySums()
    pairs = aligned_pairs(trained, text, num_samples=count, exact=exact, entropies=entropies)
    summary, gold = entropies.metrics, text.gold
    if gold is None:
        return summary
    # the prior of Bayesian attention sees the source alone, and is the same for every target word: it aligns nothing
    priors = [] if predicts_by_posterior(trained) else [pair.prior for pair in pairs]
    if links := [hard_alignment(prior) for prior in priors if prior is not None]:
        summary["test_prior_aer"] = alignment_error_rate(links, gold).aer
    summary["test_posterior_aer"] = alignment_error_rate([pair.links for pair in pairs], gold).aer
    return summary


def combine_weights(forward: Tensor, backward: Tensor, *, combine: ProbabilityCombineName) -> Tensor:
    r"""Probability ``[..., M, N]`` of every link by both directions, ``[..., M, N]`` and ``[..., N, M]``.

    The product of their posteriors, :math:`p_{ji}\, p'_{ij}` (Liang, Taskar and Klein, 2006, Alignment by Agreement,
    section 2), is large only where both agree, but smaller than both where they do. Its root, the geometric mean, keeps
    their scale, by which minimum Bayes risk chooses links.
    """
    if combine == "mean":
        return (forward + backward.mT) / 2
    product = forward * backward.mT
    return product if combine == "product" else product.sqrt()


def combine_pairs(forward: PairAlignment, backward: PairAlignment, *, combine: ProbabilityCombineName) -> PairAlignment:
    """The posterior of one sentence pair by both directions, whose rows may have any sum; draws are put together.

    Where one direction has a single posterior and the other one samples, each sample meets the single one.
    """
    first, second = forward.posterior, backward.posterior
    count = min({len(first), len(second)} - {1}, default=1)
    posterior = combine_weights(first[:count], second[:count], combine=combine)
    return PairAlignment(forward.source, forward.target, None, posterior)


def link_both(forward: Tensor, backward: Tensor, *, combine: CombineName, threshold: float | None = None) -> Alignment:
    """Links by the weights of both directions, ``[M, N]`` and ``[N, M]``: their links or their probabilities combined.

    Links are those above the threshold. Without one they are of minimum Bayes risk where probabilities are combined,
    else of each direction the most probable ones.
    """
    if combine == "product" or combine == "geometric" or combine == "mean":
        probabilities = combine_weights(forward, backward, combine=combine)
        return mbr_alignment(probabilities) if threshold is None else Alignment.from_matrix(probabilities > threshold)
    first, second = (hard_links(part, threshold) for part in (forward, backward))
    return symmetrize(first, second.transposed(), method=combine)


def hard_links(weights: Tensor, threshold: float | None = None) -> Alignment:
    """Links ``[M, N]`` above a threshold, or every target word's most probable one."""
    if threshold is None:
        return hard_alignment(weights)
    return Alignment.from_matrix(weights > threshold)
