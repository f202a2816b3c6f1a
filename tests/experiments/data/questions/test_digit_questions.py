"""Questions about scenes of digits: every answer is true, relevant cells hold what is asked about, splits are apart."""

import pytest

from experiments.data.images.digit_scenes import DIGIT_NAMES
from experiments.data.questions.digit_questions import DIGIT_KINDS, digit_questions

ROWS, COLUMNS = ("top", "middle", "bottom"), ("left", "center", "right")
RELATIONS = {
    "left": lambda a, b: a % 3 < b % 3,
    "right": lambda a, b: a % 3 > b % 3,
    "above": lambda a, b: a // 3 < b // 3,
    "below": lambda a, b: a // 3 > b // 3,
}


@pytest.fixture(scope="module")
def data():
    return digit_questions(0, train=80, val=5, test=40)


def digits_of(regions):
    """The digit of every cell of every scene, found by its pixels among all images of scikit-learn's set."""
    from sklearn.datasets import load_digits

    known = load_digits()
    table = {
        tuple(pixels): label for pixels, label in zip((known.data / 16).tolist(), known.target.tolist(), strict=True)
    }
    cells = regions.features[..., :64].double()
    return [[table.get(tuple(cell.tolist())) for cell in scene] for scene in cells]


def related(scene, anchor, relation):
    return [cell for cell, digit in enumerate(scene) if digit is not None and RELATIONS[relation](cell, anchor)]


def answer(words, scene):
    """The answer by a reading of the words of its own, and the cells that were looked at."""
    place = {DIGIT_NAMES[digit]: cell for cell, digit in enumerate(scene) if digit is not None}
    if words[:2] == ["in", "which"]:
        cell = place[words[-1]]
        return (ROWS[cell // 3] if words[2] == "row" else COLUMNS[cell % 3]), {cell}
    if words[:2] == ["how", "many"]:
        return DIGIT_NAMES[len(place)], set(place.values())
    relations = [word for word in words if word in RELATIONS]
    anchor = place[words[-1]]
    if words[0] == "is":
        found, asked = related(scene, anchor, relations[0]), place.get(words[3])
        return ("yes" if asked in found else "no"), {anchor} | ({asked} if asked is not None else set())
    looked = [anchor]
    for relation in reversed(relations):
        (cell,) = related(scene, looked[-1], relation)
        looked.append(cell)
    return DIGIT_NAMES[scene[looked[-1]]], set(looked)


def test_every_answer_is_true_and_every_relevant_cell_is_looked_at(data):
    for split in ("train", "val", "test"):
        questions = data[split]
        scenes = digits_of(questions.regions)
        for place, words in enumerate(questions.questions):
            expected, cells = answer(words, scenes[questions.photographs[place]])
            assert questions.answers[place] == expected, " ".join(words)
            assert set(questions.relevant[place].nonzero().flatten().tolist()) == cells


@pytest.mark.parametrize("views", [1, 3])
def test_regions_are_the_digits_that_are_seen_and_one_empty_cell(views):
    regions = digit_questions(0, train=60, val=1, test=1, views=views)["train"].regions
    seen, mask = (found.view(60, views, 9) for found in (regions.features[..., :64].any(-1), regions.mask))
    assert (mask | ~seen).all()
    background = mask & ~seen
    in_any_view = seen.any(1, keepdim=True)
    assert ((background & ~in_any_view).sum(-1) == 1).all()
    assert (mask.sum(-1) == seen.sum(-1) + 1).all()
    assert (background == background[:, :1]).all()
    assert background[:, 0].any(0).all()


def test_all_kinds_are_asked_and_half_of_what_exists_is_true(data):
    assert set(data["train"].kinds) == set(DIGIT_KINDS)
    yes = data["train"].of_kinds(["exists"]).answers.count("yes")
    assert 0.3 < yes / 80 < 0.7


def test_absent_questions_ask_for_what_is_not_there(data):
    absent = data["absent"]
    scenes = digits_of(absent.regions)
    assert len(absent) == 40
    for place, words in enumerate(absent.questions):
        assert DIGIT_NAMES.index(words[-1]) not in scenes[absent.photographs[place]]
        assert not absent.relevant[place].any()


def test_of_two_sizes_the_smaller_is_the_beginning(data):
    smaller = digit_questions(0, train=10, val=1, test=1)["train"]
    assert smaller.questions == data["train"].questions[: len(smaller)]
    assert smaller.regions.features.equal(data["train"].regions.features[:10])


def test_views_miss_digits_but_never_all_of_them():
    one, three = (digit_questions(0, train=60, val=1, test=1, views=views)["train"] for views in (1, 3))
    pixels = three.regions.features[..., :64]
    assert three.regions.features.shape == (60, 3, 9, 70)
    assert three.regions.mask.shape == (60, 3, 9)
    seen = pixels.any(-1)
    assert not seen.all(1).equal(seen.any(1))
    canvases = pixels.amax(1).view(60, 3, 3, 8, 8).transpose(2, 3).reshape(60, 24, 24)
    assert canvases.equal(three.regions.pictures)
    assert one.regions.features.shape == (60, 9, 70)
