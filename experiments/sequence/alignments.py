"""Prior and posterior alignment between what is attended to and the word pieces of given sentences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from experiments.datasets.text.batches import Batch
from experiments.sequence.model import AnyTrained, model_arguments
from models.decoding import smoothed_alignments, target_alignments
from pyro_attention import (
    Amortised,
    FixedGammaPrior,
    FixedLogNormalPrior,
    Soft,
    SparseAlignmentPrior,
    SparseCategorical,
    sample_posterior,
)
from pyro_attention.families.alignment import CategoricalAlignment
from pyro_attention.families.distribution import LogWeights
from pyro_attention.families.gaussian import FixedGaussianPrior, GaussianWeights
from pyro_attention.posterior.predictive import seeded

__all__ = ["BatchAlignment", "EntropySums", "align_batch", "has_posterior_gap", "predicts_by_posterior"]

_MEMORY = 1e9  # bytes that the posterior samples of one pass may take


@dataclass(frozen=True)
class BatchAlignment:
    """Weights between the word pieces of a batch and what they attend to; zeros at the padding of the source.

    In a model with a NULL word that is the first of N.

    Attributes:
        prior: Mean of the prior ``[B, M, N]``; None where it is the same for all keys, or under soft attention.
        posterior: Samples of the posterior ``[S, B, M, N]``, or its mean where that is exact, with S = 1.
        exact: The exact posterior ``[B, M, N]``, where it was asked for and an inference network's stands in its place.
    """

    prior: Tensor | None
    posterior: Tensor
    exact: Tensor | None = None


@torch.no_grad()
def align_batch(trained: AnyTrained, batch: Batch, *, num_samples: int, exact: bool = False) -> BatchAlignment:
    """Prior and posterior alignment of the pieces of a batch, given its target sentences.

    ============================== ==================================================================
    scheme                         posterior
    ============================== ==================================================================
    with an inference network      q(z | x, y); samples of it where its mean is no closed form
    other alignments               exact, p(z | x, y_1..j); p(z | x, y) with jumps, which tell of the past
    Bayesian attention             samples of q(W | x, y_1..j-1)
    soft                           its weights
    ============================== ==================================================================

    Where the decoder is fed with sampled contexts, it is fed with the expected one here, as for perplexity and
    decoding.

    Args:
        trained: The network.
        batch: Its sentences.
        num_samples: Samples of the posterior, where its mean is no closed form.
        exact: Whether to compute also the posterior of the second row where there is an inference network of
            alignments that can be summed out. It takes a pass over the output layer for every key.
    """
    trained.module.eval()
    trained_with = trained.model.input_feed
    if trained_with == "sampled":
        trained.model.input_feed = "expected"
    try:
        return _align_batch(trained, batch, num_samples, exact=exact)
    finally:
        trained.model.input_feed = trained_with


def _align_batch(trained: AnyTrained, batch: Batch, num_samples: int, *, exact: bool) -> BatchAlignment:
    arguments = model_arguments(batch)
    nodes: Any = trained.guide.run(*arguments).trace.nodes
    site = nodes["alignment"]
    prior, posterior = site["infer"]["prior"], site["fn"]
    model, family = trained.model, trained.guide.family("alignment")
    shown = not isinstance(model.attention.prior, FixedGammaPrior | FixedLogNormalPrior | FixedGaussianPrior)
    mean = prior.mean_weights.squeeze(-2) if shown else None
    if isinstance(family, Amortised) and prior.kind == CategoricalAlignment.kind:
        summed = _exact_alignment(trained, batch) if exact else None
        return BatchAlignment(mean, posterior.mean_weights.squeeze(-2).unsqueeze(0), summed)
    if prior.kind != CategoricalAlignment.kind:
        count = 1 if isinstance(family, Soft) else num_samples
        with seeded(trained.config.seed):
            samples = sample_posterior(trained.guide, *arguments, num_samples=count, memory_budget=_MEMORY)
        return BatchAlignment(mean, samples["alignment"].squeeze(-2))
    return BatchAlignment(mean, _exact_alignment(trained, batch).unsqueeze(0))


def _exact_alignment(trained: AnyTrained, batch: Batch) -> Tensor:
    """The exact posterior ``[B, M, N]`` of alignments that can be summed out."""
    model = trained.model
    state = model.start(model.encode(batch.source, batch.source_mask), batch.source_mask)
    if model.jumps is not None:
        return smoothed_alignments(model, state, batch.target_in, batch.target_out, batch.target_mask)
    return target_alignments(model, state, batch.target_in, batch.target_out, trained.inference())


def has_posterior_gap(trained: AnyTrained) -> bool:
    """Whether the posterior is of an inference network, and the exact one a product over words with all keys.

    With jumps it is no product, and under a sparse prior it leaves keys out, to which a network may give probability.
    """
    family, prior = trained.guide.family("alignment"), trained.model.attention.prior
    amortised = isinstance(family, Amortised) and trained.family.kind == CategoricalAlignment.kind
    return amortised and trained.model.jumps is None and not isinstance(prior, SparseAlignmentPrior)


def _posterior_gap(trained: AnyTrained, found: BatchAlignment) -> Tensor | None:
    r"""Cost of an inference network at each word: :math:`\mathrm{KL}(q \,\|\, p(z_j \mid x, y_{\le j}))` ``[B, M]``."""
    if found.exact is None or not has_posterior_gap(trained):
        return None
    # a key that is too improbable for a float counts as the least probable one, which can only make the gap smaller
    exact = found.exact.clamp(min=torch.finfo(torch.float32).tiny).double()
    posterior = found.posterior.squeeze(0).double()
    return (torch.xlogy(posterior, posterior) - posterior * exact.log()).sum(-1)


def predicts_by_posterior(trained: AnyTrained) -> bool:
    """Whether words are predicted from posterior weights, as in Bayesian attention, and not from a prior alignment."""
    return trained.family.kind in (LogWeights.kind, GaussianWeights.kind)


class Mean:
    """Mean of the numbers of many tensors."""

    def __init__(self) -> None:
        self.sum, self.count = 0.0, 0

    def add(self, numbers: Tensor) -> None:
        """Count numbers."""
        self.sum, self.count = self.sum + numbers.sum().item(), self.count + numbers.numel()

    @property
    def value(self) -> float:
        """Their mean; there must be one."""
        return self.sum / self.count


class EntropySums:
    """Mean entropy of predictive and of posterior weights over the word pieces of many batches, and their movement.

    Of sparse alignments also the mean number of keys with a positive probability; of inference networks how far they
    are from the exact posterior, where that was asked for of :func:`align_batch`.
    """

    def __init__(self) -> None:
        self.sums, self.count = torch.zeros(2, dtype=torch.float64), 0
        self.support = 0
        self.relative, self.change, self.gap = Mean(), Mean(), Mean()

    def add(self, trained: AnyTrained, batch: Batch, found: BatchAlignment) -> None:
        """Count a batch, unless its weights are Gaussian: negative ones have no entropy."""
        if trained.family.kind == GaussianWeights.kind:
            return
        # words are predicted from the prior; from the posterior under Bayesian attention
        posterior = found.posterior.mean(0)
        predictive = posterior if found.prior is None or predicts_by_posterior(trained) else found.prior
        for place, weights in enumerate((predictive, posterior)):
            self.sums[place] += torch.special.entr(weights.double()).sum(-1)[batch.target_mask].sum().cpu()
        self.count += int(batch.target_mask.sum())
        null = trained.model.null_word is not None
        self._add_spread(posterior.double(), batch, places=batch.source_mask.sum(1) + int(null))
        if (gap := _posterior_gap(trained, found)) is not None:
            self.gap.add(gap[batch.target_mask])
        # under a sparse prior the posterior has the prior's keys, though it may be too small there for a number
        sparse = found.prior if isinstance(trained.model.attention.prior, SparseAlignmentPrior) else None
        sparse = posterior if isinstance(trained.family, SparseCategorical) else sparse
        if sparse is not None:
            self.support += int((sparse > 0).sum(-1)[batch.target_mask].sum())

    def _add_spread(self, weights: Tensor, batch: Batch, *, places: Tensor) -> None:
        """Of weights ``[B, M, N]`` at so many places: how near to uniform they are, and how much they move."""
        mask, words = batch.target_mask, batch.target_mask.sum(1)
        entropy = torch.special.entr(weights).sum(-1) / places.clamp(min=2).log().unsqueeze(1)
        self.relative.add(entropy[mask & (places > 1).unsqueeze(1)])
        mean = (weights * mask.unsqueeze(-1)).sum(1) / words.unsqueeze(1)
        distance = 0.5 * (weights - mean.unsqueeze(1)).abs().sum(-1)
        self.change.add(distance[mask & (words > 1).unsqueeze(1)])

    @property
    def metrics(self) -> dict[str, float]:
        """``test_entropy`` and ``test_posterior_entropy`` in nats, and ``test_support`` where alignments are sparse.

        Of inference networks of categorical alignments ``test_posterior_gap``, in nats. Besides, how near to uniform
        the posterior is, and how much it moves; see :mod:`experiments.sequence.learned`. Nothing where no batch was
        counted.
        """
        if self.count == 0:
            return {}
        predictive, posterior = (self.sums / self.count).tolist()
        support = {"test_support": self.support / self.count} if self.support else {}
        spread = {
            "test_relative_entropy": self.relative,
            "test_attention_change": self.change,
            "test_posterior_gap": self.gap,
        }
        found = {name: mean.value for name, mean in spread.items() if mean.count}
        return {"test_entropy": predictive, "test_posterior_entropy": posterior, **support, **found}
