"""Canvases of real handwritten digits with captions from a small grammar; needs no file.

A scene is a grid of 3 x 3 cells; one to three of them hold a digit of scikit-learn's set (8 x 8 pixels), all of
different values, so a digit's name says which cell is meant. A caption names every digit of its scene: "nothing but a
seven", "a seven left of a two", "a seven left of a two and above an eight". Relations compare columns or rows of cells,
whatever is in between. The references of a scene are all captions that are true of it.

Who describes a training scene names the largest digit first and the smallest last: were the order random, an attention
that has not seen the word could not point at it.
"""

from collections.abc import Callable, Sequence
from itertools import compress, permutations
from random import Random
from typing import TypeVar

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn.functional import one_hot

from experiments.data.images.region_captions import RegionCaptions
from experiments.data.places import SPLITS

Option = TypeVar("Option")
DIGIT_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
GRID = (3, 3)  # rows and columns of a scene
NO_CELL = -1  # the cell of a word that belongs to none
_EMPTY = -1  # the digit of a cell that holds none
_SIZE = 8  # pixels of a digit's side
_SHARES = {"train": (0.0, 0.6), "val": (0.6, 0.8), "test": (0.8, 1.0)}  # of the images of every digit


def word_cells(digits: Tensor, caption: str) -> list[int]:
    """Return the cell of every word of a caption; -1 for words that are no name of a digit of the scene."""
    cells = {DIGIT_NAMES[digit]: cell for cell, digit in enumerate(digits.tolist()) if digit != _EMPTY}
    return [cells.get(word, NO_CELL) for word in caption.split()]


def digit_scenes(
    seed: int = 0,
    *,
    train: int = 3000,
    val: int = 500,
    test: int = 500,
    most_digits: int = 3,
) -> dict[str, RegionCaptions]:
    """Draw the scenes.

    Regions are the 64 pixels of a cell, between 0 and 1, then its row and its column, each as one-hot. A scene has all
    captions that are true of it: first those that name the digits in falling order, in random order, which is all there
    is of training scenes; then the others, in random order. On the pictures 0 is paper and 1 is ink.

    The splits share no image of a digit: of the 1797 images, 60 % are for training, 20 % for validation and 20 % for
    the test. (A writer may be in several splits: who wrote what is not known.) A split depends on the seed and its own
    size only; of two sizes the smaller is the beginning of the larger. A scene has up to `most_digits` digits, 3 at
    most; all numbers are equally probable.
    """
    images = digit_images(seed)
    return {
        split: _scenes(Random(f"{seed} {split}").random, images[split], size, most_digits, split != "train")
        for split, size in {"train": train, "val": val, "test": test}.items()
    }


def true_captions(places: dict[int, tuple[int, int]], *, in_order: bool = False) -> list[str]:
    """Return all captions that are true of digits at these rows and columns, or only those in the order of `places`."""
    name = {digit: f"{'an' if digit == 8 else 'a'} {DIGIT_NAMES[digit]}" for digit in places}
    if len(places) == 1:
        (digit,) = places
        return [f"nothing but {name[digit]}", f"{name[digit]} and nothing else"]
    captions = []
    for first, *others in [tuple(places)] if in_order else permutations(places):
        parts = [""]
        for digit in others:
            relations = _relations(places[first], places[digit])
            parts = [f"{part} and {relation} {name[digit]}" for part in parts for relation in relations]
        captions += [f"{name[first]} {part.removeprefix(' and ')}" for part in parts]
    return captions


def _relations(place: tuple[int, int], other: tuple[int, int]) -> list[str]:
    """All that is true of a cell in relation to another one."""
    (row, column), (other_row, other_column) = place, other
    true = [column < other_column, column > other_column, row < other_row, row > other_row]
    return list(compress(("left of", "right of", "above", "below"), true))


def digit_images(seed: int) -> dict[str, list[Tensor]]:
    """Return the images of the ten digits, [images, 64] each, of every split."""
    data = load_digits()
    pixels, labels = torch.from_numpy(data.data).float() / 16, data.target.tolist()
    random = Random(f"{seed} images").random
    splits: dict[str, list[Tensor]] = {split: [] for split in SPLITS}
    for digit in range(10):
        places = [place for place, label in enumerate(labels) if label == digit]
        order = draw(random, places, len(places))
        for split, (start, end) in _SHARES.items():
            splits[split].append(pixels[order[int(start * len(order)) : int(end * len(order))]])
    return splits


def _scenes(
    random: Callable[[], float],
    images: list[Tensor],
    size: int,
    most_digits: int,
    any_order: bool,
) -> RegionCaptions:
    rows, columns = GRID
    digits = torch.full((size, rows * columns), _EMPTY)
    pixels = torch.zeros(size, rows * columns, _SIZE**2)
    captions = []
    for scene in range(size):
        number = 1 + int(random() * most_digits)
        chosen = draw(random, range(10), number), draw(random, range(rows * columns), number)
        places = {}
        for digit, cell in zip(*chosen, strict=True):
            digits[scene, cell] = digit
            pixels[scene, cell] = images[digit][int(random() * len(images[digit]))]
            places[digit] = divmod(cell, columns)
        told = true_captions(dict(sorted(places.items(), reverse=True)), in_order=True)
        others = [caption for caption in true_captions(places) if caption not in told] if any_order else []
        captions.append(draw(random, told, len(told)) + draw(random, others, len(others)))
    regions = torch.cat([pixels, cell_positions(GRID).expand(size, -1, -1)], -1)
    return RegionCaptions(regions, captions, GRID, canvases(pixels), "digits", digits=digits)


def cell_positions(grid: tuple[int, int]) -> Tensor:
    """Return row and column of every cell of a grid, one-hot, ``[cells, rows + columns]``.

    Example:
        >>> cell_positions((1, 2)).tolist()
        [[1, 1, 0], [1, 0, 1]]
    """
    cells = torch.arange(grid[0] * grid[1])
    return torch.cat([one_hot(cells // grid[1], grid[0]), one_hot(cells % grid[1], grid[1])], 1)


def canvases(pixels: Tensor) -> Tensor:
    """Return scenes as pictures, [scenes, 24, 24], of the pixels of their cells, [scenes, 9, 64]."""
    rows, columns = GRID
    return pixels.view(-1, *GRID, _SIZE, _SIZE).transpose(2, 3).reshape(-1, rows * _SIZE, columns * _SIZE)


def draw(random: Callable[[], float], options: Sequence[Option], number: int) -> list[Option]:
    """Some of the options, in random order; `Random.random` is the same in every release of Python."""
    return sorted(options, key=lambda _: random())[:number]
