r"""Evidence of links in the vectors of a multilingual encoder.

The similarity of a target word and a source word is the cosine of their vectors, which are means over their pieces in
one layer, less the mean of the language. It is drawn from a normal distribution, whose mean is :math:`\mu_1` where the
words are linked and :math:`\mu_0` where they are not. Seen beside the words, it multiplies p(word | word) by

.. math::
    \frac{\mathcal N(s; \mu_1, \sigma^2)}{\mathcal N(s; \mu_0, \sigma^2)} = \exp \frac{s - s_0}{\tau}, \quad
    s_0 = \frac{\mu_0 + \mu_1}{2}, \quad \tau = \frac{\sigma^2}{\mu_1 - \mu_0},

and p(word | NULL) by 1: NULL counts as a similarity of :math:`s_0`. The log evidence of words and similarities chooses
means and variance, by expectation maximization, and the layer: that in which a link adds most to it,
:math:`(\mu_1 - \mu_0)^2 / 2 \sigma^2` nats. No gold link is needed.

Source: Jalili Sabet et al. (2020), SimAlign: High Quality Word Alignments Without Parallel Training Data Using Static
and Contextualized Embeddings, for the similarities; that they are evidence in a hidden Markov model is this library's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize
from tqdm import tqdm

from pyro_attention.aligner._corpus import Sentences

__all__ = ["check_encoder", "encoder_potentials"]

_SAMPLE = 300  # pairs that choose the layer, the means and the variance
_STEPS = 3  # of expectation maximization
_BATCH = 32  # sentences that are read together
_WINDOW = 120  # words of a sentence that are read together
_AROUND = 20  # words of a window at its ends that are read for the others, where the sentence goes on
_ENDS = frozenset(".!?…。！？।۔؟")  # marks at the end of a sentence
_LONG = 60  # words of each side from which on a pair is more than a sentence
_MEDIAN, _NEAR = 10, 12  # words around a word that tell its place, and words by which a link may differ from it
_FAR = 0.02  # how likely a link is that lies further from there
_LONG_WORD = 4  # pieces of a word below which a short sentence is not counted
_PIECES = 512  # of a window, at most
Infer = Callable[[Sentences, Sentences, Sequence[Tensor] | None], Sequence[Tensor]]


def check_encoder(folder: str | Path) -> None:
    """Raise ImportError or ValueError where no encoder can be in a folder, without loading it."""
    if find_spec("transformers") is None:
        raise ImportError("an encoder needs transformers: pip install 'pyro-attention[transformers]'")
    if not Path(folder, "config.json").is_file():
        raise ValueError(f"{folder} has no config.json, expected a folder with an encoder of Hugging Face")
    # without one transformers would make a tokenizer that knows no words
    if not Path(folder, "tokenizer.json").is_file():
        raise ValueError(f"{folder} has no tokenizer.json, expected a fast tokenizer, which tells the words of pieces")


@torch.no_grad()
def encoder_potentials(
    folder: str | Path, source: Sentences, target: Sentences, infer: Infer, *, progress: bool = False
) -> list[Tensor]:
    """Log potentials of the links of sentence pairs by the vectors of an encoder, ``[M, N]`` each.

    Args:
        folder: An encoder of Hugging Face, with its tokenizer.
        source: Words of every sentence.
        target: Those of the translations.
        infer: Gives the probabilities of the links of some pairs, ``[M, N]``, by log potentials or without.
        progress: Show a bar.

    Raises:
        ImportError: transformers is not installed.
        ValueError: The folder holds no encoder, weights of it are missing, or no tokenizer tells which word a piece
            belongs to.
    """
    encoder = _Encoder(folder)
    potentials = [torch.zeros(len(t), len(s)) for s, t in zip(source, target, strict=True)]
    rows = [row for row, pair in enumerate(potentials) if pair.numel()]
    if not rows:
        return potentials
    chosen = rows[:: -(-len(rows) // _SAMPLE)]
    sample = [source[row] for row in chosen], [target[row] for row in chosen]
    vectors = [encoder.vectors(side, encoder.middle) for side in sample]
    means = [torch.cat(side).mean(0) for side in vectors]  # [layers, width]
    layers = [
        [_similarity(s[:, k] - means[0][k], t[:, k] - means[1][k]) for s, t in zip(*vectors, strict=True)]
        for k in range(len(encoder.middle))
    ]
    links = infer(*sample, None)
    far = [_log_far(pair) for pair in links]
    if 2 * sum(map(_is_long, links)) > len(links):
        best = len(layers) - 1  # only the words around them tell equal words of several sentences apart
    else:
        best = max(range(len(layers)), key=lambda k: _Evidence.of(layers[k], links).separation)
    for _ in range(_STEPS):
        evidence = _Evidence.of(layers[best], links)
        links = infer(*sample, [evidence.log_ratio(s) + f for s, f in zip(layers[best], far, strict=True)])
    evidence = _Evidence.of(layers[best], links)
    layer = encoder.middle[best]
    for start in tqdm(range(0, len(rows), _SAMPLE), desc=f"vectors of layer {layer}", disable=not progress):
        part = rows[start : start + _SAMPLE]
        sides = [encoder.vectors([side[row] for row in part], [layer]) for side in (source, target)]
        for row, s, t in zip(part, *sides, strict=True):
            potentials[row] = evidence.log_ratio(_similarity(s[:, 0] - means[0][best], t[:, 0] - means[1][best]))
            if _is_long(potentials[row]):
                potentials[row] += _log_far(infer([source[row]], [target[row]], None)[0])
    return potentials


def _is_long(table: Tensor) -> bool:
    """Return whether both texts of a table ``[M, N]`` are of several sentences."""
    return min(table.shape) > _LONG


def _log_far(links: Tensor) -> Tensor:
    """Log factors of the links of long texts, ``[M, N]``, which are lower far from where the words alone have them.

    The place of a target word is the median of the links of the words around it. So equal words of other sentences,
    which an encoder finds alike, are no rivals, wherever a sentence was moved to.
    """
    if not _is_long(links):
        return torch.zeros_like(links)
    target, source = links.shape
    sums = torch.cat([links.new_zeros(1, source), links.cumsum(0)])
    row = torch.arange(target)
    near = sums[(row + _MEDIAN + 1).clamp_max(target)] - sums[(row - _MEDIAN).clamp_min(0)]
    center = (near.cumsum(1) < near.sum(1, keepdim=True) / 2).sum(1)
    return ((torch.arange(source) - center[:, None]).abs() > _NEAR) * math.log(_FAR)


def _similarity(source: Tensor, target: Tensor) -> Tensor:
    """Cosine of every target word and source word, ``[M, N]``, less half of what a row and a column have in common."""
    cosine = normalize(target, dim=-1) @ normalize(source, dim=-1).mT
    return cosine - (cosine.mean(0) + cosine.mean(1, keepdim=True) - cosine.mean()) / 2


@dataclass(frozen=True)
class _Evidence:
    """Means of the similarities of words that are linked and of others, and their common variance."""

    linked: float
    unlinked: float
    variance: float

    @classmethod
    def of(cls, similarity: Sequence[Tensor], links: Sequence[Tensor]) -> _Evidence:
        """Return the means and variance under which similarities are most probable, by the probabilities of links."""
        values, weight = (torch.cat([pair.flatten() for pair in pairs]).double() for pairs in (similarity, links))
        parts = torch.stack([weight, 1 - weight])
        means = (parts * values).sum(1) / parts.sum(1).clamp_min(1e-9)
        variance = (parts * (values - means[:, None]).square()).sum() / len(values)
        return cls(means[0].item(), means[1].item(), variance.clamp_min(1e-9).item())

    @property
    def separation(self) -> float:
        return (self.linked - self.unlinked) / math.sqrt(self.variance)

    def log_ratio(self, similarity: Tensor) -> Tensor:
        # vectors of which a link tells nothing have a slope of 0
        slope = max(self.linked - self.unlinked, 0.0) / self.variance
        return (similarity - (self.linked + self.unlinked) / 2) * slope


def _sentences(text: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the sentences of a text that is too long for one window, and a shorter one as it is."""
    if len(text) <= _WINDOW:
        yield text
        return
    start = 0
    for number, word in enumerate(text, 1):
        if word in _ENDS or number == len(text):
            yield text[start:number]
            start = number


class _Window(NamedTuple):
    """Words of a sentence that are read together; vectors are taken of those from ``skipped`` to ``end``."""

    row: int
    words: Sequence[str]
    skipped: int
    end: int


class _Encoder:
    """Reads sentences of words.

    Attributes:
        middle: Its layers from the third to two thirds, among which the best one for links lies.
        most: Number of pieces of a window at most.
    """

    def __init__(self, folder: str | Path) -> None:
        check_encoder(folder)
        transformers = import_module("transformers")
        # these need transformers
        from pyro_attention.integrations.huggingface.model import longest_text
        from pyro_attention.integrations.huggingface.pretrained import load_checked

        try:
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
            model = load_checked(transformers.AutoModel, folder, local_files_only=True).eval()
        except Exception as error:  # on damaged files transformers raises nearly anything
            raise ValueError(f"the encoder in {folder} cannot be loaded: {error}") from error
        self.model: Any = model.get_encoder() if model.config.is_encoder_decoder else model
        # not every tokenizer knows how many positions its encoder has
        self.most = min(_PIECES, self.tokenizer.model_max_length, longest_text(self.model) or _PIECES)
        count = self.model.config.num_hidden_layers
        self.middle = list(range(math.ceil(count / 3), count * 2 // 3 + 1))

    def vectors(self, sentences: Sentences, layers: Sequence[int]) -> list[Tensor]:
        """Vectors of the words of every sentence, means over their pieces, ``[words, layers, width]``."""
        windows = [
            window
            for row, text in enumerate(sentences)
            for sentence in _sentences(text)
            for window in self._windows(row, sentence)
        ]
        order = sorted(range(len(windows)), key=lambda number: len(windows[number].words))
        read: list[Tensor] = [torch.zeros(0)] * len(windows)
        for start in range(0, len(order), _BATCH):
            part = order[start : start + _BATCH]
            words = [windows[number].words for number in part]
            for number, vectors in zip(part, self._read(words, layers), strict=True):
                read[number] = vectors[windows[number].skipped : windows[number].end]
        of_sentences: list[list[Tensor]] = [[] for _ in sentences]
        for window, vectors in zip(windows, read, strict=True):
            of_sentences[window.row].append(vectors)
        return [torch.cat(parts) for parts in of_sentences]

    def _windows(self, row: int, sentence: Sequence[str]) -> Iterator[_Window]:
        """Parts of a sentence that the encoder can read, each with some words of its neighbors around it."""
        most = self.most - self.tokenizer.num_special_tokens_to_add()
        if len(sentence) <= _WINDOW and len(sentence) * _LONG_WORD <= most:
            yield _Window(row, sentence, 0, len(sentence))
            return
        pieces = self._piece_counts(sentence)
        if len(sentence) <= _WINDOW and sum(pieces) <= most:
            yield _Window(row, sentence, 0, len(sentence))
            return
        start = 0
        while start < len(sentence):
            first, last = max(0, start - _AROUND), start + 1
            while first < start and sum(pieces[first : start + 1]) > most:
                first += 1
            while last < min(len(sentence), first + _WINDOW) and sum(pieces[first : last + 1]) <= most:
                last += 1
            # the words at the end are read again, in the middle of the next window
            end = last if last == len(sentence) else max(start + 1, last - _AROUND)
            yield _Window(row, sentence[first:last], start - first, end - first)
            start = end

    def _piece_counts(self, words: Sequence[str]) -> list[int]:
        numbers = self.tokenizer(list(words), is_split_into_words=True, add_special_tokens=False).word_ids()
        counts = [0] * len(words)
        for number in numbers:
            if number is not None:
                counts[number] += 1
        return counts

    def _read(self, sentences: Sentences, layers: Sequence[int]) -> Iterator[Tensor]:
        batch = self.tokenizer(
            [list(sentence) for sentence in sentences], is_split_into_words=True, padding=True, truncation=True,
            max_length=self.most, return_tensors="pt",
        )  # fmt: skip
        states = self.model(**batch, output_hidden_states=True).hidden_states
        hidden = torch.stack([states[layer] for layer in layers], 2).float()
        for row, sentence in enumerate(sentences):
            # a piece that belongs to no word goes to one more
            word = torch.tensor([len(sentence) if number is None else number for number in batch.word_ids(row)])
            count = word.bincount(minlength=len(sentence) + 1).clamp_min(1)
            sums = hidden.new_zeros(len(sentence) + 1, *hidden.shape[2:]).index_add_(0, word, hidden[row])
            yield (sums / count[:, None, None])[:-1]
