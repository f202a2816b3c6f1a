"""Word alignments of parallel text with the probability of every link."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Event

import torch
from torch import Tensor

from pyro_attention.aligner._corpus import Batch, Sentences, Vocabulary, WordPairs, batches
from pyro_attention.aligner._input import Anchors, check_anchors, check_lengths, check_sides
from pyro_attention.aligner._storage import load_tables, save_tables
from pyro_attention.aligner._training import Both, Direction, Text, both_posteriors, train
from pyro_attention.aligner.encoder import encoder_potentials
from pyro_attention.aligner.hmm import markov_posterior
from pyro_attention.analysis.alignments.weights import Alignment, mbr_alignment

__all__ = ["AlignedPair", "Aligner", "cross_fit"]

_UNKNOWN = 1e-6  # p(word | word) of a pair that the training text has not
_KEPT = 1e-5  # pairs of words that are less probable in both directions and models are forgotten
_ANCHOR = 1e30  # how much likelier a link is made that is known
_LARGEST = 60.0  # log potential that is used
_DOUBT = 1e-3  # share of the cases in which a direction may be wrong by itself
_AGREED = 2 / 3  # share of the model whose directions agree


@dataclass(frozen=True, eq=False)
class AlignedPair:
    """The alignment of a sentence and its translation.

    Attributes:
        source: Words of the source, N.
        target: Words of the target, M.
        links: Probability of every link, ``[M, N]``, by the mean of the log odds of both directions; with evidence from
            elsewhere (anchors, similarities, an encoder), which both share, by their geometric mean.
        source_null: Probability that a source word has no link, ``[N]``, by the direction that links source words.
        target_null: The same of the target words, ``[M]``.
        certainty: How sure the link of every target word is, ``[M]``, from 0 to 1: the largest probability of a link
            by the direction that is less sure of it.
    """

    source: list[str]
    target: list[str]
    links: Tensor
    source_null: Tensor
    target_null: Tensor
    certainty: Tensor

    @property
    def alignment(self) -> Alignment:
        """The links whose expected F1 is largest (minimum Bayes risk)."""
        return mbr_alignment(self.links) if self.links.numel() else Alignment.from_matrix(self.links > 0)

    @property
    def probabilities(self) -> dict[tuple[int, int], float]:
        """Probability of every link (source word, target word) of :attr:`alignment`, in order."""
        return {(s, t): self.links[t, s].item() for s, t in sorted(self.alignment.links)}


class Aligner:
    r"""Aligns the words of sentence pairs after :meth:`fit` has seen some thousand pairs without links.

    The alignment is a latent site with a Markov prior, and its posterior is exact. Two models are trained, one whose
    directions are apart and one whose directions agree, and their posteriors are averaged with weights 1/3 and 2/3:
    agreement finds more links, and alone it would be too sure of them. The log odds of a link are the mean of those of
    both directions, :math:`\bar p(a_j = i \mid s, t)` and :math:`\bar p(b_i = j \mid s, t)`: of the distributions over
    "linked" and "not linked" this is the geometric mean, with its sum brought to 1.

    Example:
        >>> german = ["das Haus", "das Buch", "ein Buch", "ein Haus"] * 3
        >>> english = ["the house", "the book", "a book", "a house"] * 3
        >>> aligner = Aligner.fit([line.split() for line in german], [line.split() for line in english])
        >>> pair = aligner([["ein", "Haus"]], [["a", "house"]])[0]
        >>> print(pair.alignment)
        0-0 1-1

    Source: Vogel, Ney and Tillmann (1996), HMM-Based Word Alignment in Statistical Translation; Liang, Taskar and Klein
    (2006), Alignment by Agreement.
    """

    def __init__(self, vocabularies: tuple[Vocabulary, Vocabulary], pairs: WordPairs, models: Sequence[Both]) -> None:
        self.vocabularies = vocabularies
        self.pairs = pairs
        self.models = list(models)

    @classmethod
    def fit(
        cls,
        source: Sentences,
        target: Sentences,
        *,
        known: Mapping[tuple[str, str], float] | None = None,
        progress: bool = False,
    ) -> Aligner:
        """Train both directions on sentence pairs; nothing is drawn, the same text gives the same aligner.

        Args:
            source: Words of every sentence. Lower-case them, and separate punctuation: what differs is another word.
            target: Those of the translations.
            known: Pairs of a source word and a target word that count as so many observations more, such as the entries
                of a dictionary with 10 each.
            progress: Show a bar.

        Raises:
            ValueError: Different numbers of sentences, no pair with words on both sides, or an observation below 0.
        """
        check_sides(source, target)
        check_lengths(source, target)
        known = known or {}
        if not any(s and t for s, t in zip(source, target, strict=True)):
            raise ValueError("source and target have no pair with words on both sides, expected some thousand pairs")
        if wrong := [pair for pair, count in known.items() if not count >= 0]:
            raise ValueError(f"known counts {wrong[0]} {known[wrong[0]]} times, expected a number of observations >= 0")
        text = Text(source, target, known)
        models = _train_both(text, progress)
        keep = torch.stack([side.translation for model in models for side in model]).amax(0) > _KEPT
        pairs = WordPairs(text.pairs.keys[keep.numpy()], text.pairs.sizes)

        def pruned(side: Direction) -> Direction:
            return replace(side, translation=side.translation[keep])

        return cls(text.vocabularies, pairs, [(pruned(forward), pruned(backward)) for forward, backward in models])

    def __call__(
        self,
        source: Sentences,
        target: Sentences,
        *,
        anchors: Anchors | None = None,
        similarity: Sequence[Tensor] | None = None,
        encoder: str | Path | None = None,
        progress: bool = False,
    ) -> list[AlignedPair]:
        """Align sentence pairs, seen in training or not, in their order.

        Args:
            source: Words of every sentence, prepared as those of the training.
            target: Those of the translations.
            anchors: Links (source word, target word) of every pair that are known, counted from 0.
            similarity: Log potentials of the links of every pair, ``[M, N]``, such as similarities of an encoder's word
                vectors over a temperature; 0 changes nothing.
            encoder: Folder with a multilingual encoder of Hugging Face, whose vectors give such potentials; layer and
                temperature are learned from these sentence pairs.
            progress: Show a bar while the encoder reads.

        Raises:
            ImportError: An encoder is given, and transformers is not installed.
            ValueError: Different numbers of sentences or hints, anchors outside of their sentences, similarities of
                another shape or beside an encoder, or a folder that holds no encoder with its tokenizer.
        """
        check_sides(source, target)
        check_lengths(source, target)
        if encoder is not None:
            if similarity is not None:
                raise ValueError("got similarity and encoder, expected one of them")
            similarity = encoder_potentials(encoder, source, target, self._links, progress=progress)
        for name, hints in (("anchors", anchors), ("similarity", similarity)):
            if hints is not None and len(hints) != len(source):
                raise ValueError(f"{name} are for {len(hints)} pairs, expected an entry for each of {len(source)}")
        if anchors is not None:
            check_anchors(source, target, anchors)
        found = [
            AlignedPair(
                list(s),
                list(t),
                torch.zeros(len(t), len(s)),
                torch.ones(len(s)),
                torch.ones(len(t)),
                torch.zeros(len(t)),
            )
            for s, t in zip(source, target, strict=True)
        ]
        tables = [[direction.tables(_UNKNOWN) for direction in model] for model in self.models]
        for batch in batches(self.vocabularies, source, target):
            factor = _potentials(batch, found, anchors, similarity)
            for row, posterior in zip(batch.rows, self._posterior(batch, tables, factor), strict=True):
                found[row] = AlignedPair(found[row].source, found[row].target, *posterior)
        return found

    def _links(self, source: Sentences, target: Sentences, similarity: Sequence[Tensor] | None) -> list[Tensor]:
        return [pair.links for pair in self(source, target, similarity=similarity)]

    def _posterior(
        self, batch: Batch, tables: Sequence[Sequence[tuple[Tensor, Tensor]]], factor: Tensor | None
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Probabilities of links, of NULL on both sides, and certainty of every pair of a batch."""
        cells = self.pairs.find(batch)
        forward, backward = zip(
            *(
                both_posteriors(partial(markov_posterior, count_jumps=False), model, table, batch, cells, factor)
                for model, table in zip(self.models, tables, strict=True)
            ),
            strict=True,
        )
        one, other = (torch.lerp(apart.links, agreed.links, _AGREED) for apart, agreed in (forward, backward))
        other = other.transpose(0, 1)
        certainty = torch.minimum(one, other).amax(1)
        if factor is None:
            links = ((_log_odds(one) + _log_odds(other)) / 2).sigmoid()
        else:  # both directions have the same evidence from elsewhere, which counts once
            links = (one * other).sqrt().clamp(max=1.0)
        target_null, source_null = (
            torch.lerp(apart.null, agreed.null, _AGREED) for apart, agreed in (forward, backward)
        )
        for column, (n, m) in enumerate(zip(batch.source_lengths.tolist(), batch.target_lengths.tolist(), strict=True)):
            yield (
                links[:m, :n, column].clone(), source_null[:n, column].clone(), target_null[:m, column].clone(),
                certainty[:m, column].clone(),
            )  # fmt: skip

    def save(self, folder: str | Path) -> None:
        """Write the aligner into a folder, as the file ``aligner.safetensors``.

        Raises:
            ImportError: safetensors, of the extra ``align``, is not installed.
            OSError: The file cannot be written; one that was there is as it was.
        """
        save_tables(Path(folder), self.vocabularies, self.pairs, self.models)

    @classmethod
    def load(cls, folder: str | Path) -> Aligner:
        """Read an aligner that :meth:`save` has written.

        Raises:
            ImportError: safetensors is not installed.
            FileNotFoundError: The folder holds none.
            ValueError: Its file is damaged, or was written by another version.
        """
        return cls(*load_tables(Path(folder)))


def cross_fit(
    source: Sentences,
    target: Sentences,
    *,
    parts: int = 5,
    known: Mapping[tuple[str, str], float] | None = None,
    encoder: str | Path | None = None,
    progress: bool = False,
) -> list[AlignedPair]:
    """Align a text by aligners that have not seen the part that they align, so that they are not too sure of it.

    Args:
        source: As of :meth:`Aligner.fit`.
        target: Likewise.
        parts: Number of parts, each of every so many sentences; as many aligners are trained.
        known: Likewise.
        encoder: As for an :class:`Aligner` that aligns.
        progress: Likewise.

    Raises:
        ValueError: Fewer than two parts, or more than pairs.
    """
    check_sides(source, target)
    if not 2 <= parts <= len(source):
        raise ValueError(f"parts is {parts}, expected 2 to the number of sentence pairs, {len(source)}")
    found: list[list[AlignedPair]] = []
    for part in range(parts):
        seen = [[line for place, line in enumerate(side) if place % parts != part] for side in (source, target)]
        aligner = Aligner.fit(*seen, known=known, progress=progress)
        found.append(aligner(source[part::parts], target[part::parts], encoder=encoder, progress=progress))
    return [found[place % parts][place // parts] for place in range(len(source))]


def _train_both(text: Text, progress: bool) -> list[Both]:
    """The models whose directions are apart and in agreement, side by side on two cores."""
    stop = Event()
    with ThreadPoolExecutor(2) as pool:
        trained = [pool.submit(train, text, agree=agree, progress=progress, stop=stop) for agree in (False, True)]
        try:
            return [one.result() for one in trained]
        finally:
            stop.set()  # Ctrl-C, or an error of one, ends both


def _log_odds(probability: Tensor) -> Tensor:
    return torch.logit(torch.lerp(probability, 1 - probability, _DOUBT), eps=1e-6)


def _potentials(
    batch: Batch, pairs: Sequence[AlignedPair], anchors: Anchors | None, similarity: Sequence[Tensor] | None
) -> Tensor | None:
    """What the translation probabilities of a batch are multiplied by, ``[M, N, B]``."""
    if anchors is None and similarity is None:
        return None
    factor = torch.zeros(batch.target.size(0), batch.source.size(0), len(batch.rows))
    for column, row in enumerate(batch.rows):
        num_target, num_source = shape = pairs[row].links.shape
        part = factor[:num_target, :num_source, column]
        if similarity is None:
            part.fill_(1)
        elif similarity[row].shape == shape:
            part.copy_(similarity[row].clamp(-_LARGEST, _LARGEST).exp())
        else:
            seen = tuple(similarity[row].shape)
            raise ValueError(f"similarity of pair {row} has shape {seen}, expected [M, N] = {tuple(shape)}")
        for source, target in () if anchors is None else anchors[row]:
            part[target, source] = _ANCHOR
    return factor
