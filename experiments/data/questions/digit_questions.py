"""Questions about scenes of real handwritten digits, whose answers and relevant cells are known; needs no file.

A scene is a grid of 3 x 3 cells; two to five of them hold a digit of scikit-learn's set (8 x 8 pixels), all of
different values. Regions are what a detector would find: the cells with a digit, and one of the empty ones, at random:
were all empty cells regions, a network would gather there what it read elsewhere. The kinds of questions, each asked
where it has one answer, and the cells that one has to look at:

    where     in which row is the seven             top, middle, bottom       the seven
              in which column is the seven          left, center, right       the seven
    count     how many digits are there             two ... five              all digits
    which     what digit is left of the seven       zero ... nine             the seven and the answer
    exists    is there a three above the five       yes, no                   the five, and the three if it is there
    chain     what digit is left of the digit       zero ... nine             all three
              above the five
    absent    what digit is left of the seven       (none)                    none: the scene has no seven

"Absent" questions are never trained on: a model that knows what it does not know is unsure of them. Scenes with three
views stand for three detectors: each misses every digit with probability 0.3, but a digit is missed by two at most.
"""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import TypeVar

import torch
from torch import Tensor

from experiments.data.images.digit_scenes import DIGIT_NAMES, GRID, canvases, cell_positions, digit_images, draw
from experiments.data.places import SPLITS
from experiments.data.questions.load import Questions, Regions

Option = TypeVar("Option")
ONE_STEP = ("where", "count", "which", "exists")
DIGIT_KINDS = (*ONE_STEP, "chain")
UNANSWERABLE = ""  # the answer to a question about what is not in the scene
_ROWS, _COLUMNS = ("top", "middle", "bottom"), ("left", "center", "right")
_SIDE, _PIXELS, _MISSED = 3, 64, 0.3
_FEWEST, _MOST = 2, 5
_RELATIONS = ("left of", "right of", "above", "below")

_Places = dict[int, tuple[int, int]]  # row and column of every digit of a scene
_Asked = tuple[str, str, list[int]]  # question, answer, and the digits that one has to look at


def digit_questions(
    seed: int = 0, *, train: int = 6000, val: int = 300, test: int = 300, views: int = 1
) -> dict[str, Questions]:
    """Draw scenes and questions.

    The splits share no image of a digit. A split depends on the seed and its own size only; of two sizes the smaller is
    the beginning of the larger.
    Sizes are numbers of scenes; with one view of them, all digits are seen. Returned are the splits by name, and
    "absent": questions about the scenes of the test that have no answer.

    Example:
        >>> data = digit_questions(0, train=3, val=1, test=1)["train"]
        >>> " ".join(data.questions[3]), data.answers[3]
        ('what digit is above the zero', 'one')
    """
    sizes = {"train": train, "val": val, "test": test}
    images = digit_images(seed)
    found = {
        split: _split(split, Random(f"{seed} {split} questions"), images[split], sizes[split], views)
        for split in SPLITS
    }
    answerable = {split: questions.of_kinds(DIGIT_KINDS) for split, questions in found.items()}
    return answerable | {"absent": replace(found["test"].of_kinds(["absent"]), name="absent")}


def _split(name: str, random: Random, images: Sequence[Tensor], size: int, views: int) -> Questions:
    pixels = torch.zeros(size, views, _SIDE**2, _PIXELS)
    mask = torch.zeros(size, views, _SIDE**2, dtype=torch.bool)
    questions, answers, photographs, kinds, relevant = [], [], [], [], []
    for scene in range(size):
        places = _scene(random)
        for digit, (row, column) in places.items():
            image = images[digit][int(random.random() * len(images[digit]))]
            for view in _seen(random, views):
                pixels[scene, view, row * _SIDE + column] = image
                mask[scene, view, row * _SIDE + column] = True
        for kind, (question, answer, digits) in _asked(random, places).items():
            questions.append(question.split())
            answers.append(answer)
            photographs.append(scene)
            kinds.append(kind)
            cells = torch.zeros(_SIDE**2, dtype=torch.bool)
            cells[[places[digit][0] * _SIDE + places[digit][1] for digit in digits]] = True
            relevant.append(cells)
        empty = [cell for cell in range(_SIDE**2) if divmod(cell, _SIDE) not in places.values()]
        mask[scene, :, _one(random, empty)] = True
    features = torch.cat([pixels, cell_positions(GRID).expand(size, views, -1, -1)], -1)
    if views == 1:
        features, mask = features[:, 0], mask[:, 0]
    regions = Regions(features, mask, GRID, canvases(pixels.amax(1)))
    return Questions(name, questions, answers, torch.tensor(photographs), regions, kinds, torch.stack(relevant))


def _scene(random: Random) -> _Places:
    number = _FEWEST + int(random.random() * (_MOST - _FEWEST + 1))
    digits, cells = draw(random.random, range(10), number), draw(random.random, range(_SIDE**2), number)
    return {digit: divmod(cell, _SIDE) for digit, cell in zip(digits, cells, strict=True)}


def _seen(random: Random, views: int) -> list[int]:
    """The views that do not miss a digit; one at least."""
    if views == 1:
        return [0]
    seen = [view for view in range(views) if random.random() >= _MISSED]
    return seen or [int(random.random() * views)]


def _asked(random: Random, places: _Places) -> dict[str, _Asked]:
    """One question of every kind that can be asked of a scene."""
    others = [digit for digit in range(10) if digit not in places]
    which, chain = _which(places), _chain(places)
    made = {
        "where": _where(random, places),
        "count": ("how many digits are there", DIGIT_NAMES[len(places)], list(places)),
        "exists": _exists(random, places, others),
    }
    if which:
        made["which"] = _one(random, which)
    if chain:
        made["chain"] = _one(random, chain)
    made["absent"] = (
        f"what digit is {_one(random, _RELATIONS)} the {DIGIT_NAMES[_one(random, others)]}",
        UNANSWERABLE,
        [],
    )
    return made


def _where(random: Random, places: _Places) -> _Asked:
    digit = _one(random, list(places))
    (row, column), by_row = places[digit], random.random() < 0.5
    axis, answer = ("row", _ROWS[row]) if by_row else ("column", _COLUMNS[column])
    return f"in which {axis} is the {DIGIT_NAMES[digit]}", answer, [digit]


def _which(places: _Places) -> list[_Asked]:
    """All questions of a relation that one digit alone has."""
    return [
        (f"what digit is {relation} the {DIGIT_NAMES[anchor]}", DIGIT_NAMES[found[0]], [anchor, *found])
        for anchor in places
        for relation in _RELATIONS
        if len(found := _related(places, relation, anchor)) == 1
    ]


def _chain(places: _Places) -> list[_Asked]:
    """All questions of two relations, each of which one digit alone has."""
    return [
        (
            f"what digit is {second} the digit {first} the {DIGIT_NAMES[anchor]}",
            DIGIT_NAMES[found[0]],
            [anchor, *middle, *found],
        )
        for anchor in places
        for first in _RELATIONS
        for second in _RELATIONS
        if len(middle := _related(places, first, anchor)) == 1
        and len(found := _related(places, second, middle[0])) == 1
        and found[0] != anchor
    ]


def _exists(random: Random, places: _Places, others: Sequence[int]) -> _Asked:
    anchor, true = _one(random, list(places)), random.random() < 0.5
    options = [(relation, digit) for relation in _RELATIONS for digit in _related(places, relation, anchor)]
    if true:
        relation, digit = _one(random, options)
    else:  # half of the time a digit that is elsewhere
        relation = _one(random, _RELATIONS)
        elsewhere = [d for d in places if d != anchor and (relation, d) not in options]
        digit = _one(random, elsewhere if elsewhere and random.random() < 0.5 else others)
    look = [anchor, digit] if digit in places else [anchor]
    return f"is there a {DIGIT_NAMES[digit]} {relation} the {DIGIT_NAMES[anchor]}", "yes" if true else "no", look


def _related(places: _Places, relation: str, anchor: int) -> list[int]:
    """The other digits that are so related to a digit."""
    axis, sign = {"left of": (1, -1), "right of": (1, 1), "above": (0, -1), "below": (0, 1)}[relation]
    start = places[anchor][axis]
    return [digit for digit, place in places.items() if sign * (place[axis] - start) > 0]


def _one(random: Random, options: Sequence[Option]) -> Option:
    """One of the options; `Random.random` is the same in every release of Python."""
    return options[int(random.random() * len(options))]
