"""Models of both directions that were trained on one text, with its words and their pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from threading import Event
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_attention.aligner._backoff import Backoff
from pyro_attention.aligner._corpus import Batch, Cells, Sentences, Vocabulary, WordPairs, batches
from pyro_attention.aligner._expectation import Both, Direction, direction_posterior
from pyro_attention.aligner._training import PRIOR_WEIGHT, TrainingText, train
from pyro_attention.aligner.hmm import markov_posterior

__all__ = ["Ensemble", "PairPosterior"]

_UNKNOWN = 1e-6  # p(word | word) of a pair that the training text has not, and p(word) of a word that it has not
_KEPT = 1e-5  # pairs of words that are less probable in both directions and all models are forgotten
_DOUBT = 1e-3  # share of the cases in which a direction may be wrong by itself
_AGREED = 1 / 2  # share of the model whose directions agree
_TOGETHER = 1_000_000  # links whose certainty is computed together, more than sentences have
Potentials = Callable[[Batch], Tensor]


@dataclass(frozen=True)
class PairPosterior:
    """Posterior of the alignment of a pair of N source and M target words.

    Attributes:
        links: Probability of every link, ``[M, N]``.
        source_null, target_null: Probability that a word has no link, ``[N]`` and ``[M]``.
        certainty: The largest probability of a link by the direction that is less sure of it, ``[M]``.
        forward, backward: Probability of every link by each direction, ``[M, N]``, where they are asked for.
        log_evidence: Log probability of a word given the other side, mean over words and directions, in nats.
        log_gain: How much more that is than its log probability without the other side.
    """

    links: Tensor
    source_null: Tensor
    target_null: Tensor
    certainty: Tensor
    forward: Tensor | None
    backward: Tensor | None
    log_evidence: float
    log_gain: float


class _BatchPosterior(NamedTuple):
    """Means over members for a batch, as in :class:`PairPosterior`; the pairs stand last."""

    links: Tensor
    source_null: Tensor
    target_null: Tensor
    certainty: Tensor
    log_evidence: Tensor
    log_gain: Tensor
    forward: Tensor | None
    backward: Tensor | None


@dataclass(frozen=True)
class Ensemble:
    """Members that were trained on one text, each without one part of it, over the same words.

    Attributes:
        vocabularies: Words of the source and of the target.
        pairs: Pairs of words that the members know.
        members: The models of each member: one whose directions are apart, and one whose directions agree.
    """

    vocabularies: tuple[Vocabulary, Vocabulary]
    pairs: WordPairs
    members: Sequence[Sequence[Both]]

    @classmethod
    def fit(
        cls, source: Sentences, target: Sentences, known: Mapping[tuple[str, str], float], *, parts: int, progress: bool
    ) -> Ensemble:
        """Train on sentence pairs in memory, and forget the pairs of words that are improbable."""
        text = TrainingText.of(source, target, known, parts)
        backoff = Backoff(text.vocabularies, text.pairs, PRIOR_WEIGHT)
        stop = Event()
        with ThreadPoolExecutor(2) as pool:  # both models side by side on two cores
            trained = [
                pool.submit(train, text, backoff, agree=agree, progress=progress, stop=stop) for agree in (False, True)
            ]
            try:
                models = [training.result() for training in trained]
            finally:
                stop.set()  # Ctrl-C, or an error of one, ends both
        return cls.of(text, models)

    @classmethod
    def fit_chunks(cls, text: TrainingText, *, progress: bool) -> Ensemble:
        """Train on a text in files, one way of training after the other, so that less memory is taken."""
        backoff = Backoff(text.vocabularies, text.pairs, PRIOR_WEIGHT)
        stop = Event()
        models = [train(text, backoff, agree=agree, progress=progress, stop=stop) for agree in (False, True)]
        return cls.of(text, models)

    @classmethod
    def of(cls, text: TrainingText, models: Sequence[Sequence[Both]]) -> Ensemble:
        """Return the ensemble of trained models, with the pairs of words that are probable to any of them.

        Args:
            text: What they were trained on.
            models: For each way of training a model for each part.
        """
        keep = torch.zeros(len(text.pairs.keys), dtype=torch.bool)
        for model in (model for way in models for model in way):
            for direction in model:
                keep |= direction.translation > _KEPT
        pairs = WordPairs(text.pairs.keys[keep.numpy()], text.pairs.sizes)

        def pruned(side: Direction) -> Direction:
            return replace(side, translation=side.translation[keep])

        members = [
            [(pruned(forward), pruned(backward)) for forward, backward in member]
            for member in zip(*models, strict=True)
        ]
        return cls(text.vocabularies, pairs, members)

    def posteriors(
        self, source: Sentences, target: Sentences, potentials: Potentials, *, odds: bool,
        directions: bool = False,
    ) -> Iterator[tuple[int, PairPosterior]]:  # fmt: skip
        """Yield number and posterior of every pair with words on both sides, in any order.

        Args:
            source: Words of every sentence.
            target: Words of the translations.
            potentials: Gives what the probabilities of the links of a batch are multiplied by, ``[M, N, B]``, 0 at
                padded places.
            odds: Combine both directions by the mean of their log odds, which is surer than the geometric mean.
            directions: Give the probabilities of each direction, too.
        """
        tables = [
            [[direction.tables(_UNKNOWN, _UNKNOWN) for direction in model] for model in member]
            for member in self.members
        ]
        for batch in batches(self.vocabularies, source, target):
            cells, factors = self.pairs.find(batch), potentials(batch)
            sums: _BatchPosterior | None = None
            for member, table in zip(self.members, tables, strict=True):
                posterior = _batch_posterior(member, table, batch, cells, factors, odds=odds, directions=directions)
                if sums is None:
                    sums = posterior
                else:
                    _add(sums, posterior)
            if sums is not None:
                del cells, factors
                yield from zip(batch.rows, _pairs(sums, len(self.members), batch), strict=True)


def _batch_posterior(
    models: Sequence[Both], tables: Sequence[Sequence[tuple[Tensor, Tensor]]], batch: Batch, cells: Cells,
    potentials: Tensor, *, odds: bool, directions: bool,
) -> _BatchPosterior:  # fmt: skip
    forward, target_null, *first = _averaged(0, models, tables, batch, cells, potentials)
    backward, source_null, *second = _averaged(1, models, tables, batch, cells, potentials)
    backward = backward.transpose(0, 1)
    certainty = _least_maxima(forward, backward)
    # without need of the directions their memory becomes that of the links
    links, other = (forward.clone(), backward.clone()) if directions else (forward, backward)
    if odds:
        links = _log_odds_(links).add_(_log_odds_(other)).div_(2).sigmoid_()
        links = links.sub_(_DOUBT).div_(1 - 2 * _DOUBT).clamp_(0, 1)  # of which both are sure, that is sure
    else:
        links = links.mul_(other).sqrt_().clamp_(max=1.0)
    log_evidence, alone = ((one_way + back) / 2 for one_way, back in zip(first, second, strict=True))
    both = (forward, backward) if directions else (None, None)
    return _BatchPosterior(
        links, source_null, target_null, certainty, log_evidence, log_evidence - alone, *both
    )  # fmt: skip


def _averaged(
    side: int, models: Sequence[Both], tables: Sequence[Sequence[tuple[Tensor, Tensor]]], batch: Batch, cells: Cells,
    potentials: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Average one direction of the models that were trained apart and in agreement.

    Returns:
        Probabilities of links and of no link, and the log probability of a word with and without the other side.
    """
    infer = partial(markov_posterior, count_jumps=False)
    apart, agreed = (
        direction_posterior(
            infer, side, model[side], table[side], batch, cells, potentials, least=_UNKNOWN
        )
        for model, table in zip(models, tables, strict=True)
    )  # fmt: skip
    words = (batch.target, batch.source)[side]
    lengths = (batch.target_lengths, batch.source_lengths)[side]
    alone = torch.stack([_alone(table[side][1], words) for table in tables]).mean(0)
    return (
        apart.links.lerp_(agreed.links, _AGREED),
        apart.null.lerp_(agreed.null, _AGREED),
        (apart.log_evidence + agreed.log_evidence) / 2 / lengths,
        alone / lengths,
    )


def _add(sums: _BatchPosterior, posterior: _BatchPosterior) -> None:
    for total, values in zip(sums, posterior, strict=True):
        if total is not None and values is not None:
            total += values


def _pairs(sums: _BatchPosterior, count: int, batch: Batch) -> Iterator[PairPosterior]:
    """Yield the posterior of every pair of a batch, by sums over so many members."""
    if count > 1:
        for total in sums:
            if total is not None:
                total /= count
    links = _by_pair(sums.links)
    both = None if sums.forward is None or sums.backward is None else (_by_pair(sums.forward), _by_pair(sums.backward))
    words = [table.mT.contiguous().unbind() for table in (sums.source_null, sums.target_null, sums.certainty)]
    lengths = zip(batch.source_lengths.tolist(), batch.target_lengths.tolist(), strict=True)
    numbers = zip(lengths, sums.log_evidence.tolist(), sums.log_gain.tolist(), strict=True)
    for column, ((n, m), evidence, gain) in enumerate(numbers):
        # copies, as otherwise each would keep the tables of the whole batch
        source_null, target_null, certainty = (
            table[column][:length].clone() for table, length in zip(words, (n, m, m), strict=True)
        )
        forward, backward = (None, None) if both is None else (table[column][:m, :n].clone() for table in both)
        yield PairPosterior(
            links[column][:m, :n].clone(), source_null, target_null, certainty, forward, backward, evidence, gain
        )


def _by_pair(table: Tensor) -> Sequence[Tensor]:
    """Return the matrix ``[M, N]`` of every pair, of ``[M, N, B]``."""
    return table.permute(2, 0, 1).contiguous().unbind()


def _least_maxima(forward: Tensor, backward: Tensor) -> Tensor:
    """Return the maxima over source words of the smaller of two tables, ``[M, B]``, with a part of them in memory."""
    rows = max(1, _TOGETHER // max(1, forward[0].numel()))
    parts = zip(forward.split(rows), backward.split(rows), strict=True)
    return torch.cat([torch.minimum(*part).amax(1) for part in parts])


def _log_odds_(probability: Tensor) -> Tensor:
    """Turn probabilities into their log odds, in their memory."""
    return probability.mul_(1 - 2 * _DOUBT).add_(_DOUBT).logit_(eps=1e-6)


def _alone(null: Tensor, words: Tensor) -> Tensor:
    """Return the log probability of the words of every pair without the other side; padding counts for nothing."""
    table = null.clamp(max=1.0).log()
    return table.index_select(0, words.flatten()).view(words.shape).sum(0)
