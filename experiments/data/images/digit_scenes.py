"""Scenes of real handwritten digits with captions from a small grammar; no file is needed.

A scene is a grid of 3 x 3 cells. One to three of them hold a digit of scikit-learn's set (8 x 8 pixels). All digits of
a scene have different values, so that the name of a digit identifies its cell. A caption names every digit of its
scene: "nothing but a seven", "a seven left of a two", "a seven left of a two and above an eight". Relations compare
columns or rows of cells. The references of a scene are all captions that are true of it.

Captions of training scenes name the digits in falling order. In a random order, an attention that has not seen the word
could not point at its digit.
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
from experiments.data.storage import SPLITS

Option = TypeVar("Option")
DIGIT_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
GRID = (3, 3)  # rows and columns of a scene
NO_CELL = -1  # cell of a word that names no digit of the scene
_EMPTY = -1  # digit of an empty cell
_SIZE = 8  # side of a digit in pixels
_SHARES = {"train": (0.0, 0.6), "val": (0.6, 0.8), "test": (0.8, 1.0)}  # range of the images of every digit


def word_cells(digits: Tensor, caption: str) -> list[int]:
    """Return the cell of every word of a caption, -1 for words that name no digit of the scene."""
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
    """Draw the scenes of all splits.

    The features of a region are the 64 pixels of a cell, between 0 and 1, and then its row and its column, each
    one-hot. The captions that name the digits in falling order come first, in random order. Training scenes have only
    these; other scenes also have all other true captions, in random order. In the pictures 0 is paper and 1 is ink.

    The splits share no image of a digit: 60 % of the 1797 images are for training, 20 % for validation and 20 % for the
    test. The writers are unknown, so a writer may be in several splits. A split depends only on the seed and its size,
    and a smaller split is the beginning of a larger one.

    Args:
        seed: Seed of the images of each split and of the scenes.
        train: Number of training scenes.
        val: Number of validation scenes.
        test: Number of test scenes.
        most_digits: Largest number of digits of a scene, at most 3; all numbers from 1 are equally probable.
    """
    images = digit_images(seed)
    return {
        split: _scenes(Random(f"{seed} {split}").random, images[split], size, most_digits, split != "train")
        for split, size in {"train": train, "val": val, "test": test}.items()
    }


def true_captions(positions: dict[int, tuple[int, int]], *, in_order: bool = False) -> list[str]:
    """Return all true captions of a scene.

    Args:
        positions: Row and column of every digit.
        in_order: Return only the captions that name the digits in the order of `positions`.
    """
    name = {digit: f"{'an' if digit == 8 else 'a'} {DIGIT_NAMES[digit]}" for digit in positions}
    if len(positions) == 1:
        (digit,) = positions
        return [f"nothing but {name[digit]}", f"{name[digit]} and nothing else"]
    captions = []
    for first, *rest in [tuple(positions)] if in_order else permutations(positions):
        parts = [""]
        for digit in rest:
            relations = _relations(positions[first], positions[digit])
            parts = [f"{part} and {relation} {name[digit]}" for part in parts for relation in relations]
        captions += [f"{name[first]} {part.removeprefix(' and ')}" for part in parts]
    return captions


def _relations(cell: tuple[int, int], other: tuple[int, int]) -> list[str]:
    """Return all relations that are true of a cell and another cell."""
    (row, column), (other_row, other_column) = cell, other
    true = [column < other_column, column > other_column, row < other_row, row > other_row]
    return list(compress(("left of", "right of", "above", "below"), true))


def digit_images(seed: int) -> dict[str, list[Tensor]]:
    """Return the images of every split, a tensor [images, 64] for each of the ten digits."""
    data = load_digits()
    pixels, labels = torch.from_numpy(data.data).float() / 16, data.target.tolist()
    random = Random(f"{seed} images").random
    splits: dict[str, list[Tensor]] = {split: [] for split in SPLITS}
    for digit in range(10):
        indices = [index for index, label in enumerate(labels) if label == digit]
        order = draw(random, indices, len(indices))
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
        positions = {}
        for digit, cell in zip(*chosen, strict=True):
            digits[scene, cell] = digit
            pixels[scene, cell] = images[digit][int(random() * len(images[digit]))]
            positions[digit] = divmod(cell, columns)
        falling = true_captions(dict(sorted(positions.items(), reverse=True)), in_order=True)
        further = [caption for caption in true_captions(positions) if caption not in falling] if any_order else []
        captions.append(draw(random, falling, len(falling)) + draw(random, further, len(further)))
    regions = torch.cat([pixels, cell_positions(GRID).expand(size, -1, -1)], -1)
    return RegionCaptions(regions, captions, GRID, canvases(pixels), "digits", digits=digits)


def cell_positions(grid: tuple[int, int]) -> Tensor:
    """Return the one-hot row and column of every cell of a grid, ``[cells, rows + columns]``.

    Example:
        >>> cell_positions((1, 2)).tolist()
        [[1, 1, 0], [1, 0, 1]]
    """
    cells = torch.arange(grid[0] * grid[1])
    return torch.cat([one_hot(cells // grid[1], grid[0]), one_hot(cells % grid[1], grid[1])], 1)


def canvases(pixels: Tensor) -> Tensor:
    """Return the pictures [scenes, 24, 24] of scenes from the pixels of their cells [scenes, 9, 64]."""
    rows, columns = GRID
    return pixels.view(-1, *GRID, _SIZE, _SIZE).transpose(2, 3).reshape(-1, rows * _SIZE, columns * _SIZE)


def draw(random: Callable[[], float], options: Sequence[Option], number: int) -> list[Option]:
    """Draw a number of the options without replacement, with a result that is the same in every release of Python."""
    return sorted(options, key=lambda _: random())[:number]
