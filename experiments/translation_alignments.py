"""Alignments of given translations: prior and posterior between word pieces, and between words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from experiments.datasets.batches import Batch
from experiments.datasets.parallel_text import ParallelText
from experiments.datasets.vocabulary import Vocabulary
from experiments.translation_model import Trained, model_arguments
from models.next_word import word_alignment
from models.nmt import Translation
from pyro_attention import (
    Amortised,
    CategoricalAlignment,
    FixedGammaPrior,
    FixedLogNormalPrior,
    LogWeights,
    Soft,
    sample_posterior,
)
from pyro_attention.analysis import Alignment, GoldAlignment, alignment_error_rate, hard_alignment, merge_pieces
from pyro_attention.predictive import seeded

__all__ = ["PairAlignment", "align_batch", "align_pairs", "alignment_summary"]


@dataclass(frozen=True)
class BatchAlignment:
    """Weights between the word pieces of a batch; zeros at the padding of the source.

    Attributes:
        prior: Mean of the prior ``[B, M, N]``; None where it is the same for all keys, or under soft attention.
        posterior: Samples of the posterior ``[S, B, M, N]``, or its mean where that is exact, with S = 1.
    """

    prior: Tensor | None
    posterior: Tensor


@dataclass(frozen=True)
class PairAlignment:
    """Weights between the words of one sentence pair; rows sum to one.

    Attributes:
        source: Words of the source, N.
        target: Words of the target, M.
        prior: As in :class:`BatchAlignment`, ``[M, N]``.
        posterior: ``[S, M, N]``.
    """

    source: list[str]
    target: list[str]
    prior: Tensor | None
    posterior: Tensor

    @property
    def links(self) -> Alignment:
        """Every target word with its most probable source word."""
        return hard_alignment(self.posterior.mean(0))


@torch.no_grad()
def align_batch(trained: Trained, batch: Batch, *, num_samples: int) -> BatchAlignment:
    """Prior and posterior alignment of the pieces of a batch, given its translations.

    ============================== ==================================================================
    scheme                         posterior
    ============================== ==================================================================
    with an inference network      q(z | x, y); samples of it where its mean is no closed form
    other alignments               exact, p(z | x, y_1..j)
    Bayesian attention             samples of q(W | x, y_1..j-1)
    soft                           its weights
    ============================== ==================================================================

    The decoder is fed with the expected context, as for perplexity and translation.
    """
    trained.module.eval()
    with _expected_feed(trained.model):
        return _align_batch(trained, batch, num_samples)


def _align_batch(trained: Trained, batch: Batch, num_samples: int) -> BatchAlignment:
    arguments, site = model_arguments(batch), _attention_site(trained, batch)
    prior, posterior = site["infer"]["prior"], site["fn"]
    model, family = trained.model, trained.guide.family("alignment")
    shown = not isinstance(model.attention.prior, FixedGammaPrior | FixedLogNormalPrior)
    mean = _mean_weights(prior).squeeze(-2) if shown else None
    if isinstance(family, Amortised) and isinstance(posterior, CategoricalAlignment):
        return BatchAlignment(mean, posterior.expected_weights.squeeze(-2).unsqueeze(0))
    if prior.kind != CategoricalAlignment.kind:
        count = 1 if isinstance(family, Soft) else num_samples
        with seeded(trained.config.seed):
            samples = sample_posterior(trained.guide, *arguments, num_samples=count, chunk_size=count)
        return BatchAlignment(mean, samples["alignment"].squeeze(-2))
    state, rows = model.start(model.encode(*arguments[:2]), batch.source_mask), []
    for word, wanted in zip(model.embed(batch.target_in).unbind(1), batch.target_out.unbind(1), strict=True):
        state, queries, scores = model.step(state, word)
        rows.append(word_alignment(model, state, queries, scores, wanted, family=family))
    return BatchAlignment(mean, torch.stack(rows, 1).unsqueeze(0))


@contextmanager
def _expected_feed(model: Translation) -> Iterator[None]:
    trained_with = model.input_feed
    model.input_feed = "expected"
    try:
        yield
    finally:
        model.input_feed = trained_with


def _attention_site(trained: Trained, batch: Batch) -> dict:
    """The trace node of the alignment, with prior and posterior."""
    guide = trained.guide
    guide.run(*model_arguments(batch))
    node: dict = guide.trace.nodes["alignment"]
    del guide.trace
    return node


def _mean_weights(prior) -> Tensor:
    """Expected weights; where they have no closed form, the weights of the expected S."""
    if hasattr(prior, "expected_weights"):
        return prior.expected_weights
    return prior.weights(prior.log_expected_weight.expand(prior.full_shape))


def align_pairs(
    trained: Trained, text: ParallelText, batches: Iterable[Batch], *, num_samples: int
) -> Iterator[tuple[int, PairAlignment]]:
    """Place in the text and word alignment of every sentence pair."""
    for batch in batches:
        found = align_batch(trained, batch, num_samples=num_samples)
        for row, index in enumerate(batch.indices.tolist()):
            maps = {
                "source": _words(trained.vocabulary, batch.source[row], batch.source_mask[row]),
                "target": _words(trained.vocabulary, batch.target_out[row], batch.target_mask[row]),
            }
            cut = slice(len(maps["target"])), slice(len(maps["source"]))
            prior = None if found.prior is None else merge_pieces(found.prior[row][cut], **maps, renormalise=True)
            posterior = merge_pieces(found.posterior[:, row][:, *cut], **maps, renormalise=True)
            yield index, PairAlignment(text.source[index].split(), text.target[index].split(), prior, posterior)


def _words(vocabulary: Vocabulary, ids: Tensor, mask: Tensor) -> list[int | None]:
    return vocabulary.words(ids[mask].tolist())


def alignment_summary(trained: Trained, text: ParallelText, batches: Iterable[Batch]) -> dict[str, float]:
    """Entropies, and alignment error rates where the text has gold links; see the DEFINITIONS of the evaluation."""
    num_samples, sums, count = trained.config.num_samples, torch.zeros(2, dtype=torch.float64), 0
    pairs: dict[int, PairAlignment] = {}
    for batch in batches:
        found = align_batch(trained, batch, num_samples=num_samples)
        posterior = found.posterior.mean(0)
        predictive = found.prior if found.prior is not None and _predicts_by_prior(trained) else posterior
        for place, weights in enumerate((predictive, posterior)):
            sums[place] += torch.special.entr(weights.double()).sum(-1)[batch.target_mask].sum().cpu()
        count += int(batch.target_mask.sum())
        if text.alignments is not None:
            pairs |= dict(align_pairs(trained, text, [batch], num_samples=num_samples))
    summary = {"test_entropy": sums[0].item() / count, "test_posterior_entropy": sums[1].item() / count}
    if text.alignments is None:
        return summary
    gold = [GoldAlignment(alignment.links) for alignment in text.alignments]
    ordered = [pairs[index] for index in range(len(text))]
    if ordered[0].prior is not None:
        found = [hard_alignment(pair.prior) for pair in ordered]
        summary["test_prior_aer"] = alignment_error_rate(found, gold).aer
    summary["test_posterior_aer"] = alignment_error_rate([pair.links for pair in ordered], gold).aer
    return summary


def _predicts_by_prior(trained: Trained) -> bool:
    """Whether words are predicted from the prior; Bayesian attention predicts from its posterior."""
    return trained.family.kind != LogWeights.kind
