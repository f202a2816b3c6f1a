"""Prior and posterior weights between the source and the word pieces of given sentences."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from experiments.data.text.batches import Batch
from experiments.sequence.model import AnyTrained, model_arguments
from models.decoding import target_alignments
from pyro_attention import Amortized, FixedGammaPrior, Soft, importance_posterior, sample_posterior
from pyro_attention.alignments.exact import posterior_attention
from pyro_attention.alignments.posteriors import SparseCategorical
from pyro_attention.alignments.priors import AlignmentPrior, SparseAlignmentPrior
from pyro_attention.families.distribution import LogWeights
from pyro_attention.families.gaussian import FixedGaussianPrior, GaussianWeights
from pyro_attention.families.lognormal import FixedLogNormalPrior
from pyro_attention.posterior.predictive import seeded

_CHUNK = 32  # posterior samples that are drawn in one pass


@dataclass(frozen=True)
class BatchAlignment:
    """Prior and posterior weights between the M word pieces and the N source positions of a batch.

    Weights at the padding of the source are zero.

    Attributes:
        prior: Mean of the prior, ``[B, M, N]``. None for a prior that is the same for all keys, and for soft attention.
        posterior: Posterior samples ``[S, B, M, N]``, or the posterior mean with S = 1 where it has a closed form.
        exact: Exact posterior p(z | x, y), ``[B, M, N]``. None unless it was requested and differs from ``posterior``.
    """

    prior: Tensor | None
    posterior: Tensor
    exact: Tensor | None = None


@torch.no_grad()
def align_batch(
    trained: AnyTrained,
    batch: Batch,
    *,
    num_samples: int,
    exact: bool = False,
    weighted: bool = False,
    **drawing: Any,
) -> BatchAlignment:
    """Return prior and posterior weights of the word pieces of a batch, given its target sentences.

    ============================== ==================================================================
    scheme                         posterior
    ============================== ==================================================================
    with an inference network      q(z | x, y); samples where its mean has no closed form
    other alignments               exact, p(z | x, y_1..j)
    Bayesian attention             samples of q(W | x, y_1..j-1)
    soft                           the attention weights
    ============================== ==================================================================

    The decoder is always fed with the expected context, as for perplexity and decoding, also if it was trained with
    sampled contexts.

    Args:
        trained: The network and its guide.
        batch: Source and target sentences.
        num_samples: Number S of posterior samples.
        exact: Also compute the exact posterior. For an inference network of alignments this is p(z | x, y_1..j); for
            Bayesian and soft attention it is :func:`posterior_attention`. It takes a pass over the output layer for
            every key.
        weighted: Resample the samples by their importance weights given the words (:func:`importance_posterior`),
            for Bayesian attention.
        drawing: Further options of :func:`sample_posterior`, such as ``noise``, for Bayesian and soft attention.
    """
    trained.module.eval()
    input_feed = trained.model.input_feed
    if input_feed == "sampled":
        trained.model.input_feed = "expected"
    try:
        return _align_with_expected_feed(trained, batch, num_samples, exact, weighted, drawing)
    finally:
        trained.model.input_feed = input_feed


def _align_with_expected_feed(
    trained: AnyTrained, batch: Batch, num_samples: int, exact: bool, weighted: bool, drawing: Any
) -> BatchAlignment:
    arguments = model_arguments(batch)
    nodes: Any = trained.guide.run(*arguments).trace.nodes
    site = nodes["alignment"]
    prior, posterior, family = site["infer"]["prior"], site["fn"], trained.guide.family("alignment")
    fixed = isinstance(trained.model.attention.prior, FixedGammaPrior | FixedLogNormalPrior | FixedGaussianPrior)
    mean = None if fixed else prior.mean_weights(trained.model.attention.normalizer).squeeze(-2)
    if prior.kind != AlignmentPrior.kind:
        count = 1 if isinstance(family, Soft) and not (drawing or weighted) else num_samples
        summable = exact and prior.kind == LogWeights.kind  # Dirichlet weights cannot be read as alignments
        with seeded(trained.config.seed):
            drawing = {"num_samples": count, "chunk_size": _CHUNK, **drawing}
            if weighted:
                samples = importance_posterior(trained.guide, *arguments, **drawing).resample()
            else:
                samples = sample_posterior(trained.guide, *arguments, **drawing)
            posteriors = (
                posterior_attention(trained.guide, *arguments, num_samples=min(count, _CHUNK)) if summable else {}
            )
        summed = posteriors["alignment"].squeeze(-2) if summable else None
        return BatchAlignment(mean, samples["alignment"].squeeze(-2), summed)
    if not isinstance(family, Amortized):
        return BatchAlignment(mean, _exact_alignment(trained, batch).unsqueeze(0))
    summed = _exact_alignment(trained, batch) if exact else None
    return BatchAlignment(mean, posterior.mean_value.squeeze(-2).unsqueeze(0), summed)


def _exact_alignment(trained: AnyTrained, batch: Batch) -> Tensor:
    model = trained.model
    state = model.start(model.encode(batch.source, batch.source_mask), batch.source_mask)
    return target_alignments(model, state, batch.target_in, batch.target_out, trained.inference())


def has_posterior_gap(trained: AnyTrained) -> bool:
    """Return whether an inference network gives the posterior, and its KL to the exact posterior is finite.

    Under a sparse prior the exact posterior gives some keys probability zero, where the network may give more.
    """
    family, prior = trained.guide.family("alignment"), trained.model.attention.prior
    amortized = isinstance(family, Amortized) and trained.family.kind == AlignmentPrior.kind
    return amortized and not isinstance(prior, SparseAlignmentPrior)


def predicts_by_posterior(trained: AnyTrained) -> bool:
    """Return whether words are predicted from posterior weights, as in Bayesian attention, not from a prior."""
    return trained.family.kind in (LogWeights.kind, GaussianWeights.kind)


class EntropySums:
    """Sums over the word pieces of many batches: entropies of the attention weights, and their change between words.

    Sparse alignments also have the number of keys with a positive probability. Inference networks have the KL to the
    exact posterior, if :func:`align_batch` computed it.
    """

    def __init__(self) -> None:
        self._sums, self._counts = defaultdict[str, float](float), defaultdict[str, int](int)

    def _count(self, metric: str, numbers: Tensor) -> None:
        self._sums[metric] += numbers.double().sum().item()
        self._counts[metric] += numbers.numel()

    def add(self, trained: AnyTrained, batch: Batch, alignment: BatchAlignment) -> None:
        """Add a batch. Gaussian weights are skipped, since negative weights have no entropy."""
        if trained.family.kind == GaussianWeights.kind:
            return
        mask, prior, posterior = batch.target_mask, alignment.prior, alignment.posterior.mean(0)
        # Bayesian attention predicts words from the posterior, all other schemes from the prior
        predictive = posterior if prior is None or predicts_by_posterior(trained) else prior
        entropy, posterior_entropy = (torch.special.entr(w.double()).sum(-1) for w in (predictive, posterior))
        self._count("test_entropy", entropy[mask])
        self._count("test_posterior_entropy", posterior_entropy[mask])
        # the posterior has the keys of a sparse prior, but some of its probabilities may underflow to zero
        sparse = prior if isinstance(trained.model.attention.prior, SparseAlignmentPrior) else None
        sparse = posterior if isinstance(trained.family, SparseCategorical) else sparse
        if sparse is not None:
            self._count("test_support", (sparse > 0).sum(-1)[mask])
        keys = batch.source_mask.sum(1, keepdim=True)
        self._count("test_relative_entropy", (posterior_entropy / keys.clamp(min=2).log())[mask & (keys > 1)])
        words = mask.sum(1, keepdim=True)
        mean = (posterior.double() * mask.unsqueeze(-1)).sum(1, keepdim=True) / words.unsqueeze(-1)
        distance = 0.5 * (posterior - mean).abs().sum(-1)
        self._count("test_attention_change", distance[mask & (words > 1)])
        if alignment.exact is not None and has_posterior_gap(trained):
            # probabilities that underflow are raised to the smallest float, which can only reduce the gap
            exact = alignment.exact.clamp(min=torch.finfo(torch.float32).tiny).double()
            gap = torch.xlogy(posterior.double(), posterior) - posterior * exact.log()
            self._count("test_posterior_gap", gap.sum(-1)[mask])

    @property
    def metrics(self) -> dict[str, float]:
        """Means by the names of docs/metrics.md; metrics without a word piece are missing."""
        return {metric: self._sums[metric] / count for metric, count in self._counts.items() if count}
