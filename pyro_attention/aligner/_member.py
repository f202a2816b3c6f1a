"""An aligner that was trained on one text: its words, their pairs, and two models of both directions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from threading import Event

import torch
from torch import Tensor

from pyro_attention.aligner._corpus import Batch, Sentences, Vocabulary, WordPairs, batches
from pyro_attention.aligner._training import Both, Direction, Text, both_posteriors, train
from pyro_attention.aligner.hmm import markov_posterior

__all__ = ["Member", "PairPosterior", "member_count"]

_UNKNOWN = 1e-6  # p(word | word) of a pair that the training text has not
_KEPT = 1e-5  # pairs of words that are less probable in both directions and models are forgotten
_DOUBT = 1e-3  # share of the cases in which a direction may be wrong by itself
_AGREED = 2 / 3  # share of the model whose directions agree
_PARTS = 4  # of a text, each of which one member has not seen
_FEWEST, _MANY = 50, 50_000  # pairs of a text from which on, and up to which, it is trained on in parts
Potentials = Callable[[Batch], Tensor]


@dataclass(frozen=True)
class PairPosterior:
    """What a member says of a pair of N source and M target words.

    Attributes:
        links: Probability of every link, ``[M, N]``.
        source_null, target_null: Probability that a word has no link, ``[N]`` and ``[M]``.
        certainty: The largest probability of a link by the direction that is less sure of it, ``[M]``.
        forward, backward: Probability of every link by each direction, ``[M, N]``.
        log_evidence: Log probability of a word given the other side, mean over words and directions, in nats.
        log_gain: How much more that is than its log probability without the other side.
    """

    links: Tensor
    source_null: Tensor
    target_null: Tensor
    certainty: Tensor
    forward: Tensor
    backward: Tensor
    log_evidence: float
    log_gain: float


@dataclass(frozen=True)
class Member:
    """Words of both languages, the pairs of them that it knows, and its models."""

    vocabularies: tuple[Vocabulary, Vocabulary]
    pairs: WordPairs
    models: Sequence[Both]

    @classmethod
    def fit(
        cls, source: Sentences, target: Sentences, known: Mapping[tuple[str, str], float], *, progress: bool
    ) -> Member:
        """Train both models on sentence pairs, and forget the pairs of words that are improbable."""
        text = Text(source, target, known)
        models = _train_both(text, progress)
        keep = torch.stack([side.translation for model in models for side in model]).amax(0) > _KEPT
        pairs = WordPairs(text.pairs.keys[keep.numpy()], text.pairs.sizes)

        def pruned(side: Direction) -> Direction:
            return replace(side, translation=side.translation[keep])

        return cls(text.vocabularies, pairs, [(pruned(forward), pruned(backward)) for forward, backward in models])

    def posteriors(
        self, source: Sentences, target: Sentences, potentials: Potentials, *, odds: bool
    ) -> Iterator[tuple[int, PairPosterior]]:
        """Place and posterior of every pair with words on both sides, in any order.

        Args:
            source: Words of every sentence.
            target: Those of the translations.
            potentials: Gives what the probabilities of the links of a batch are multiplied by, ``[M, N, B]``, 0 at
                padded places.
            odds: Combine both directions by the mean of their log odds, which is surer than the geometric mean.
        """
        tables = [[direction.tables(_UNKNOWN) for direction in model] for model in self.models]
        for batch in batches(self.vocabularies, source, target):
            yield from zip(batch.rows, self._of_batch(batch, tables, potentials(batch), odds), strict=True)

    def _of_batch(
        self, batch: Batch, tables: Sequence[Sequence[tuple[Tensor, Tensor]]], potentials: Tensor, odds: bool
    ) -> Iterator[PairPosterior]:
        cells = self.pairs.find(batch)
        forward, backward = zip(
            *(
                both_posteriors(partial(markov_posterior, count_jumps=False), model, table, batch, cells, potentials)
                for model, table in zip(self.models, tables, strict=True)
            ),
            strict=True,
        )
        one, two = (torch.lerp(apart.links, agreed.links, _AGREED) for apart, agreed in (forward, backward))
        two = two.transpose(0, 1)
        certainty = torch.minimum(one, two).amax(1)
        links = ((_log_odds(one) + _log_odds(two)) / 2).sigmoid() if odds else (one * two).sqrt().clamp(max=1.0)
        target_null, source_null = (
            torch.lerp(apart.null, agreed.null, _AGREED) for apart, agreed in (forward, backward)
        )
        lengths = (batch.source_lengths, batch.target_lengths)
        evidence = [
            torch.stack([model.log_evidence for model in way]).mean(0) / length
            for way, length in zip((forward, backward), lengths[::-1], strict=True)
        ]
        alone = [
            torch.stack([_alone(table[side][1], words) for table in tables]).mean(0) / length
            for side, (words, length) in enumerate(zip((batch.target, batch.source), lengths[::-1], strict=True))
        ]
        evidence_mean = (evidence[0] + evidence[1]) / 2
        gain = evidence_mean - (alone[0] + alone[1]) / 2
        for column, (n, m) in enumerate(zip(lengths[0].tolist(), lengths[1].tolist(), strict=True)):
            matrices = [table[:m, :n, column].clone() for table in (links, one, two)]
            yield PairPosterior(
                matrices[0], source_null[:n, column].clone(), target_null[:m, column].clone(),
                certainty[:m, column].clone(), matrices[1], matrices[2], evidence_mean[column].item(),
                gain[column].item(),
            )  # fmt: skip


def member_count(pairs: int) -> int:
    """Return the number of members that are trained on so many pairs by default."""
    return _PARTS if _FEWEST <= pairs <= _MANY else 1


def _log_odds(probability: Tensor) -> Tensor:
    return torch.logit(torch.lerp(probability, 1 - probability, _DOUBT), eps=1e-6)


def _alone(null: Tensor, words: Tensor) -> Tensor:
    """Log probability of the words of every pair without the other side; padding counts for nothing."""
    table = null.clamp(max=1.0).log()
    return table.index_select(0, words.flatten()).view(words.shape).sum(0)


def _train_both(text: Text, progress: bool) -> list[Both]:
    """The models whose directions are apart and in agreement, side by side on two cores."""
    stop = Event()
    with ThreadPoolExecutor(2) as pool:
        trained = [pool.submit(train, text, agree=agree, progress=progress, stop=stop) for agree in (False, True)]
        try:
            return [one.result() for one in trained]
        finally:
            stop.set()  # Ctrl-C, or an error of one, ends both
