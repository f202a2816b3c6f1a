"""Questions about scenes of real handwritten digits, with known answers and relevant cells; this needs no file.

A scene is a grid of 3 x 3 cells; two to five of them hold a digit of scikit-learn's set (8 x 8 pixels), and no two
digits are equal. Regions are the cells that a detector would find: the cells with a digit, and one random empty cell.
Were all empty cells regions, a network would gather there what it read elsewhere. A question is asked where it has
exactly one answer. The kinds of questions, their answers and the relevant cells:

    where     in which row is the seven             top, middle, bottom       the seven
              in which column is the seven          left, center, right       the seven
    count     how many digits are there             two ... five              all digits
    which     what digit is left of the seven       zero ... nine             the seven and the answer
    exists    is there a three above the five       yes, no                   the five, and the three if it is there
    chain     what digit is left of the digit       zero ... nine             all three
              above the five
    absent    what digit is left of the seven       (none)                    none: the scene has no seven

"Absent" questions are never trained on: a model that knows what it does not know is unsure of them. Scenes with three
views stand for three detectors: a detector misses a digit with probability 0.3, and two at most miss the same digit.
"""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import TypeVar

import torch
from torch import Tensor

from experiments.data.images.digit_scenes import DIGIT_NAMES, GRID, canvases, cell_positions, digit_images, draw
from experiments.data.images.regions import Regions
from experiments.data.questions.load import Questions
from experiments.data.storage import SPLITS

Option = TypeVar("Option")
ONE_STEP = ("where", "count", "which", "exists")
DIGIT_KINDS = (*ONE_STEP, "chain")
UNANSWERABLE = ""  # the answer to a question about a digit that is not in the scene
_ROWS, _COLUMNS = ("top", "middle", "bottom"), ("left", "center", "right")
_SIDE, _PIXELS, _MISSED = 3, 64, 0.3
_FEWEST, _MOST = 2, 5
_RELATIONS = ("left of", "right of", "above", "below")

_Positions = dict[int, tuple[int, int]]  # row and column of every digit of a scene
_DigitQuestion = tuple[str, str, list[int]]  # question, answer, and the relevant digits


def digit_questions(
    seed: int = 0, *, train: int = 6000, val: int = 300, test: int = 300, views: int = 1
) -> dict[str, Questions]:
    """Draw scenes and questions.

    The splits share no image of a digit. A split depends on the seed and on its own size alone; a smaller split is the
    beginning of a larger one.

    Args:
        seed: Seed of the scenes and questions.
        train: Number of training scenes.
        val: Number of validation scenes.
        test: Number of test scenes.
        views: Number of views of a scene; a single view shows all digits.

    Returns:
        The splits by name, and "absent": questions about the test scenes that have no answer.

    Example:
        >>> data = digit_questions(0, train=3, val=1, test=1)["train"]
        >>> " ".join(data.questions[3]), data.answers[3]
        ('what digit is above the zero', 'one')
    """
    sizes = {"train": train, "val": val, "test": test}
    images = digit_images(seed)
    questions = {
        split: _split(split, Random(f"{seed} {split} questions"), images[split], sizes[split], views)
        for split in SPLITS
    }
    answerable = {split: data.of_kinds(DIGIT_KINDS) for split, data in questions.items()}
    return answerable | {"absent": replace(questions["test"].of_kinds(["absent"]), name="absent")}


def _split(name: str, random: Random, images: Sequence[Tensor], size: int, views: int) -> Questions:
    pixels = torch.zeros(size, views, _SIDE**2, _PIXELS)
    mask = torch.zeros(size, views, _SIDE**2, dtype=torch.bool)
    questions, answers, photographs, kinds, relevant = [], [], [], [], []
    for scene in range(size):
        positions = _draw_scene(random)
        for digit, (row, column) in positions.items():
            image = images[digit][int(random.random() * len(images[digit]))]
            for view in _detecting_views(random, views):
                pixels[scene, view, row * _SIDE + column] = image
                mask[scene, view, row * _SIDE + column] = True
        for kind, (question, answer, digits) in _ask(random, positions).items():
            questions.append(question.split())
            answers.append(answer)
            photographs.append(scene)
            kinds.append(kind)
            cells = torch.zeros(_SIDE**2, dtype=torch.bool)
            cells[[positions[digit][0] * _SIDE + positions[digit][1] for digit in digits]] = True
            relevant.append(cells)
        empty = [cell for cell in range(_SIDE**2) if divmod(cell, _SIDE) not in positions.values()]
        mask[scene, :, _choose(random, empty)] = True
    features = torch.cat([pixels, cell_positions(GRID).expand(size, views, -1, -1)], -1)
    if views == 1:
        features, mask = features[:, 0], mask[:, 0]
    regions = Regions(features, mask, GRID, canvases(pixels.amax(1)))
    return Questions(name, questions, answers, torch.tensor(photographs), regions, kinds, torch.stack(relevant))


def _draw_scene(random: Random) -> _Positions:
    number = _FEWEST + int(random.random() * (_MOST - _FEWEST + 1))
    digits, cells = draw(random.random, range(10), number), draw(random.random, range(_SIDE**2), number)
    return {digit: divmod(cell, _SIDE) for digit, cell in zip(digits, cells, strict=True)}


def _detecting_views(random: Random, views: int) -> list[int]:
    """Return the views that show a digit, at least one."""
    if views == 1:
        return [0]
    detecting = [view for view in range(views) if random.random() >= _MISSED]
    return detecting or [int(random.random() * views)]


def _ask(random: Random, positions: _Positions) -> dict[str, _DigitQuestion]:
    """Return a question of every kind that can be asked of a scene, by kind."""
    absent = [digit for digit in range(10) if digit not in positions]
    which, chain = _which(positions), _chain(positions)
    made = {
        "where": _where(random, positions),
        "count": ("how many digits are there", DIGIT_NAMES[len(positions)], list(positions)),
        "exists": _exists(random, positions, absent),
    }
    if which:
        made["which"] = _choose(random, which)
    if chain:
        made["chain"] = _choose(random, chain)
    made["absent"] = (
        f"what digit is {_choose(random, _RELATIONS)} the {DIGIT_NAMES[_choose(random, absent)]}",
        UNANSWERABLE,
        [],
    )
    return made


def _where(random: Random, positions: _Positions) -> _DigitQuestion:
    digit = _choose(random, list(positions))
    (row, column), by_row = positions[digit], random.random() < 0.5
    axis, answer = ("row", _ROWS[row]) if by_row else ("column", _COLUMNS[column])
    return f"in which {axis} is the {DIGIT_NAMES[digit]}", answer, [digit]


def _which(positions: _Positions) -> list[_DigitQuestion]:
    """Return all questions about a relation that a single digit has to another one."""
    return [
        (f"what digit is {relation} the {DIGIT_NAMES[anchor]}", DIGIT_NAMES[related[0]], [anchor, *related])
        for anchor in positions
        for relation in _RELATIONS
        if len(related := _related(positions, relation, anchor)) == 1
    ]


def _chain(positions: _Positions) -> list[_DigitQuestion]:
    """Return all questions about two relations in a row, both of which lead to a single digit."""
    return [
        (
            f"what digit is {second} the digit {first} the {DIGIT_NAMES[anchor]}",
            DIGIT_NAMES[related[0]],
            [anchor, *middle, *related],
        )
        for anchor in positions
        for first in _RELATIONS
        for second in _RELATIONS
        if len(middle := _related(positions, first, anchor)) == 1
        and len(related := _related(positions, second, middle[0])) == 1
        and related[0] != anchor
    ]


def _exists(random: Random, positions: _Positions, absent: Sequence[int]) -> _DigitQuestion:
    anchor, true = _choose(random, list(positions)), random.random() < 0.5
    options = [(relation, digit) for relation in _RELATIONS for digit in _related(positions, relation, anchor)]
    if true:
        relation, digit = _choose(random, options)
    else:  # half of the time a digit that is elsewhere
        relation = _choose(random, _RELATIONS)
        elsewhere = [d for d in positions if d != anchor and (relation, d) not in options]
        digit = _choose(random, elsewhere if elsewhere and random.random() < 0.5 else absent)
    relevant = [anchor, digit] if digit in positions else [anchor]
    return f"is there a {DIGIT_NAMES[digit]} {relation} the {DIGIT_NAMES[anchor]}", "yes" if true else "no", relevant


def _related(positions: _Positions, relation: str, anchor: int) -> list[int]:
    """Return the digits that are on this side of a digit."""
    axis, sign = {"left of": (1, -1), "right of": (1, 1), "above": (0, -1), "below": (0, 1)}[relation]
    start = positions[anchor][axis]
    return [digit for digit, position in positions.items() if sign * (position[axis] - start) > 0]


def _choose(random: Random, options: Sequence[Option]) -> Option:
    """Draw one of the options by `Random.random`, which is the same in every release of Python."""
    return options[int(random.random() * len(options))]
