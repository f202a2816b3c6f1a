"""English sentences with hidden word pieces, which are chosen anew in every epoch."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from experiments.data.storage import SPLITS, data_folder
from experiments.data.text.batches import BEGIN, END, SPECIAL, UNKNOWN, Sentences, Vocabulary, padded
from experiments.data.text.parallel import load_parallel
from experiments.files import UserError

MASK = UNKNOWN  # no text has this piece, since the vocabulary has a piece for every byte
ENGLISH = {"toy": ("toy",), "english": ("multi30k", "tatoeba")}  # data sets whose English sides make up a text
_UNCHANGED, _REPLACED = 0.1, 0.1  # shares of the hidden tokens


def load_english(
    name: Literal["toy", "english"], *, limit: int | None = None, data_root: Path | str | None = None
) -> dict[str, list[str]]:
    """Load sentences by split, in lower case, without repetitions.

    Args:
        name: `toy` is the English-like side of the embedded corpus. `english` are the English sides of Multi30k and
            Tatoeba in their splits, without training sentences that also occur in another split.
        limit: Largest number of training sentences; they are the same in every run.
        data_root: Folder of the data sets.
    """
    texts = {split: english_side(ENGLISH[name], split, data_folder(data_root)) for split in SPLITS}
    held_out = {*texts["val"], *texts["test"]}
    train = [sentence for sentence in texts["train"] if sentence not in held_out]
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[:limit].tolist()
    return texts | {"train": [train[index] for index in order]}


@cache
def english_side(names: tuple[str, ...], split: str, data_root: Path) -> list[str]:
    """Return the English sentences of data sets, in lower case, without repetitions."""
    texts = [load_parallel(name, split, data_root=data_root, lowercase=True, skip=True) for name in names]
    return list(dict.fromkeys(sentence for text in texts for sentence in text.target))


def encode_sentences(sentences: Sequence[str], vocabulary: Vocabulary, *, length: int) -> list[Tensor]:
    """Return the ids of sentences between <s> and </s>, cut at a length of at least 3.

    Raises:
        UserError: The length is too small.
    """
    if length < 3:
        raise UserError(f"length is {length}; expected at least 3, for <s>, a piece and </s>")
    return [torch.tensor([BEGIN, *vocabulary.encode(sentence)[: length - 2], END]) for sentence in sentences]


class MaskedBatch(NamedTuple):
    """B sentences with K hidden tokens; the fields are the arguments of `MaskedLanguageModel` in their order.

    Attributes:
        tokens: Ids of the shown tokens, ``[B, N]`` int64.
        mask: False at the padding, ``[B, N]``.
        hidden: True at hidden tokens, ``[B, N]``.
        target: Ids of the hidden tokens, sentence after sentence, ``[K]`` int64.
    """

    tokens: Tensor
    mask: Tensor
    hidden: Tensor
    target: Tensor


def hide_tokens(
    tokens: Tensor, mask: Tensor, *, share: float, vocabulary_size: int, generator: np.random.Generator
) -> MaskedBatch:
    """Hide a share of the tokens of every sentence, at least one, but never <s> and </s>.

    80 % of the hidden tokens become MASK, 10 % become a token drawn uniformly, and 10 % are unchanged.

    Args:
        tokens: Ids of the sentences, [B, N].
        mask: False at the padding, [B, N].
        share: Share of the tokens of a sentence that is hidden, which is rounded.
        vocabulary_size: Number of word pieces.
        generator: Source of all random numbers.

    Source:
        Devlin, Chang, Lee and Toutanova, BERT, 2019, section 3.1 and create_pretraining_data.py.
    """
    words = mask & (tokens >= len(SPECIAL))
    noise = torch.from_numpy(generator.random(tokens.shape)).masked_fill(~words, 2)
    rank = noise.argsort(1).argsort(1)
    count = (share * words.sum(1, keepdim=True)).round().clamp(min=1)
    hidden = words & (rank < count)
    kind = torch.from_numpy(generator.random(tokens.shape))
    random = torch.from_numpy(generator.integers(len(SPECIAL), vocabulary_size, tokens.shape))
    shown = tokens.masked_fill(hidden & (kind >= _UNCHANGED + _REPLACED), MASK)
    shown = torch.where(hidden & (kind >= _UNCHANGED) & (kind < _UNCHANGED + _REPLACED), random, shown)
    return MaskedBatch(shown, mask, hidden, tokens[hidden])


class MaskedText(Sentences[MaskedBatch]):
    """Sentences with hidden word pieces.

    The hidden pieces depend only on seed, epoch and indices, so that a resumed run has the same batches.
    """

    def __init__(self, rows: Sequence[Tensor], *, vocabulary_size: int, share: float = 0.15, seed: int = 0) -> None:
        super().__init__(rows)
        self.vocabulary_size, self.share, self.seed = vocabulary_size, share, seed

    def __getitem__(self, index: tuple[int, Sequence[int]]) -> MaskedBatch:
        epoch, indices = index
        tokens, mask = padded([self.rows[row] for row in indices])
        generator = np.random.default_rng([self.seed, epoch, *indices])
        return hide_tokens(tokens, mask, share=self.share, vocabulary_size=self.vocabulary_size, generator=generator)
