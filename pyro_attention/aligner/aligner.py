"""Word alignments of parallel text with the probability of every link."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import isfinite, nan
from pathlib import Path

import torch
from torch import Tensor

from pyro_attention.aligner._chunk_files import Room, Workers, write_chunks
from pyro_attention.aligner._corpus import Batch, Sentences
from pyro_attention.aligner._ensemble import Ensemble, PairPosterior
from pyro_attention.aligner._input import (
    Anchors,
    ComposedPairs,
    check_anchors,
    check_lengths,
    check_sides,
    composed,
    nfc,
)
from pyro_attention.aligner._storage import load_ensemble, save_ensemble
from pyro_attention.aligner._training import PARTS, part_count
from pyro_attention.aligner.encoder import encoder_potentials
from pyro_attention.aligner.strings import CLASSES, SpelledText, string_ratios
from pyro_attention.aligner.text import Setting
from pyro_attention.analysis.alignments.weights import Alignment, mbr_alignment

__all__ = ["AlignedPair", "Aligner", "cross_fit"]

_ANCHOR = 1e30  # how much likelier a link is made that is known
_LARGEST = 60.0  # log potential that is used
_BAND, _SHARE = 30, 0.05  # words, and share of a long text, by which the places of linked words may differ
_FAR = 0.02  # how likely a link is that lies further from there
_SAMPLE = 500  # pairs that the ratios of strings are learned from
_STEPS = 2  # of expectation maximization of the ratios
_ENOUGH = 50  # pairs of which ratios of their own are learned


@dataclass(frozen=True, eq=False)
class AlignedPair:
    """The alignment of a sentence and its translation.

    Attributes:
        source: Words of the source, N.
        target: Words of the target, M.
        links: Probability of every link, ``[M, N]``, by both directions and all members; 1 for a known link.
        source_null: Probability that a source word has no link, ``[N]``, by the direction that links source words.
        target_null: Probability that a target word has no link, ``[M]``.
        certainty: How sure the link of every target word is, ``[M]``, from 0 to 1: the largest probability of a link
            by the direction that is less sure of it.
        log_evidence: Log probability of a word given the other sentence, in nats, mean over words and directions; NaN
            where a side is empty.
        log_gain: By how much it is larger than the log probability of a word without the other sentence; low where the
            sentences are no translations of each other.
        forward: Probability of every link by the direction that gives each target word a source word, ``[M, N]``, or
            None unless ``directions=True`` was asked for.
        backward: Probability of every link by the direction that gives each source word a target word, ``[M, N]``.
    """

    source: list[str]
    target: list[str]
    links: Tensor
    source_null: Tensor
    target_null: Tensor
    certainty: Tensor
    log_evidence: float = nan
    log_gain: float = nan
    forward: Tensor | None = None
    backward: Tensor | None = None

    @property
    def alignment(self) -> Alignment:
        """The links whose expected F1 is largest (minimum Bayes risk)."""
        return self.linked()

    @property
    def probabilities(self) -> dict[tuple[int, int], float]:
        """Probability of every link (source word, target word) of :attr:`alignment`, in order."""
        table = self.links.tolist()
        return {(s, t): table[t][s] for s, t in sorted(self.alignment.links)}

    def linked(self, balance: float = 1.0) -> Alignment:
        """Return the links whose expected F measure is largest.

        Args:
            balance: How many times as much recall counts as precision; 1 is F1.
        """
        if not self.links.numel():
            return Alignment.from_matrix(self.links > 0)
        return mbr_alignment(self.links, balance=balance)


class Aligner:
    r"""Aligns the words of sentence pairs after :meth:`fit` has seen some sentence pairs without links.

    The alignment is a latent site with a Markov prior, and its posterior is exact. Two models are trained, one whose
    directions are apart and one whose directions agree, and their posteriors are averaged: agreement finds more links,
    and alone it would be too sure of them. The probability of a link is the geometric mean
    of those of both directions.

    A text of 50 pairs or more has two members, whose posteriors are averaged. They are trained together, and the
    last steps of each count the links of one half of the text only: so half of what is said of a pair comes from a
    member that has not counted it. There are fewer errors, and rare words are not believed to be known because the text
    itself has them. As the average is less sure than a member is, both directions are then combined by the mean of
    their log odds.

    At alignment the letters of the words are a second observation, see :mod:`pyro_attention.aligner.strings`. Words are
    compared in Unicode's composed form (NFC).

    Attributes:
        ensemble: The trained members, with their words and pairs of words.
        ratios: Likelihood ratio of every class of pairs of strings, as the training text has it.
        settings: How the text was prepared, kept with the aligner for who prepares the next one.

    Example:
        >>> german = ["das Haus", "das Buch", "ein Buch", "ein Haus"] * 3
        >>> english = ["the house", "the book", "a book", "a house"] * 3
        >>> aligner = Aligner.fit([line.split() for line in german], [line.split() for line in english])
        >>> pair = aligner([["ein", "Haus"]], [["a", "house"]])[0]
        >>> print(pair.alignment)
        0-0 1-1

    Source: Vogel, Ney and Tillmann (1996), HMM-Based Word Alignment in Statistical Translation; Liang, Taskar and Klein
    (2006), Alignment by Agreement; Breiman (1996), Bagging Predictors.
    """

    def __init__(
        self, ensemble: Ensemble, ratios: Tensor | None = None, settings: Mapping[str, Setting] | None = None
    ) -> None:
        self.ensemble = ensemble
        self.ratios = torch.ones(CLASSES) if ratios is None else ratios
        self.settings = dict(settings or {})

    @classmethod
    def fit(
        cls,
        source: Sentences,
        target: Sentences,
        *,
        known: Mapping[tuple[str, str], float] | None = None,
        parts: int | None = None,
        progress: bool = False,
    ) -> Aligner:
        """Train both directions on sentence pairs; nothing is drawn, the same text gives the same aligner.

        Args:
            source: Words of every sentence. Lower-case them, and separate punctuation: what differs is another word.
            target: Words of the translations.
            known: Pairs of a source word and a target word that count as so many observations more, such as the entries
                of a dictionary with 10 each.
            parts: Number of members, each of which lacks the counts of one part of the text, every so-manieth pair; 1
                is one member of all pairs. By default 2 from 50 pairs on, and 1 for fewer.
            progress: Show a bar.

        Raises:
            ValueError: Different numbers of sentences, no pair with words on both sides, a pair whose links would not
                fit into memory, observations below 0 or infinite, or fewer than one part.
        """
        check_sides(source, target)
        check_lengths(source, target)
        known = _checked_known(known)
        _check_parts(parts)
        parts = part_count(len(source)) if parts is None else parts
        source, target = composed(source), composed(target)
        if not any(s and t for s, t in zip(source, target, strict=True)):
            raise ValueError("source and target have no pair with words on both sides, expected some thousand pairs")
        aligner = cls(Ensemble.fit(source, target, known, parts=parts, progress=progress))
        aligner.ratios = aligner._learned_ratios(*_sample(source, target))
        return aligner

    @classmethod
    def fit_stream(
        cls,
        pairs: Iterable[tuple[Sequence[str], Sequence[str]]],
        folder: str | Path,
        *,
        max_memory: int = 3000,
        known: Mapping[tuple[str, str], float] | None = None,
        parts: int | None = None,
        processes: int = 1,
        cluster: str | None = None,
        progress: bool = False,
    ) -> Aligner:
        """Train on a text of any size, in bounded memory.

        The text is written into a folder in chunks, which are read in every iteration. Where memory has room for all
        words and pairs of words, the models are those of :meth:`fit`, up to rounding. Otherwise the rarest words are
        left out, and the pairs of words that stand together least.

        Args:
            pairs: Source and target words of every sentence pair, which are read three times.
            folder: Folder for the chunks, of about 5 bytes for each possible link; it is made, and can be removed
                afterward. They are written into its folder ``chunks``, which replaces that of an earlier text.
            max_memory: Memory of this process in megabytes, about; each further process takes some 500 more.
            known: As of :meth:`fit`.
            parts: As of :meth:`fit`.
            processes: Processes that read the chunks; more than one need joblib, of the extra ``align``.
            cluster: Address of a Dask scheduler, whose workers read the chunks in their place. They must see the folder
                under the same name.
            progress: Show a bar.

        Raises:
            ImportError: joblib, or distributed for a cluster, is not installed.
            TypeError: Pairs that can be read once only.
            ValueError: No pair has words on both sides, a pair whose links would not fit into memory, too little
                memory, observations below 0 or infinite, fewer than one part, or a folder ``chunks`` with other files.
        """
        known = _checked_known(known)
        _check_parts(parts)
        text = write_chunks(
            ComposedPairs(pairs), Path(folder, "chunks"), room=Room.of(max_memory, parts or PARTS), known=known,
            parts=parts, workers=Workers(processes, cluster),
        )  # fmt: skip
        aligner = cls(Ensemble.fit_chunks(text, progress=progress))
        aligner.ratios = aligner._learned_ratios(*_stream_sample(ComposedPairs(pairs)))
        return aligner

    def __call__(
        self,
        source: Sentences,
        target: Sentences,
        *,
        anchors: Anchors | None = None,
        similarity: Sequence[Tensor] | None = None,
        encoder: str | Path | None = None,
        strings: bool = True,
        directions: bool = False,
        progress: bool = False,
    ) -> list[AlignedPair]:
        """Align sentence pairs, seen in training or not, in their order.

        Args:
            source: Words of every sentence, prepared as those of the training.
            target: Words of the translations.
            anchors: Links (source word, target word) of every pair that are known, counted from 0. Their probability is
                1, and the links of the words around them follow from them; a word may have several.
            similarity: Log potentials of the links of every pair, ``[M, N]``, such as similarities of an encoder's word
                vectors over a temperature; 0 changes nothing.
            encoder: Folder with a multilingual encoder of Hugging Face, whose vectors give such potentials; layer and
                temperature are learned from these sentence pairs.
            strings: Ask the letters of the words, too.
            directions: Keep the probabilities of each direction, too.
            progress: Show a bar while the encoder reads.

        Raises:
            ImportError: An encoder is given, and transformers is not installed.
            ValueError: Different numbers of sentences or hints, anchors outside of their sentences, similarities of
                another shape, with NaN or beside an encoder, or a folder that holds no encoder with its tokenizer.
        """
        check_sides(source, target)
        check_lengths(source, target)
        if encoder is not None and similarity is not None:
            raise ValueError("got similarity and encoder, expected one of them")
        for name, given in (("anchors", anchors), ("similarity", similarity)):
            if given is not None and len(given) != len(source):
                raise ValueError(f"{name} are for {len(given)} pairs, expected an entry for each of {len(source)}")
        if anchors is not None:
            check_anchors(source, target, anchors)
        compared = composed(source), composed(target)
        spelled = SpelledText(*compared) if strings else None
        ratios = self.ratios if spelled is None else self._learned_ratios(*_sample(*compared))
        if encoder is not None:
            similarity = encoder_potentials(encoder, *compared, self._links, progress=progress)
        hints = _Hints(spelled, ratios, similarity, anchors)
        posteriors = self._posteriors(*compared, hints, directions=directions)
        return [
            _aligned(list(s), list(t), posterior, () if anchors is None else anchors[row], directions)
            for row, (s, t, posterior) in enumerate(zip(source, target, posteriors, strict=True))
        ]

    def align_stream(
        self,
        pairs: Iterable[tuple[Sequence[str], Sequence[str]]],
        *,
        strings: bool = True,
        directions: bool = False,
        block: int = 5000,
    ) -> Iterator[AlignedPair]:
        """Yield the alignments of a text of any size, one after the other.

        Args:
            pairs: Source and target words of every sentence pair, which are read twice.
            strings: As in a call.
            directions: As in a call.
            block: Number of pairs that are aligned together.

        Raises:
            TypeError: Pairs that can be read once only.
            ValueError: A pair whose links would not fit into memory.
        """
        ratios = self._learned_ratios(*_stream_sample(ComposedPairs(pairs))) if strings else self.ratios
        text, first = iter(pairs), 0
        while rows := list(islice(text, block)):
            source, target = [s for s, _ in rows], [t for _, t in rows]
            check_sides(source, target)
            check_lengths(source, target, first=first)
            compared = composed(source), composed(target)
            hints = _Hints(SpelledText(*compared) if strings else None, ratios, None, None)
            posteriors = self._posteriors(*compared, hints, directions=directions)
            for s, t, posterior in zip(source, target, posteriors, strict=True):
                yield _aligned(list(s), list(t), posterior, (), directions)
            first += len(rows)

    def save(self, folder: str | Path) -> None:
        """Write the aligner into a folder, as the file ``aligner.safetensors``.

        Raises:
            ImportError: safetensors, of the extra ``align``, is not installed.
            OSError: The file cannot be written; one that was there is as it was.
        """
        save_ensemble(Path(folder), self.ensemble, self.ratios, self.settings)

    @classmethod
    def load(cls, folder: str | Path) -> Aligner:
        """Read an aligner that :meth:`save` has written.

        Raises:
            ImportError: safetensors is not installed.
            FileNotFoundError: The folder holds none.
            ValueError: Its file is damaged, or was written by another version.
        """
        return cls(*load_ensemble(Path(folder)))

    def knows(self, words: Iterable[str], side: int) -> int:
        """Return how many of some words are among those of the training text, source (0) or target (1)."""
        known = self.ensemble.vocabularies[side].words
        return sum(count for word, count in Counter(words).items() if nfc(word) in known)

    def _links(self, source: Sentences, target: Sentences, similarity: Sequence[Tensor] | None) -> list[Tensor]:
        hints = _Hints(None, self.ratios, similarity, None)
        shapes = [(len(t), len(s)) for s, t in zip(source, target, strict=True)]
        posteriors = self._posteriors(source, target, hints)
        return [
            torch.zeros(shape) if posterior is None else posterior.links
            for shape, posterior in zip(shapes, posteriors, strict=True)
        ]

    def _posteriors(
        self, source: Sentences, target: Sentences, hints: _Hints, *, directions: bool = False
    ) -> list[PairPosterior | None]:
        """Mean of the posteriors of all members; None of a pair with an empty side."""
        # evidence from elsewhere, which both directions share, counts once
        odds = len(self.ensemble.members) > 1 and hints.similarity is None
        posteriors: list[PairPosterior | None] = [None for _ in source]
        for row, posterior in self.ensemble.posteriors(
            source, target, hints.potentials, odds=odds, directions=directions
        ):
            posteriors[row] = posterior
        return posteriors

    def _learned_ratios(self, source: Sentences, target: Sentences) -> Tensor:
        """Return the ratios of the classes of strings in a sample, those of the training text where it is small."""
        if len(source) < _ENOUGH:
            return self.ratios
        spelled = SpelledText(source, target)
        classes = [spelled.classes([row])[..., 0] for row in range(len(source))]
        together = sum((part.flatten().bincount(minlength=CLASSES) for part in classes), torch.zeros(CLASSES))
        ratios = self.ratios
        for _ in range(_STEPS):
            linked = torch.zeros(CLASSES)
            hints = _Hints(spelled, ratios, None, None)
            for part, posterior in zip(classes, self._posteriors(source, target, hints), strict=True):
                if posterior is not None:
                    linked.index_add_(0, part.flatten(), posterior.links.flatten())
            ratios = string_ratios(linked, together)
        return ratios


def _checked_known(known: Mapping[tuple[str, str], float] | None) -> dict[tuple[str, str], float]:
    """Return the pairs of words that the user knows in the composed form, once their numbers are right."""
    known = known or {}
    if wrong := [pair for pair, count in known.items() if not (count >= 0 and isfinite(count))]:
        raise ValueError(f"known counts {wrong[0]} {known[wrong[0]]} times, expected a number of observations >= 0")
    return {(nfc(s), nfc(t)): count for (s, t), count in known.items()}


def _sample(source: Sentences, target: Sentences) -> tuple[list[Sequence[str]], list[Sequence[str]]]:
    """Return some pairs with words on both sides, from all places of a text."""
    rows = [row for row, (s, t) in enumerate(zip(source, target, strict=True)) if s and t]
    rows = rows[:: max(1, -(-len(rows) // _SAMPLE))]
    return [source[row] for row in rows], [target[row] for row in rows]


def _stream_sample(
    pairs: Iterable[tuple[Sequence[str], Sequence[str]]],
) -> tuple[list[Sequence[str]], list[Sequence[str]]]:
    """Return some pairs with words on both sides, from all places of a text of any size, which is read once."""
    step, sample = 1, list[tuple[int, tuple[Sequence[str], Sequence[str]]]]()
    for number, pair in enumerate(pairs):
        if number % step == 0 and all(pair):
            sample.append((number, pair))
            if len(sample) > _SAMPLE:
                step *= 2
                sample = [(row, pair) for row, pair in sample if row % step == 0]
    return [source for _, (source, _) in sample], [target for _, (_, target) in sample]


@dataclass(frozen=True)
class _Hints:
    """Evidence of the links of a text beside its words."""

    spelled: SpelledText | None
    ratios: Tensor
    similarity: Sequence[Tensor] | None
    anchors: Anchors | None

    def potentials(self, batch: Batch) -> Tensor:
        """Return the factors of the translation probabilities of a batch, ``[M, N, B]``, 0 at padded places."""
        source, target = (
            torch.arange(len(words))[:, None] < lengths
            for words, lengths in ((batch.source, batch.source_lengths), (batch.target, batch.target_lengths))
        )
        factor = (target[:, None] & source).float()
        if self.spelled is not None:
            classes = self.spelled.classes(batch.rows)
            factor *= self.ratios.index_select(0, classes.flatten()).view(classes.shape)
        if min(batch.source.size(0), batch.target.size(0)) > _BAND:
            factor *= _near_diagonal(batch)
        for column, row in enumerate(batch.rows):
            if self.similarity is not None:
                self._add_similarity(factor, column, row, batch)
            for s, t in () if self.anchors is None else self.anchors[row]:
                factor[t, s, column] = _ANCHOR
        return factor

    def _add_similarity(self, factor: Tensor, column: int, row: int, batch: Batch) -> None:
        similarity = (self.similarity or [])[row]
        shape = (int(batch.target_lengths[column]), int(batch.source_lengths[column]))
        if similarity.shape != shape:
            raise ValueError(f"similarity of pair {row} has shape {tuple(similarity.shape)}, expected [M, N] = {shape}")
        if similarity.isnan().any():
            raise ValueError(
                f"similarity of pair {row} has NaN, expected log potentials, such as 0 where none is known"
            )
        factor[: shape[0], : shape[1], column] *= similarity.clamp(-_LARGEST, _LARGEST).exp()


def _near_diagonal(batch: Batch) -> Tensor:
    """Return factors of the links of long texts, ``[M, N, B]``, which are lower where their places differ much.

    So equal words of other sentences are no rivals, and passages that were moved are found all the same.
    """
    lengths = batch.source_lengths
    diagonal = torch.arange(len(batch.target))[:, None] * (lengths / batch.target_lengths)
    distance = (torch.arange(len(batch.source))[:, None] - diagonal[:, None]).abs_()
    far = distance > _BAND + _SHARE * lengths
    return distance.fill_(1.0).masked_fill_(far, _FAR)


def _aligned(
    source: list[str], target: list[str], posterior: PairPosterior | None, anchors: Iterable[tuple[int, int]],
    directions: bool,
) -> AlignedPair:  # fmt: skip
    """Return a pair with its posterior, in which known links are certain."""
    if posterior is None:
        empty = torch.zeros(len(target), len(source))
        both = (empty, empty) if directions else (None, None)
        nulls = torch.ones(len(source)), torch.ones(len(target))
        return AlignedPair(source, target, empty, *nulls, torch.zeros(len(target)), nan, nan, *both)
    for s, t in anchors:
        for table in (posterior.links, posterior.forward, posterior.backward):
            if table is not None:
                table[t, s] = 1
        posterior.source_null[s] = posterior.target_null[t] = 0
        posterior.certainty[t] = 1
    return AlignedPair(
        source, target, posterior.links, posterior.source_null, posterior.target_null, posterior.certainty,
        posterior.log_evidence, posterior.log_gain, posterior.forward, posterior.backward,
    )  # fmt: skip


def _check_parts(parts: int | None) -> None:
    if parts is not None and parts < 1:
        raise ValueError(f"parts is {parts}, expected 1 at least")


def cross_fit(
    source: Sentences,
    target: Sentences,
    *,
    parts: int = 5,
    known: Mapping[tuple[str, str], float] | None = None,
    encoder: str | Path | None = None,
    strings: bool = True,
    progress: bool = False,
) -> list[AlignedPair]:
    """Align a text by aligners that have not seen the part that they align, so that they are not too sure of it.

    Args:
        source: Words of every sentence.
        target: Words of the translations.
        parts: Number of parts, each of every so many sentences; as many aligners are trained.
        known: Pairs of words that the user knows, as in :meth:`Aligner.fit`.
        encoder: Folder of an encoder, as for an :class:`Aligner` that aligns.
        strings: Ask the letters of the words, too.
        progress: Show bars.

    Raises:
        ValueError: Fewer than two parts, or more than pairs.
    """
    check_sides(source, target)
    if not 2 <= parts <= len(source):
        raise ValueError(f"parts is {parts}, expected 2 to the number of sentence pairs, {len(source)}")
    aligned: list[list[AlignedPair]] = []
    for part in range(parts):
        training = [[line for row, line in enumerate(side) if row % parts != part] for side in (source, target)]
        aligner = Aligner.fit(*training, known=known, progress=progress)
        part_pairs = source[part::parts], target[part::parts]
        aligned.append(aligner(*part_pairs, encoder=encoder, strings=strings, progress=progress))
    return [aligned[row % parts][row // parts] for row in range(len(source))]
