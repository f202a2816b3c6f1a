"""Texts as ids of word pieces, batches of similar lengths, and their samplers."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from lightning.fabric.utilities.apply_func import move_data_to_device
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler

from experiments.data.text.parallel_text import ParallelText
from experiments.files import reading, write_text
from pyro_attention.analysis.alignments.weights import word_map

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
PAD, BEGIN, END, UNKNOWN = range(len(SPECIAL))
_ALPHABET = sorted(ByteLevel.alphabet())  # the order of the library changes from call to call


@dataclass(frozen=True)
class Vocabulary:
    """Tokenizer that converts every text to ids and back, except for its white space.

    Word pieces are sequences of bytes (byte-level BPE), so that every text has ids, and none becomes <unk>. The names
    of special tokens in a text, such as "<s>", are ordinary characters.

    Attributes:
        text: JSON of the `tokenizers` library.
    """

    text: str

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size()

    def __reduce__(self) -> tuple[type["Vocabulary"], tuple[str]]:
        return Vocabulary, (self.text,)  # a pickled tokenizer would forget encode_special_tokens

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        tokenizer = Tokenizer.from_str(self.text)
        # otherwise "<s>" in a sentence would become the special token
        tokenizer.encode_special_tokens = True
        return tokenizer

    def encode(self, text: str) -> list[int]:
        """Return the ids of a sentence, without special tokens."""
        return self._tokenizer.encode(" ".join(text.split())).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids up to the first </s>, without special tokens, and with single blanks between words."""
        ids = list(ids)
        sentence = ids[: ids.index(END)] if END in ids else ids
        return " ".join(self._tokenizer.decode(sentence, skip_special_tokens=True).split())

    def words(self, ids: Sequence[int]) -> list[int | None]:
        """Return the index of the word of every id, counted from 0, or None for special tokens, as for `merge_pieces`.

        Words are separated by blanks, also in ids that a network wrote.
        """
        return word_map([self._tokenizer.id_to_token(token) or "" for token in ids], style="Ġ", special=SPECIAL)

    def save(self, path: Path) -> None:
        """Write the tokenizer as JSON."""
        write_text(path, self.text)

    @staticmethod
    def load(path: Path) -> "Vocabulary":
        """Read a file that was written by `save`.

        Raises:
            DamagedFileError: The file is missing or damaged.
        """
        with reading(path, "a vocabulary as JSON", "replace it by an intact copy, or train the tokenizer again"):
            vocabulary = Vocabulary(path.read_bytes().decode())
            if [vocabulary._tokenizer.token_to_id(token) for token in SPECIAL] != [*range(len(SPECIAL))]:
                raise ValueError(f"it does not begin with {SPECIAL}")
            return vocabulary


def train_tokenizer(texts: Iterable[str], *, size: int = 4000) -> Vocabulary:
    """Train a vocabulary of word pieces on sentences, for a joint vocabulary on those of both languages.

    The vocabulary does not depend on the order of the sentences.

    Args:
        texts: Training sentences.
        size: Largest number of pieces: 4 special tokens, 256 bytes, and pieces that are merged from bytes. Two pieces
            are merged only if they occur together twice, so a small text has fewer pieces.

    Raises:
        ValueError: The size is too small for special tokens and bytes.

    Source:
        Sennrich, Haddow and Birch, Neural Machine Translation of Rare Words with Subword Units, 2016; on bytes:
        Radford et al., Language Models are Unsupervised Multitask Learners, 2019.
    """
    least = len(SPECIAL) + len(_ALPHABET)
    if size < least:
        raise ValueError(f"size is {size}; expected at least {least}, for special tokens and single bytes")
    sentences = [" ".join(text.split()) for text in texts]
    # every merge shortens the text by a byte, which bounds their number; the library allocates memory for all of them
    size = min(size, least + sum(len(sentence.encode()) + 1 for sentence in sentences))
    tokenizer = Tokenizer(BPE(unk_token=SPECIAL[UNKNOWN]))
    # the blank before a word belongs to its first piece; the first word gets one too, to have the same pieces as later
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=True)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=size, min_frequency=2, special_tokens=list(SPECIAL), initial_alphabet=_ALPHABET, show_progress=False
    )
    tokenizer.train_from_iterator(sentences, trainer)
    return Vocabulary(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False))


Item = TypeVar("Item")


@dataclass(frozen=True, eq=False)
class Batch:
    """B sentence pairs, padded to N source and M target positions with <pad>.

    Attributes:
        source: Ids of the source without special tokens, ``[B, N]`` int64; for images, features ``[B, N, F]``.
        source_mask: False at the padding of the source, ``[B, N]``.
        target_in: Input of the decoder, <s> and the ids of the target, ``[B, M]`` int64.
        target_out: Words to predict, the ids of the target and </s>, ``[B, M]`` int64.
        target_mask: False at the padding of both, ``[B, M]``.
        indices: Indices of the pairs in the text, ``[B]`` int64.
    """

    source: Tensor
    source_mask: Tensor
    target_in: Tensor
    target_out: Tensor
    target_mask: Tensor
    indices: Tensor

    def __len__(self) -> int:
        return len(self.indices)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Batch":
        """Return a copy of the batch with every tensor on `device`; Lightning calls this."""
        return Batch(*(tensor.to(device, non_blocking=non_blocking) for tensor in vars(self).values()))


class EncodedText(Dataset[Batch]):
    """Sentence pairs as ids; a list of indices gives the `Batch` of these pairs.

    A target may be empty, for example before it is translated.

    Raises:
        ValueError: A source is empty.
    """

    def __init__(self, text: ParallelText, vocabulary: Vocabulary) -> None:
        self.sources, self.targets = (
            [torch.tensor(vocabulary.encode(sentence), dtype=torch.int64) for sentence in side]
            for side in (text.source, text.target)
        )
        if not all(map(len, self.sources)):
            raise ValueError(
                f"{text.name} has an empty source sentence, which attention cannot attend to; leave it out"
            )

    @property
    def lengths(self) -> list[tuple[int, int]]:
        """Source and target length of every pair; the target length counts <s> or </s>."""
        return [(len(source), len(target) + 1) for source, target in zip(self.sources, self.targets, strict=True)]

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, indices: Sequence[int]) -> Batch:
        sources, targets = [self.sources[i] for i in indices], [self.targets[i] for i in indices]
        return Batch(*padded(sources), *teacher_forced(targets), torch.tensor(indices, dtype=torch.int64))


def padded(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return rows of ids as [B, N], padded with <pad>, and a mask that is False at the padding."""
    tokens = pad_sequence(list(rows), batch_first=True, padding_value=PAD)
    return tokens, tokens != PAD


def teacher_forced(targets: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs and outputs of a decoder for target sentences, and their mask, each [B, M].

    Inputs begin with <s>, outputs end with </s>; both are padded, and the mask is False at the padding.
    """
    begin, end = torch.tensor([BEGIN]), torch.tensor([END])
    inputs, mask = padded([torch.cat([begin, ids]) for ids in targets])
    return inputs, padded([torch.cat([ids, end]) for ids in targets])[0], mask


class BucketSampler(Sampler[list[int]]):
    """Sampler of batches of similar lengths, with every pair once an epoch; a batch is a list of indices.

    The pairs are shuffled and cut into pools of about `pool` batches. A pool is sorted by length and cut into batches,
    which are shuffled again. The order depends only on seed and epoch, so that a resumed run has the same batches.
    Lightning sets the epoch (it calls `set_epoch` of the loader's `sampler`), with the callback `SamplerEpoch` also
    when a run is resumed. Other loops must call `set_epoch` themselves. Processes that train together share the
    batches; see `share`.

    Args:
        lengths: Source and target length of every pair.
        sentences: Largest number of pairs of a batch.
        pool: Batches of a pool.
        shuffle: Shuffle; otherwise the batches are the same in every epoch, in order of length.
        seed: Seed of the order.

    Source: pools as in OpenNMT-py 0.x, onmt/io/IO.py, OrderedIterator.
    """

    def __init__(
        self,
        lengths: Sequence[tuple[int, int]],
        *,
        sentences: int,
        pool: int = 100,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        self.lengths, self.sentences, self.pool = list(lengths), sentences, pool
        self.shuffle, self.seed, self.epoch = shuffle, seed, 0
        self.rank, self.ranks = 0, 1

    def share(self, rank: int, ranks: int) -> None:
        """Restrict the sampler to the part of one process; it is called once.

        A batch has `sentences` pairs for each of `ranks` processes. A last batch with fewer pairs than processes is
        left out.
        """
        self.sentences *= ranks
        self.rank, self.ranks = rank, ranks

    def part(self, batches: list[list[int]]) -> list[list[int]]:
        """Return this process's part of batches."""
        return [batch[self.rank :: self.ranks] for batch in batches if len(batch) >= self.ranks]

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, counted from 0, which determines the order."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.part(self.batches(self.epoch)))

    def __len__(self) -> int:
        return len(self.part(self.batches(self.epoch)))

    def batches(self, epoch: int) -> list[list[int]]:
        """Return the batches of an epoch."""
        if not self.shuffle:
            return self._cut(sorted(range(len(self.lengths)), key=self.lengths.__getitem__))
        generator = np.random.default_rng([self.seed, epoch])
        order: list[int] = generator.permutation(len(self.lengths)).tolist()
        size = self.pool * self.sentences
        pools = [order[start : start + size] for start in range(0, len(order), size)]
        batches = [batch for pool in pools for batch in self._cut(sorted(pool, key=self.lengths.__getitem__))]
        return [batches[i] for i in generator.permutation(len(batches))]

    def _cut(self, order: list[int]) -> list[list[int]]:
        return [order[start : start + self.sentences] for start in range(0, len(order), self.sentences)]


class ChoiceSampler(BucketSampler):
    """Sampler of every item once an epoch, with one of its pairs, which is drawn anew in every epoch.

    Args:
        lengths: Source and target length of every pair; the pairs of an item follow each other.
        counts: Number of pairs of each item.
        options: Options of :class:`BucketSampler`.
    """

    def __init__(self, lengths: Sequence[tuple[int, int]], counts: Sequence[int], **options: Any) -> None:
        super().__init__(lengths, **options)
        self.counts = np.array(counts)

    def chosen(self, epoch: int) -> np.ndarray:
        """Return the index of one pair of every item."""
        # the third number makes the draws independent of the order
        draws = np.random.default_rng([self.seed, epoch, 1]).integers(self.counts)
        return np.cumsum(self.counts) - self.counts + draws

    def batches(self, epoch: int) -> list[list[int]]:
        """Return the batches of an epoch."""
        chosen: list[int] = self.chosen(epoch).tolist()
        order = BucketSampler([self.lengths[index] for index in chosen], sentences=self.sentences, seed=self.seed)
        return [[chosen[index] for index in batch] for batch in order.batches(epoch)]


def batch_loader(data: Dataset[Item], sampler: BucketSampler) -> DataLoader[Item]:
    """Return a loader of the batches of a sampler, whose epoch Lightning sets."""
    # with batch_size=None each list of indices from the sampler is the index into the data set
    return DataLoader(data, sampler=sampler, batch_size=None)


def in_order(data: Any, *, sentences: int, device: torch.device) -> Iterator[Batch]:
    """Yield all pairs in order of their lengths, in batches of ``sentences`` pairs, on a device."""
    for batch in batch_loader(data, BucketSampler(data.lengths, sentences=sentences, shuffle=False)):
        yield batch.to(device)


class EpochSampler(BucketSampler):
    """Sampler of batches of sentences, each with its epoch, which is 0 without shuffling."""

    def __init__(self, rows: Sequence[Tensor], **options: Any) -> None:
        super().__init__([(len(row), len(row)) for row in rows], **options)

    def __iter__(self) -> Iterator[Any]:
        epoch = self.epoch if self.shuffle else 0
        return ((epoch, indices) for indices in self.part(self.batches(epoch)))


class Sentences(Dataset[Item]):
    """Sentences as ids; an epoch and a list of indices give a batch of them.

    A subclass defines the batches.
    """

    def __init__(self, rows: Sequence[Tensor]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def loader(self, **options: Any) -> DataLoader[Item]:
        """Return a loader of batches of similar lengths; the options are those of `EpochSampler`."""
        return batch_loader(self, EpochSampler(self.rows, **options))

    def batches(self, device: torch.device, *, sentences: int) -> Iterator[Item]:
        """Yield all sentences in order of their lengths, in batches, on a device."""
        for index in EpochSampler(self.rows, sentences=sentences, shuffle=False):  # a loader would draw a number
            yield move_data_to_device(self[index], device)
