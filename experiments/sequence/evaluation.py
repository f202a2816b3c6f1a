"""Networks that write sentences: their training, the search, whether they have learned anything, how sure they are."""

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

BATCH = 50  # sentences at a time, in evaluation

LEARNED = ("val_ppl_unigram", "test_relative_entropy", "test_attention_change")
LEAST_GAIN = 0.1  # below a unigram model's perplexity
MOST_ENTROPY = 0.95  # of uniform attention
LEAST_CHANGE = 0.05  # from word to word; weights that have nothing in common have 1


def unigram_perplexity(train: Sequence[Tensor], val: Sequence[Tensor], *, vocabulary: int) -> float:
    """Perplexity per word piece of sentences of ids under the frequencies of those in others, their ends counted too.

    Every one of the ``vocabulary`` counts once more than it comes (Laplace), since one may be new.
    """
    train_counts, val_counts = (
        torch.bincount(torch.cat([*sentences, torch.full((len(sentences),), END)]), minlength=vocabulary).double()
        for sentences in (train, val)
    )
    train_counts += 1
    train_counts[[PAD, BEGIN]] = 0  # never said
    log_probs = (train_counts / train_counts.sum()).log()
    return math.exp(-log_probs[val_counts > 0].dot(val_counts[val_counts > 0]).item() / val_counts.sum().item())


def warnings_of(metrics: Mapping[str, float]) -> list[str]:
    """What shows that a network has learned nothing, a sentence each; metrics that are missing show nothing."""
    perplexity, unigram, entropy, change = (metrics.get(name, math.nan) for name in ("val_ppl", *LEARNED))
    found = {
        f"the network predicts words hardly better than their frequencies do: its validation perplexity is "
        f"{perplexity:.4g}, that of a unigram model {unigram:.4g}, and {LEAST_GAIN:.0%} less is expected; train for "
        f"longer, or with another learning rate": perplexity > (1 - LEAST_GAIN) * unigram,
        f"the attention is nearly uniform: its entropy is {entropy:.1%} of the largest possible, where "
        f"{MOST_ENTROPY:.0%} at most is expected": entropy > MOST_ENTROPY,
        f"the attention looks at the same places for every word of a sentence: {change:.1%} of it changes from word to "
        f"word, where {LEAST_CHANGE:.0%} at least is expected": change < LEAST_CHANGE and not entropy > MOST_ENTROPY,
    }
    return [text for text, shown in found.items() if shown]


def search(trained: AnyTrained, source: Tensor, mask: Tensor, **options: Any) -> list[Hypothesis]:
    """The best sentence for each source by beam search, with the network's options unless told otherwise."""
    config = trained.config
    given = {"beam": config.beam, "no_repeat": config.no_repeat, "length_penalty": config.length_penalty}
    options = given | {"inference": trained.inference()} | options
    found = beam_search(trained.model, source, mask, begin=BEGIN, end=END, alignments=False, **options)
    return [best for best, *_ in found]


@dataclass(frozen=True)
class WordUncertainty:
    """Entropy of each word piece by source, in nats, ``[B, M]``: ``total = word + attention``."""

    total: Tensor  # entropy of the next piece, the attention averaged over
    word: Tensor  # mean entropy of the piece given the attention: what stays if one knew where to look
    attention: Tensor  # the rest, the mutual information of piece and attention, >= 0


@torch.no_grad()
def word_uncertainty(trained: AnyTrained, batch: Batch, *, num_samples: int = 100) -> WordUncertainty:
    r"""Split the predictive entropy of every word piece, :math:`H[y] = \mathrm{E}_w H[y \mid w] + I(y; w)`.

    Exact for alignments; over posterior samples for Bayesian attention, as
    :func:`pyro_attention.analysis.decompose_uncertainty`; without an attention part for soft attention. The words
    before each piece are taken as given.
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
    """Doubts of all sentences, in the order of their indices, means over their word pieces: float64 ``[3, sentences]``.

    They are minus the log probability, and the entropy in all and that of the attention (:class:`WordUncertainty`).
    """
    found, places = list[Tensor](), list[Tensor]()
    for batch in batches:
        doubt = word_uncertainty(trained, batch, num_samples=trained.config.num_samples)
        with seeded(trained.config.seed):
            log_probs = target_log_probs(trained.model, *model_arguments(batch), inference=inference)
        parts = torch.stack([-log_probs, doubt.total, doubt.attention]).where(batch.target_mask, 0).double()
        found.append((parts.sum(-1) / batch.target_mask.sum(-1)).cpu())
        places.append(batch.indices.cpu())
    return torch.cat(found, 1)[:, torch.cat(places).argsort()]


def validation_perplexities(trained: TrainedText[Any, Any], encoded: Encoded, fitted: Fitted) -> dict[str, float]:
    """Compute the perplexity on validation data, and that of a unigram model."""
    unigram = unigram_perplexity(encoded.targets, encoded.val.targets, vocabulary=len(trained.vocabulary))
    return {"val_ppl": math.exp(fitted.history[fitted.best_epoch]["val_loss"]), "val_ppl_unigram": unigram}
