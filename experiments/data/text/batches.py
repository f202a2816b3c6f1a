"""Texts as ids: word pieces, batches of similar lengths, and the samplers that choose them."""

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
_ALPHABET = sorted(ByteLevel.alphabet())  # the library's order changes from call to call


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer that turns every text into ids and back, up to its white space.

    Pieces are runs of bytes (byte-level BPE): every text has ids, and nothing becomes <unk>. The names of special
    tokens in a text, such as "<s>", are ordinary characters.
    """

    text: str  # JSON of the `tokenizers` library

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size()

    def __reduce__(self) -> tuple[type["Vocabulary"], tuple[str]]:
        return Vocabulary, (self.text,)  # a pickled tokenizer would forget encode_special_tokens

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        tokenizer = Tokenizer.from_str(self.text)
        # Or "<s>" in a sentence would become the special token.
        tokenizer.encode_special_tokens = True
        return tokenizer

    def encode(self, text: str) -> list[int]:
        """Return the ids of a sentence, without special tokens."""
        return self._tokenizer.encode(" ".join(text.split())).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids up to the first </s>, without special tokens; words with single blanks between."""
        ids = list(ids)
        said = ids[: ids.index(END)] if END in ids else ids
        return " ".join(self._tokenizer.decode(said, skip_special_tokens=True).split())

    def words(self, ids: Sequence[int]) -> list[int | None]:
        """Return the word of every id, counted from 0, or None for special tokens; what `merge_pieces` takes.

        Words are what blanks separate, also in ids that a model has made.
        """
        return word_map([self._tokenizer.id_to_token(token) or "" for token in ids], style="Ġ", special=SPECIAL)

    def save(self, path: Path) -> None:
        """Write the tokenizer as JSON."""
        write_text(path, self.text)

    @staticmethod
    def load(path: Path) -> "Vocabulary":
        """Read what `save` has written; DamagedFileError where the file is missing or damaged."""
        with reading(path, "a vocabulary as JSON", "replace it by an intact copy, or train the tokenizer again"):
            vocabulary = Vocabulary(path.read_bytes().decode())
            if [vocabulary._tokenizer.token_to_id(token) for token in SPECIAL] != [*range(len(SPECIAL))]:
                raise ValueError(f"it does not begin with {SPECIAL}")
            return vocabulary


def train_tokenizer(texts: Iterable[str], *, size: int = 4000) -> Vocabulary:
    """Learn pieces from training sentences: of both languages for a joint vocabulary, of one for a separate one.

    The same sentences give the same vocabulary, whatever their order. Of `size` pieces at most 4 are special tokens and
    256 are bytes; the others are merged from these. A small text has fewer: two pieces are merged that meet twice.

    Source:
        Sennrich, Haddow and Birch, Neural Machine Translation of Rare Words with Subword Units, 2016; on bytes:
        Radford et al., Language Models are Unsupervised Multitask Learners, 2019.
    """
    least = len(SPECIAL) + len(_ALPHABET)
    if size < least:
        raise ValueError(f"size is {size}; expected {least} at least, for special tokens and single bytes")
    sentences = [" ".join(text.split()) for text in texts]
    # Every merge makes the text shorter by a byte, so there are no more; the library takes memory for all it may make.
    size = min(size, least + sum(len(sentence.encode()) + 1 for sentence in sentences))
    tokenizer = Tokenizer(BPE(unk_token=SPECIAL[UNKNOWN]))
    # The blank in front of a word belongs to its first piece; the first word gets one, to be no other word than later.
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
    """B sentence pairs, padded to N source and M target positions with <pad>; masks are True at what is no padding."""

    source: Tensor  # [B, N] int64, ids of the source, without special tokens
    source_mask: Tensor  # [B, N] bool
    target_in: Tensor  # [B, M] int64, <s> and the ids of the target: what the decoder reads
    target_out: Tensor  # [B, M] int64, the ids of the target and </s>: what it is to say
    target_mask: Tensor  # [B, M] bool, of both
    indices: Tensor  # [B] int64, places of the pairs in the text, counted from 0

    def __len__(self) -> int:
        return len(self.indices)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Batch":
        """Return a copy of the batch with every tensor on `device`; Lightning calls this."""
        return Batch(*(tensor.to(device, non_blocking=non_blocking) for tensor in vars(self).values()))


class EncodedText(Dataset[Batch]):
    """Sentence pairs as ids; indexed by a list of places it gives the `Batch` of these pairs.

    A target may be empty, where there is none yet; a source may not.
    """

    def __init__(self, text: ParallelText, vocabulary: Vocabulary) -> None:
        self.sources, self.targets = (
            [torch.tensor(vocabulary.encode(sentence), dtype=torch.int64) for sentence in side]
            for side in (text.source, text.target)
        )
        if not all(map(len, self.sources)):
            raise ValueError(
                f"{text.name}: a source sentence is empty, and attention has nothing to attend to; leave it out"
            )

    @property
    def lengths(self) -> list[tuple[int, int]]:
        """Source and target length of every pair in a batch; the target's counts <s> or </s>."""
        return [(len(source), len(target) + 1) for source, target in zip(self.sources, self.targets, strict=True)]

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, indices: Sequence[int]) -> Batch:
        sources, targets = [self.sources[i] for i in indices], [self.targets[i] for i in indices]
        return Batch(*padded(sources), *teacher_forced(targets), torch.tensor(indices, dtype=torch.int64))


def padded(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Rows of ids as [B, N], padded with <pad>, and a mask that is True at what is no padding."""
    tokens = pad_sequence(list(rows), batch_first=True, padding_value=PAD)
    return tokens, tokens != PAD


def teacher_forced(targets: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """What a decoder reads, behind <s>, and what it is to say, up to </s>, both padded; and the mask of both."""
    begin, end = torch.tensor([BEGIN]), torch.tensor([END])
    read, mask = padded([torch.cat([begin, ids]) for ids in targets])
    return read, padded([torch.cat([ids, end]) for ids in targets])[0], mask


class BucketSampler(Sampler[list[int]]):
    """Lists of places of pairs of similar lengths, every pair once an epoch.

    The pairs are shuffled, cut into pools of about `pool` batches, sorted by length within a pool and cut into batches,
    which are shuffled again. The order depends on seed and epoch only, so a run that is resumed goes on with the same
    batches: the epoch is the whole state. Lightning sets it (it looks for `set_epoch` at the loader's `sampler`), with
    the callback `SamplerEpoch` also when it resumes; other loops call `set_epoch` themselves. Processes that train
    together have parts of the same batches; see `share`.

    A batch has `sentences` pairs at most. Without `shuffle`, the batches are the same in every epoch, in order of
    length. Pools are as in OpenNMT-py 0.x, onmt/io/IO.py, OrderedIterator.
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
        """Give a process its part of batches with `sentences` pairs for each of `ranks` processes; called once.

        A last batch of fewer pairs than processes is left out.
        """
        self.sentences *= ranks
        self.rank, self.ranks = rank, ranks

    def part(self, batches: list[list[int]]) -> list[list[int]]:
        """Return this process's part of batches."""
        return [batch[self.rank :: self.ranks] for batch in batches if len(batch) >= self.ranks]

    def set_epoch(self, epoch: int) -> None:
        """Go to the order of an epoch, counted from 0."""
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
    """Every item once an epoch, with one of its pairs, drawn anew in every epoch.

    The pairs of an item, ``counts`` of each, stand together.
    """

    def __init__(self, lengths: Sequence[tuple[int, int]], counts: Sequence[int], **options: Any) -> None:
        super().__init__(lengths, **options)
        self.counts = np.array(counts)

    def chosen(self, epoch: int) -> np.ndarray:
        """Return the place of one pair of every item."""
        # 1: other numbers than those of the order
        draws = np.random.default_rng([self.seed, epoch, 1]).integers(self.counts)
        return np.cumsum(self.counts) - self.counts + draws

    def batches(self, epoch: int) -> list[list[int]]:
        """Return the batches of an epoch."""
        chosen: list[int] = self.chosen(epoch).tolist()
        order = BucketSampler([self.lengths[place] for place in chosen], sentences=self.sentences, seed=self.seed)
        return [[chosen[place] for place in batch] for batch in order.batches(epoch)]


def batch_loader(data: Dataset[Item], sampler: BucketSampler) -> DataLoader[Item]:
    """Return a loader of a sampler's batches, with the sampler as its `sampler`, where Lightning sets the epoch."""
    # batch_size=None: what the sampler yields, a list of places, is the index.
    return DataLoader(data, sampler=sampler, batch_size=None)


def in_order(data: Any, *, sentences: int, device: torch.device) -> Iterator[Batch]:
    """Give all pairs in order of their lengths, so many in a batch, on a device."""
    for batch in batch_loader(data, BucketSampler(data.lengths, sentences=sentences, shuffle=False)):
        yield batch.to(device)


class EpochSampler(BucketSampler):
    """A `BucketSampler` of sentences that gives the epoch beside the places; without shuffling always epoch 0."""

    def __init__(self, rows: Sequence[Tensor], **options: Any) -> None:
        super().__init__([(len(row), len(row)) for row in rows], **options)

    def __iter__(self) -> Iterator[Any]:
        epoch = self.epoch if self.shuffle else 0
        return ((epoch, places) for places in self.part(self.batches(epoch)))


class Sentences(Dataset[Item]):
    """Sentences as ids, with whatever goes with them; indexed by an epoch and a list of places."""

    def __init__(self, rows: Sequence[Tensor]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def loader(self, **options: Any) -> DataLoader[Item]:
        """Return a loader of batches of similar lengths; the options are those of `EpochSampler`."""
        return batch_loader(self, EpochSampler(self.rows, **options))

    def batches(self, device: torch.device, *, sentences: int) -> Iterator[Item]:
        """Give all sentences in order of their lengths, on a device."""
        for index in EpochSampler(self.rows, sentences=sentences, shuffle=False):  # a loader would draw a number
            yield move_data_to_device(self[index], device)
