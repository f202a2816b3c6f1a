"""A training text in files, in chunks that fit into memory, for texts of any size.

Three passes make it. The first counts words; those that memory has no room for, the rarest, stay unknown. The second
writes the sentence pairs in chunks, with the pairs of words of each. The third merges these, range by range of the
source words. A pair of words is left out where there are more than memory has room for: those go that stand together in
the smallest share of the sentences of the rarer word. What is kept depends on the text and on the room, and not on the
size of the chunks.

The chunks are then read in every iteration, by this process, by processes of this machine, or by workers of a Dask
cluster that see the same folder. Counts are added in the order of the chunks, so the result is the same.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from shutil import rmtree
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from pyro_attention.aligner._corpus import (
    Batch,
    Cells,
    Division,
    Ints,
    UniqueKeys,
    Vocabulary,
    WordPairs,
    batches,
    is_padding,
    unique_keys,
)
from pyro_attention.aligner._expectation import Both, Chunk, ChunkCounts, Direction, Step, expected_counts
from pyro_attention.aligner._training import PARTS, TrainingText, divide, known_counts, known_keys, part_count

__all__ = ["Room", "Workers", "write_chunks"]

_ENTRIES = 4_000_000  # pairs of words that are merged together
_SENT = 16  # chunks that are sent to a cluster together, to be written
_FORGOTTEN = 2  # times as many words as there is room for are counted before the rarest are forgotten
_FIELDS = ("translation", "null", "jumps")
_WRITTEN = re.compile(r"\d{12}|keys\.npy|model\.\d+\.\d+\.[a-z]+\.npy")  # names in a folder of chunks
SentencePair = tuple[Sequence[str], Sequence[str]]
Task = TypeVar("Task")
Result = TypeVar("Result")


class Room(NamedTuple):
    """Room that a text in files may take.

    Attributes:
        word_pairs: Pairs of words.
        words: Words of each language.
        chunk: Sentence pairs of a chunk.
    """

    word_pairs: int
    words: int
    chunk: int = 20_000

    @classmethod
    def of(cls, megabytes: int, parts: int = PARTS) -> Room:
        """Return the room that so much memory gives a text of some parts; Python and PyTorch take their share before.

        Raises:
            ValueError: There is none.
        """
        free = (megabytes - _BASE) * 2**20
        if free < _LEAST_FREE:
            raise ValueError(f"{megabytes} MB of memory are too few, expected {_BASE + _LEAST_FREE // 2**20} at least")
        return cls(int(0.85 * free) // (_PAIR_BYTES + parts * _PART_BYTES), int(0.15 * free) // (2 * _WORD_BYTES))


# measured on 200 000 pairs with one model, and on 100 000 with two
_BASE = 800  # MB of Python, PyTorch and the sums of a chunk
_LEAST_FREE = 64 * 2**20
_PAIR_BYTES, _PART_BYTES = 80, 30  # of a pair of words in a maximization step, and more for each part of the text
_WORD_BYTES = 250


@dataclass(frozen=True)
class Workers:
    """Processes of this machine, or a Dask cluster, that read the chunks of a text.

    Attributes:
        processes: Number of processes; 1 is this one.
        cluster: Address of a scheduler, whose workers see the folder of the chunks.
    """

    processes: int = 1
    cluster: str | None = None

    def map(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
        """Yield the results of some tasks in their order."""
        if self.processes == 1 and self.cluster is None:
            yield from map(function, tasks)
            return
        from joblib import Parallel, delayed, parallel_config

        with ExitStack() as stack:
            if self.cluster is None:
                stack.enter_context(parallel_config("loky", n_jobs=self.processes, inner_max_num_threads=1))
            else:
                from distributed import Client

                client = stack.enter_context(Client(self.cluster, set_as_default=True))
                stack.enter_context(parallel_config("dask", n_jobs=len(client.scheduler_info()["workers"]) or 1))
            # few results wait in memory for their turn
            parallel = Parallel(return_as="generator", batch_size=1, pre_dispatch="2*n_jobs")
            yield from parallel(delayed(_on_one_thread)(function, task) for task in tasks)


def _on_one_thread(function: Callable[[Task], Result], task: Task) -> Result:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return function(task)
    finally:
        torch.set_num_threads(threads)


def write_chunks(
    pairs: Iterable[SentencePair],
    folder: Path,
    *,
    room: Room,
    known: Mapping[tuple[str, str], float],
    parts: int | None = None,
    workers: Workers | None = None,
) -> TrainingText:
    """Write a text in chunks, and return it.

    Args:
        pairs: Source and target words of every sentence pair, in Unicode's composed form; they are read twice.
        folder: Folder that becomes the chunks'; an old one of another text is replaced.
        room: What the text may take.
        known: Pairs of words that the user knows, with their numbers of observations.
        parts: Number of parts of the text; by default that of :func:`part_count`.
        workers: Who writes and reads the chunks.

    Raises:
        ValueError: No sentence pair has words on both sides, or the folder holds anything but chunks.
    """
    workers = workers or Workers()
    _check_replaceable(folder)
    rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    vocabularies, num_sentences = _count_words(pairs, room, known)
    parts = part_count(num_sentences) if parts is None else parts
    paths = []
    tasks = _chunk_tasks(pairs, folder, vocabularies, room.chunk, divide(num_sentences, parts))
    for path in _in_groups(tasks, workers):
        paths.append(path)
    sizes = len(vocabularies[0].words), len(vocabularies[1].words)
    word_pairs = _merge(paths, vocabularies, sizes, known_keys(vocabularies, known), room.word_pairs)
    np.save(folder / "keys.npy", word_pairs.keys)
    list(workers.map(_number_pairs, [_Numbering(path, sizes) for path in paths]))
    observed = known_counts(vocabularies, word_pairs, known)
    return TrainingText(vocabularies, word_pairs, _ChunkFiles(folder, paths, workers), num_sentences, parts, observed)


def _check_replaceable(folder: Path) -> None:
    """Raise ValueError where a folder holds anything that no earlier call has written."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    if foreign := sorted(name for name in names if _WRITTEN.fullmatch(name) is None):
        raise ValueError(
            f"{folder} holds {foreign[0]}, which is no chunk of a text, and all of that folder would be removed; "
            f"choose another folder for the chunks, or move what is there"
        )


# first pass


def _count_words(
    pairs: Iterable[SentencePair], room: Room, known: Mapping[tuple[str, str], float]
) -> tuple[tuple[Vocabulary, Vocabulary], int]:
    counters = [Counter[str](), Counter[str]()]
    num_sentences = num_aligned = 0
    for sides in pairs:
        num_sentences += 1
        num_aligned += all(sides)
        for number, (counter, side) in enumerate(zip(counters, sides, strict=True)):
            counter.update(side)
            if len(counter) > _FORGOTTEN * room.words:
                counters[number] = _most_frequent(counter, room.words)
    if not num_aligned:
        raise ValueError("the text has no pair with words on both sides, expected some thousand pairs")
    first, second = (
        Vocabulary.from_counts(_most_frequent(counter, room.words), [pair[side] for pair in known])
        for side, counter in enumerate(counters)
    )
    return (first, second), num_sentences


def _most_frequent(counter: Counter[str], most: int) -> Counter[str]:
    """Return the most frequent words in the order in which they occur; of equally frequent ones none or all."""
    if len(counter) <= most:
        return counter
    least = np.partition(np.fromiter(counter.values(), np.int64, len(counter)), len(counter) - most - 1)[
        len(counter) - most - 1
    ]
    return Counter({word: count for word, count in counter.items() if count > least})


# second pass


class _ChunkTask(NamedTuple):
    path: Path
    batches: list[Batch]
    sizes: tuple[int, int]


def _chunk_tasks(
    pairs: Iterable[SentencePair], folder: Path, vocabularies: tuple[Vocabulary, Vocabulary], size: int,
    division: Division,
) -> Iterator[_ChunkTask]:  # fmt: skip
    sizes = len(vocabularies[0].words), len(vocabularies[1].words)
    reader, first = iter(pairs), 0
    while chunk := list(islice(reader, size)):
        source, target = zip(*chunk, strict=True)
        text = list(batches(vocabularies, source, target, division=division, first=first))
        if text:
            yield _ChunkTask(folder / f"{first:012d}", text, sizes)
        first += len(chunk)


def _in_groups(tasks: Iterator[_ChunkTask], workers: Workers) -> Iterator[Path]:
    """Write chunks a few at a time, so that few are in memory."""
    while group := list(islice(tasks, 2 * workers.processes if workers.cluster is None else _SENT)):
        yield from workers.map(_write_chunk, group)


def _write_chunk(task: _ChunkTask) -> Path:
    """Write the batches of a chunk, their keys, and the pairs of words of the chunk with how often they occur."""
    task.path.mkdir()
    keys = [unique_keys(batch, task.sizes) for batch in task.batches]
    shapes = [
        (*part.inverse.shape[::-1], len(part.keys), batch.part, batch.counts_jumps)  # B, N, M and U
        for batch, part in zip(task.batches, keys, strict=True)
    ]
    batch_keys = np.concatenate([part.keys for part in keys])
    arrays: dict[str, NDArray[np.generic]] = {
        "shapes": np.array(shapes, dtype=np.int64),
        "batch_keys": batch_keys,
        "inverse": np.concatenate([part.inverse.ravel() for part in keys]),
    }
    for name in ("source", "target", "source_lengths", "target_lengths"):
        arrays[name] = np.concatenate([getattr(batch, name).numpy().ravel().astype(np.int32) for batch in task.batches])
    keys_of_chunk, counts = _summed(batch_keys, np.concatenate([np.bincount(part.inverse.ravel()) for part in keys]))
    known = ~(is_padding(keys_of_chunk, task.sizes) | _is_unknown(keys_of_chunk, task.sizes))
    arrays |= {"keys": keys_of_chunk[known], "counts": counts[known].astype(np.int32)}
    for name, array in arrays.items():
        np.save(task.path / f"{name}.npy", array)
    return task.path


def _is_unknown(keys: Ints, sizes: tuple[int, int]) -> NDArray[np.bool_]:
    unknown: NDArray[np.bool_] = (keys // (sizes[1] + 2) > sizes[0]) | (keys % (sizes[1] + 2) > sizes[1])
    return unknown


def _summed(keys: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Return every key once, in ascending order, with the sum of its counts."""
    order = np.argsort(keys, kind="stable")
    keys, counts = keys[order], counts[order]
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    return keys[starts], np.add.reduceat(counts, starts) if len(starts) else counts


# third pass


def _merge(
    paths: Sequence[Path], vocabularies: tuple[Vocabulary, Vocabulary], sizes: tuple[int, int], more: Ints, most: int
) -> WordPairs:
    """Return the pairs of words of all chunks, ``most`` of them at most, and ``more``."""
    shares = [vocabulary.share.double().numpy() for vocabulary in vocabularies]
    kept_keys, kept_scores, least = np.zeros(0, dtype=np.int64), np.zeros(0), 0.0
    for low, high in _ranges(paths, sizes):
        pieces = [_entries(path, low, high) for path in paths]
        keys, counts = _summed(*(np.concatenate(column) for column in zip(*pieces, strict=True)))
        first, second = keys // (sizes[1] + 2), keys % (sizes[1] + 2)
        # a share of the links that the rarer word could have
        scores = counts / np.minimum(shares[0][first], shares[1][second])
        chosen = scores > least
        kept_keys = np.concatenate([kept_keys, keys[chosen]])
        kept_scores = np.concatenate([kept_scores, scores[chosen]])
        if len(kept_keys) > most:
            least = max(
                least, float(np.partition(kept_scores, len(kept_scores) - most - 1)[len(kept_scores) - most - 1])
            )
            chosen = kept_scores > least
            kept_keys, kept_scores = kept_keys[chosen], kept_scores[chosen]
    return WordPairs(np.union1d(kept_keys, more), sizes)


def _entries(path: Path, low: int, high: int) -> tuple[Ints, Ints]:
    """Return the pairs of words of a chunk in a range of keys; its files are closed again."""
    keys, counts = (np.load(path / f"{name}.npy", mmap_mode="r") for name in ("keys", "counts"))
    part = slice(*np.searchsorted(keys, (low, high)))
    return np.array(keys[part]), counts[part].astype(np.int64)


def _ranges(paths: Sequence[Path], sizes: tuple[int, int]) -> list[tuple[int, int]]:
    """Return ranges of keys with about ``_ENTRIES`` entries in all chunks."""
    histogram = np.zeros(sizes[0], dtype=np.int64)
    for path in paths:
        histogram += np.bincount(np.load(path / "keys.npy", mmap_mode="r") // (sizes[1] + 2), minlength=sizes[0])
    number = np.cumsum(histogram) // _ENTRIES
    ends = [*(np.flatnonzero(np.diff(number)) + 1).tolist(), sizes[0]]
    starts = [0, *ends[:-1]]
    return [(a * (sizes[1] + 2), b * (sizes[1] + 2)) for a, b in zip(starts, ends, strict=True)]


class _Numbering(NamedTuple):
    path: Path
    sizes: tuple[int, int]


def _number_pairs(task: _Numbering) -> None:
    """Write which pairs of words of the text a chunk has, and which of these its batches have."""
    text = np.load(task.path.parent / "keys.npy", mmap_mode="r")
    keys = np.load(task.path / "keys.npy")
    numbers = np.searchsorted(text, keys)
    known = np.take(text, numbers, mode="clip") == keys if len(text) else np.zeros(len(keys), dtype=bool)
    np.save(task.path / "pairs.npy", numbers[known])
    of_batches = np.load(task.path / "batch_keys.npy")
    cells = WordPairs(keys[known], task.sizes).cells(UniqueKeys(of_batches, np.zeros(0, dtype=np.int32)))
    np.save(task.path / "batch_pairs.npy", cells.pairs.numpy())
    for name in ("keys", "counts", "batch_keys"):
        (task.path / f"{name}.npy").unlink()


# expectation


class _ExpectationTask(NamedTuple):
    path: Path
    step: Step
    num_models: int


@dataclass(frozen=True)
class _ChunkFiles:
    """Chunks in files; see :class:`pyro_attention.aligner._expectation.Chunks`."""

    folder: Path
    paths: Sequence[Path]
    workers: Workers

    def expected(self, models: Sequence[Both], step: Step) -> Iterator[ChunkCounts]:
        """Yield the counts of every chunk, in order."""
        for number, model in enumerate(models):
            for side, direction in enumerate(model):
                for field in _FIELDS:
                    np.save(_table(self.folder, number, side, field), getattr(direction, field).numpy())
        tasks = [_ExpectationTask(path, step, len(models)) for path in self.paths]
        yield from self.workers.map(_chunk_counts, tasks)


def _table(folder: Path, model: int, side: int, field: str) -> Path:
    return folder / f"model.{model}.{side}.{field}.npy"


def _chunk_counts(task: _ExpectationTask) -> ChunkCounts:
    chunk = _read_chunk(task.path)
    assert chunk.pairs is not None
    numbers = chunk.pairs.numpy()

    def direction(model: int, side: int) -> Direction:
        arrays = [np.load(_table(task.path.parent, model, side, field), mmap_mode="c") for field in _FIELDS]
        return Direction(torch.from_numpy(arrays[0][numbers]), *(torch.from_numpy(array) for array in arrays[1:]))

    models = [(direction(number, 0), direction(number, 1)) for number in range(task.num_models)]
    return ChunkCounts(expected_counts(chunk, models, task.step), chunk.pairs)


def _read_chunk(path: Path) -> Chunk:
    # copied on write, as PyTorch has no tensors that cannot be written
    names = ("source", "target", "source_lengths", "target_lengths", "inverse", "batch_pairs", "pairs")
    arrays = {name: torch.from_numpy(np.load(path / f"{name}.npy", mmap_mode="c")) for name in names}
    shapes = np.load(path / "shapes.npy").tolist()
    sizes = {
        "source": [n * b for b, n, m, u, _, _ in shapes],
        "target": [m * b for b, n, m, u, _, _ in shapes],
        "source_lengths": [b for b, *_ in shapes],
        "target_lengths": [b for b, *_ in shapes],
        "inverse": [m * n * b for b, n, m, u, _, _ in shapes],
        "batch_pairs": [u for _, _, _, u, _, _ in shapes],
    }
    split = {name: arrays[name].split(parts) for name, parts in sizes.items()}
    text, cells = [], []
    for number, (b, n, m, _, part, counts_jumps) in enumerate(shapes):
        source, target, source_lengths, target_lengths, inverse, pairs = (values[number] for values in split.values())
        batch = Batch(
            range(b), source.view(n, b), target.view(m, b), source_lengths.long(), target_lengths.long(), part,
            bool(counts_jumps),
        )  # fmt: skip
        text.append(batch)
        cells.append(Cells(pairs, inverse.view(m, n, b)))
    return Chunk(text, cells, arrays["pairs"])
