"""Prior and posterior alignment between what is attended to and the word pieces of given sentences."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from experiments.data.text.batches import Batch
from experiments.sequence.model import AnyTrained, model_arguments
from models.decoding import target_alignments
from pyro_attention import Amortized, FixedGammaPrior, Soft, sample_posterior
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
    """Weights between the word pieces of a batch and what they attend to; zeros at the padding of the source."""

    prior: Tensor | None  # its mean [B, M, N]; None where it is the same for all keys, or under soft attention
    posterior: Tensor  # samples [S, B, M, N], or its mean where that is exact, with S = 1
    exact: Tensor | None = None  # [B, M, N], where it was asked for and the posterior is none of z given y


@torch.no_grad()
def align_batch(
    trained: AnyTrained, batch: Batch, *, num_samples: int, exact: bool = False, **drawing: Any
) -> BatchAlignment:
    """Prior and posterior alignment of the pieces of a batch, given its target sentences.

    ============================== ==================================================================
    scheme                         posterior
    ============================== ==================================================================
    with an inference network      q(z | x, y); samples of it where its mean is no closed form
    other alignments               exact, p(z | x, y_1..j)
    Bayesian attention             samples of q(W | x, y_1..j-1)
    soft                           its weights
    ============================== ==================================================================

    Where the decoder is fed with sampled contexts, it is fed with the expected one here, as for perplexity and
    decoding. ``exact`` asks also for the posterior of the second row where there is an inference network of alignments
    that can be summed out, and for :func:`posterior_attention` of the last two; it takes a pass over the output layer
    for every key. ``drawing`` are options of :func:`sample_posterior`, such as its noise, for the last two.
    """
    trained.module.eval()
    trained_with = trained.model.input_feed
    if trained_with == "sampled":
        trained.model.input_feed = "expected"
    try:
        return _align_batch(trained, batch, num_samples, exact, drawing)
    finally:
        trained.model.input_feed = trained_with


def _align_batch(trained: AnyTrained, batch: Batch, num_samples: int, exact: bool, drawing: Any) -> BatchAlignment:
    arguments = model_arguments(batch)
    nodes: Any = trained.guide.run(*arguments).trace.nodes
    site = nodes["alignment"]
    prior, posterior, family = site["infer"]["prior"], site["fn"], trained.guide.family("alignment")
    fixed = isinstance(trained.model.attention.prior, FixedGammaPrior | FixedLogNormalPrior | FixedGaussianPrior)
    mean = None if fixed else prior.mean_weights(trained.model.attention.normalizer).squeeze(-2)
    if prior.kind != AlignmentPrior.kind:
        count = 1 if isinstance(family, Soft) and not drawing else num_samples
        explains = exact and prior.kind == LogWeights.kind  # of a Dirichlet posterior there is no such reading
        with seeded(trained.config.seed):
            drawing = {"num_samples": count, "chunk_size": _CHUNK, **drawing}
            samples = sample_posterior(trained.guide, *arguments, **drawing)
            found = posterior_attention(trained.guide, *arguments, num_samples=min(count, _CHUNK)) if explains else {}
        summed = found["alignment"].squeeze(-2) if explains else None
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
    """Return whether the posterior is of an inference network, and the exact one has all keys.

    Under a sparse prior the exact one leaves keys out, to which a network may give probability.
    """
    family, prior = trained.guide.family("alignment"), trained.model.attention.prior
    amortized = isinstance(family, Amortized) and trained.family.kind == AlignmentPrior.kind
    return amortized and not isinstance(prior, SparseAlignmentPrior)


def predicts_by_posterior(trained: AnyTrained) -> bool:
    """Whether words are predicted from posterior weights, as in Bayesian attention, and not from a prior alignment."""
    return trained.family.kind in (LogWeights.kind, GaussianWeights.kind)


class EntropySums:
    """Mean entropy of predictive and of posterior weights over the word pieces of many batches, and their movement.

    Of sparse alignments also the mean number of keys with a positive probability; of inference networks how far they
    are from the exact posterior, where that was asked for of :func:`align_batch`.
    """

    def __init__(self) -> None:
        self._sums, self._counts = defaultdict[str, float](float), defaultdict[str, int](int)

    def _count(self, metric: str, numbers: Tensor) -> None:
        self._sums[metric] += numbers.double().sum().item()
        self._counts[metric] += numbers.numel()

    def add(self, trained: AnyTrained, batch: Batch, found: BatchAlignment) -> None:
        """Count a batch, unless its weights are Gaussian: negative ones have no entropy."""
        if trained.family.kind == GaussianWeights.kind:
            return
        mask, prior, posterior = batch.target_mask, found.prior, found.posterior.mean(0)
        # words are predicted from the prior; from the posterior under Bayesian attention
        predictive = posterior if prior is None or predicts_by_posterior(trained) else prior
        before, after = (torch.special.entr(weights.double()).sum(-1) for weights in (predictive, posterior))
        self._count("test_entropy", before[mask])
        self._count("test_posterior_entropy", after[mask])
        # under a sparse prior the posterior has the prior's keys, though it may be too small there for a number
        sparse = prior if isinstance(trained.model.attention.prior, SparseAlignmentPrior) else None
        sparse = posterior if isinstance(trained.family, SparseCategorical) else sparse
        if sparse is not None:
            self._count("test_support", (sparse > 0).sum(-1)[mask])
        places = batch.source_mask.sum(1, keepdim=True)
        self._count("test_relative_entropy", (after / places.clamp(min=2).log())[mask & (places > 1)])
        words = mask.sum(1, keepdim=True)
        mean = (posterior.double() * mask.unsqueeze(-1)).sum(1, keepdim=True) / words.unsqueeze(-1)
        distance = 0.5 * (posterior - mean).abs().sum(-1)
        self._count("test_attention_change", distance[mask & (words > 1)])
        if found.exact is not None and has_posterior_gap(trained):
            # a key that is too improbable for a float counts as the least probable one, which only makes the gap less
            exact = found.exact.clamp(min=torch.finfo(torch.float32).tiny).double()
            gap = torch.xlogy(posterior.double(), posterior) - posterior * exact.log()
            self._count("test_posterior_gap", gap.sum(-1)[mask])

    @property
    def metrics(self) -> dict[str, float]:
        """The means, by the names of docs/metrics.md; nothing where no batch was counted."""
        return {metric: self._sums[metric] / count for metric, count in self._counts.items() if count}
