"""Scenes of digits: the same everywhere, described by what is true of them, in splits that share no handwriting."""

from hashlib import sha256
from itertools import permutations, product

import pytest
import torch

from experiments.datasets.images.digit_scenes import DIGIT_NAMES, NO_CELL, digit_scenes

SPLITS = digit_scenes(0, train=300, val=60, test=60)
RELATIONS = {
    "left of": lambda place, other: place[1] < other[1],
    "right of": lambda place, other: place[1] > other[1],
    "above": lambda place, other: place[0] < other[0],
    "below": lambda place, other: place[0] > other[0],
}


def with_article(digit):
    return ("an " if digit == 8 else "a ") + DIGIT_NAMES[digit]


def sayable_and_true(places):
    """Every caption the grammar has of these digits, kept when it is true."""
    if len(places) == 1:
        (name,) = map(with_article, places)
        return {f"nothing but {name}", f"{name} and nothing else"}
    captions = set()
    for first, *others in permutations(places):
        for relations in product(RELATIONS, repeat=len(others)):
            pairs = list(zip(relations, others, strict=True))
            if all(RELATIONS[relation](places[first], places[other]) for relation, other in pairs):
                rest = " and ".join(f"{relation} {with_article(other)}" for relation, other in pairs)
                captions.add(f"{with_article(first)} {rest}")
    return captions


def test_same_everywhere():
    """Results of different machines and releases of Python are about the same scenes."""
    content = "".join(f"{scenes.captions} {scenes.digits.tolist()}" for scenes in SPLITS.values())
    pixels = (SPLITS["train"].regions * 16).round().to(torch.uint8).numpy().tobytes()
    assert sha256(content.encode() + pixels).hexdigest()[:16] == "5285825fb5a7c200"


def test_seed_and_size():
    small, other = digit_scenes(0, train=5, val=60, test=9), digit_scenes(1, train=5, val=1, test=1)
    assert small["train"].captions == SPLITS["train"].captions[:5]
    assert torch.equal(small["test"].regions, SPLITS["test"].regions[:9])
    assert torch.equal(small["val"].regions, SPLITS["val"].regions)
    assert other["train"].captions != small["train"].captions


@pytest.mark.parametrize("split", SPLITS)
def test_references_are_the_true_captions_and_words_have_cells(split):
    """All of them, in training those that name digits in falling order."""
    scenes = SPLITS[split]
    for scene, captions in enumerate(scenes.captions):
        digits = scenes.digits[scene].tolist()
        sayable = sayable_and_true({digit: divmod(cell, 3) for cell, digit in enumerate(digits) if digit != NO_CELL})
        if split == "train":
            named = {
                text: [DIGIT_NAMES.index(word) for word in text.split() if word in DIGIT_NAMES] for text in sayable
            }
            sayable = {text for text in sayable if named[text] == sorted(named[text], reverse=True)}
        assert sorted(captions) == sorted(sayable)
        words, cells = captions[0].split(), scenes.word_cells(scene, captions[0])
        for word, cell in zip(words, cells, strict=True):
            assert cell == NO_CELL if word not in DIGIT_NAMES else DIGIT_NAMES[digits[cell]] == word
    absent = next(name for digit, name in enumerate(DIGIT_NAMES) if digit not in scenes.digits[0])
    assert scenes.word_cells(0, f"a {absent} and banana") == [NO_CELL] * 4


def test_regions_are_pixels_and_position():
    scenes = SPLITS["train"]
    pixels, rows, columns = scenes.regions.split([64, 3, 3], -1)
    assert torch.equal((pixels > 0).any(-1), scenes.digits != NO_CELL)
    assert (pixels.min(), pixels.max()) == (0, 1)
    assert rows.argmax(-1)[0].tolist() == [0] * 3 + [1] * 3 + [2] * 3
    assert columns.argmax(-1)[0].tolist() == [0, 1, 2] * 3
    for cell in range(9):
        row, column = divmod(cell, 3)
        part = scenes.canvases[:, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8]
        assert torch.equal(part.flatten(1), scenes.regions[:, cell, :64])


def test_splits_share_no_handwriting():
    images = [set(map(tuple, scenes.regions[scenes.digits >= 0][:, :64].tolist())) for scenes in SPLITS.values()]
    assert len(set.union(*images)) == sum(map(len, images))
    assert len(images[0]) > 300
