"""Evaluation of networks that write sentences: beam search, warnings about the training, and uncertainty of words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from experiments.data.text.batches import BEGIN, END, PAD, Batch
from experiments.sequence.model import AnyTrained, Encoded, TrainedText, model_arguments
from experiments.training import Fitted
from models.decoding import Hypothesis, Inference, beam_search, next_word_mixture, target_log_probs
from pyro_attention.posterior.predictive import seeded

BATCH = 50  # sentences of a batch in evaluation

LEARNED = ("val_ppl_unigram", "test_relative_entropy", "test_attention_change")
LEAST_GAIN = 0.1  # by how much the perplexity should be below that of a unigram model, as a share of it
MOST_ENTROPY = 0.95  # as a share of the entropy of uniform attention
LEAST_CHANGE = 0.05  # total variation distance from the mean weights of a sentence; disjoint weights have 1


def unigram_perplexity(train: Sequence[Tensor], val: Sequence[Tensor], *, vocabulary: int) -> float:
    """Return the perplexity per word piece of validation sentences under the word frequencies of training sentences.

    Frequencies are smoothed by adding one to every count (Laplace). The end of a sentence is a word piece.

    Args:
        train: Ids of each training sentence.
        val: Ids of each validation sentence.
        vocabulary: Number of word pieces.
    """
    train_counts, val_counts = (
        torch.bincount(torch.cat([*sentences, torch.full((len(sentences),), END)]), minlength=vocabulary).double()
        for sentences in (train, val)
    )
    train_counts += 1
    train_counts[[PAD, BEGIN]] = 0  # these ids are never predicted
    log_probs = (train_counts / train_counts.sum()).log()
    return math.exp(-log_probs[val_counts > 0].dot(val_counts[val_counts > 0]).item() / val_counts.sum().item())


def training_warnings(metrics: Mapping[str, float]) -> list[str]:
    """Return a sentence for each sign that a network has learned nothing; missing metrics give no warning."""
    perplexity, unigram, entropy, change = (metrics.get(name, math.nan) for name in ("val_ppl", *LEARNED))
    signs = {
        f"the network predicts words hardly better than their frequencies do: its validation perplexity is "
        f"{perplexity:.4g}, that of a unigram model {unigram:.4g}, and at least {LEAST_GAIN:.0%} less is expected; "
        f"train for longer, or with another learning rate": perplexity > (1 - LEAST_GAIN) * unigram,
        f"the attention is nearly uniform: its entropy is {entropy:.1%} of the largest possible, where at most "
        f"{MOST_ENTROPY:.0%} is expected": entropy > MOST_ENTROPY,
        f"the attention is nearly the same for all words of a sentence: {change:.1%} of its weight changes from word "
        f"to word, where at least {LEAST_CHANGE:.0%} is expected": change < LEAST_CHANGE and not entropy > MOST_ENTROPY,
    }
    return [text for text, applies in signs.items() if applies]


def search(trained: AnyTrained, source: Tensor, mask: Tensor, **options: Any) -> list[Hypothesis]:
    """Return the best sentence of a beam search for each source.

    Options of :func:`beam_search` that are not given come from the configuration of the network.
    """
    defaults = {"beam": trained.config.beam, "no_repeat": trained.config.no_repeat, "inference": trained.inference()}
    options = {"begin": BEGIN, "end": END, "alignments": False} | defaults | options
    return [best for best, *_ in beam_search(trained.model, source, mask, **options)]


@dataclass(frozen=True)
class WordUncertainty:
    """Entropy of each word piece in nats, ``[B, M]``, split into two parts: ``total = word + attention``.

    Attributes:
        total: Entropy of the next word piece, averaged over the attention.
        word: Mean entropy of the next word piece given the attention. This part remains if the attention is known.
        attention: Mutual information of word piece and attention, at least 0.
    """

    total: Tensor
    word: Tensor
    attention: Tensor


@torch.no_grad()
def word_uncertainty(trained: AnyTrained, batch: Batch, *, num_samples: int = 100) -> WordUncertainty:
    r"""Split the predictive entropy of every word piece, :math:`H[y] = \mathrm{E}_w H[y \mid w] + I(y; w)`.

    For alignments the split is exact. For Bayesian attention it is estimated from posterior samples, as in
    :func:`pyro_attention.analysis.decompose_uncertainty`. Soft attention has no attention part. The word pieces before
    each piece are given.

    Args:
        trained: The network and its guide.
        batch: Source and target sentences.
        num_samples: Number of posterior samples of Bayesian attention.
    """
    model = trained.model.eval()
    inference = trained.inference(samples=num_samples if trained.is_random else 0)
    state, parts = model.start(model.encode(batch.source, batch.source_mask), batch.source_mask), []
    with seeded(trained.config.seed):
        for step in model.steps(state, batch.target_in):
            probs, weights = (part.double().exp() for part in next_word_mixture(model, step, inference))
            given = (weights * torch.special.entr(probs).sum(-1)).sum(-1)
            total = torch.special.entr((weights.unsqueeze(-1) * probs).sum(1)).sum(-1)
            parts.append((total, given, (total - given).clamp(min=0)))
    return WordUncertainty(*(torch.stack(part, 1).float() for part in zip(*parts, strict=True)))


@torch.no_grad()
def sentence_doubts(trained: AnyTrained, batches: Iterable[Batch], inference: Inference) -> Tensor:
    """Return three measures of doubt about each sentence, float64 ``[3, sentences]``, ordered by the batch indices.

    The rows are means over the word pieces of a sentence: of the negative log probability, and of the total entropy and
    the attention part of :class:`WordUncertainty`.
    """
    doubts, indices = list[Tensor](), list[Tensor]()
    for batch in batches:
        uncertainty = word_uncertainty(trained, batch, num_samples=trained.config.num_samples)
        with seeded(trained.config.seed):
            log_probs = target_log_probs(trained.model, *model_arguments(batch), inference=inference)
        parts = torch.stack([-log_probs, uncertainty.total, uncertainty.attention]).where(batch.target_mask, 0).double()
        doubts.append((parts.sum(-1) / batch.target_mask.sum(-1)).cpu())
        indices.append(batch.indices.cpu())
    return torch.cat(doubts, 1)[:, torch.cat(indices).argsort()]


def validation_perplexities(trained: TrainedText[Any, Any], encoded: Encoded, fitted: Fitted) -> dict[str, float]:
    """Return the validation perplexity of the network, and of a unigram model of the training data.

    Random weights stand at their mean here; the test perplexity averages over draws of them.
    """
    unigram = unigram_perplexity(encoded.targets, encoded.val.targets, vocabulary=len(trained.vocabulary))
    return {"val_ppl": math.exp(fitted.history[fitted.best_epoch]["val_loss"]), "val_ppl_unigram": unigram}
