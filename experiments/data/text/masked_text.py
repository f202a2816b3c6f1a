"""English sentences with some of their pieces hidden, another choice in every epoch."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from experiments.data.places import SPLITS, data_folder
from experiments.data.text.batches import BEGIN, END, SPECIAL, UNKNOWN, Sentences, Vocabulary, padded
from experiments.data.text.parallel import load_parallel
from experiments.files import UserError

MASK = UNKNOWN  # no text has this piece, as the vocabulary has one for every byte
ENGLISH = {"toy": ("toy",), "english": ("multi30k", "tatoeba")}  # whose English sides a text is
_LEFT, _REPLACED = 0.1, 0.1  # of the hidden tokens


def load_english(
    name: Literal["toy", "english"], *, limit: int | None = None, data_root: Path | str | None = None
) -> dict[str, list[str]]:
    """Load sentences by split, in small letters, each once.

    `toy`: the English-like side of the embedded corpus. `english`: the English sides of Multi30k and Tatoeba, with
    their splits; training sentences that are also held out are left out. There are `limit` training sentences at most;
    which ones is the same in every run.
    """
    texts = {split: english_side(ENGLISH[name], split, data_folder(data_root)) for split in SPLITS}
    held_out = {*texts["val"], *texts["test"]}
    train = [sentence for sentence in texts["train"] if sentence not in held_out]
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[:limit].tolist()
    return texts | {"train": [train[place] for place in order]}


@cache
def english_side(names: tuple[str, ...], split: str, data_root: Path) -> list[str]:
    """Sentences of the English sides of texts, in small letters, each once."""
    texts = [load_parallel(name, split, data_root=data_root, lowercase=True, skip=True) for name in names]
    return list(dict.fromkeys(sentence for text in texts for sentence in text.target))


def encode_sentences(sentences: Sequence[str], vocabulary: Vocabulary, *, length: int) -> list[Tensor]:
    """Ids of sentences between <s> and </s>, cut off so that these fit into a length of at least 3."""
    if length < 3:
        raise UserError(f"length is {length}; expected 3 at least: <s>, a piece and </s>")
    return [torch.tensor([BEGIN, *vocabulary.encode(sentence)[: length - 2], END]) for sentence in sentences]


class MaskedBatch(NamedTuple):
    """B sentences; K tokens are hidden. In this order they are the arguments of `MaskedLanguageModel`."""

    tokens: Tensor  # [B, N] int64, ids with something else at most hidden tokens
    mask: Tensor  # [B, N] bool, True at what is no padding
    hidden: Tensor  # [B, N] bool, True at hidden tokens
    target: Tensor  # [K] int64, ids of the hidden tokens, sentence after sentence


def hide_tokens(
    tokens: Tensor, mask: Tensor, *, share: float, vocabulary_size: int, generator: np.random.Generator
) -> MaskedBatch:
    """Hide a share of the tokens [B, N] of every sentence, rounded, one at least, but never <s> and </s>.

    Of the hidden tokens, 80 % become MASK, 10 % another token drawn uniformly, and 10 % stay as they are. The mask,
    [B, N] bool, is True at what is no padding.

    Source:
        Devlin, Chang, Lee and Toutanova, BERT, 2019, section 3.1 and create_pretraining_data.py.
    """
    words = mask & (tokens >= len(SPECIAL))
    noise = torch.from_numpy(generator.random(tokens.shape)).masked_fill(~words, 2)
    rank = noise.argsort(1).argsort(1)
    count = (share * words.sum(1, keepdim=True)).round().clamp(min=1)
    hidden = words & (rank < count)
    kind = torch.from_numpy(generator.random(tokens.shape))
    others = torch.from_numpy(generator.integers(len(SPECIAL), vocabulary_size, tokens.shape))
    shown = tokens.masked_fill(hidden & (kind >= _LEFT + _REPLACED), MASK)
    shown = torch.where(hidden & (kind >= _LEFT) & (kind < _LEFT + _REPLACED), others, shown)
    return MaskedBatch(shown, mask, hidden, tokens[hidden])


class MaskedText(Sentences[MaskedBatch]):
    """Sentences of which some pieces are hidden.

    Which ones depends on seed, epoch and places alone, so a run that is resumed goes on with the same batches.
    """

    def __init__(self, rows: Sequence[Tensor], *, vocabulary_size: int, share: float = 0.15, seed: int = 0) -> None:
        super().__init__(rows)
        self.vocabulary_size, self.share, self.seed = vocabulary_size, share, seed

    def __getitem__(self, index: tuple[int, Sequence[int]]) -> MaskedBatch:
        epoch, places = index
        tokens, mask = padded([self.rows[place] for place in places])
        generator = np.random.default_rng([self.seed, epoch, *places])
        return hide_tokens(tokens, mask, share=self.share, vocabulary_size=self.vocabulary_size, generator=generator)
