"""Alignments of given translations: prior and posterior between word pieces, and between words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from experiments.datasets.text.batches import Batch
from experiments.datasets.text.parallel_text import ParallelText
from experiments.nmt.model import Trained
from experiments.sequence.alignments import EntropySums, align_batch, has_posterior_gap, predicts_by_posterior
from pyro_attention.analysis import Alignment, alignment_error_rate, hard_alignment, merge_pieces

__all__ = ["PairAlignment", "align_pairs", "alignment_summary"]


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


def alignment_summary(trained: Trained, text: ParallelText, batches: Iterable[Batch]) -> dict[str, float]:
    """Entropies, and alignment error rates where the text has gold links; see the DEFINITIONS of the evaluation."""
    count, exact, entropies = trained.config.num_samples, has_posterior_gap(trained), EntropySums()
    pairs = dict(align_pairs(trained, text, batches, num_samples=count, exact=exact, entropies=entropies))
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
