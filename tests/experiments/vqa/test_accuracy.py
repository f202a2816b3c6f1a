"""The official accuracy of visual question answering, on worked examples."""

import pytest

from experiments.vqa.accuracy import consensus, normalize_answer, soft_scores, vqa_accuracy


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("Yes", "yes"),
        ("a dog", "dog"),
        ("the  dog ", "dog"),
        ("Two", "2"),
        ("none", "0"),
        ("ten", "10"),
        ("1,000", "1000"),
        ("black/white", "black white"),
        ("black / white", "black white"),
        ("red, white", "red white"),
        ("3.5", "3.5"),
        ("st. mary", "st mary"),
        ("dont know", "don't know"),
        ("dont.", "don't"),
        ("it's", "it's"),
        ("t-shirt", "t shirt"),
        ("well", "well"),
        ("line\nbreak\tand tab", "line break and tab"),
        ("", ""),
    ],
)
def test_normalised_answers(answer, expected):
    assert normalize_answer(answer) == expected


@pytest.mark.parametrize(
    ("votes", "answer", "expected"),
    [
        ({"cat": 10}, "cat", 1.0),
        ({"cat": 10}, "Cat", 0.0),  # all people agree: compared as it stands
        ({"cat": 1, "dog": 9}, "cat", 0.3),
        ({"cat": 2, "dog": 8}, "cat", 0.6),
        ({"cat": 3, "dog": 7}, "cat", 0.9),
        ({"cat": 4, "dog": 6}, "cat", 1.0),
        ({"cat": 4, "dog": 6}, "bird", 0.0),
        ({"two": 2, "2": 2, "3": 6}, "2", 1.0),
        ({"a cat": 5, "dog": 5}, "The cat.", 1.0),
        ({"red": 1}, "red", 1.0),  # one annotator, as in DAQUAR
        ({"red": 1}, "blue", 0.0),
    ],
)
def test_leave_one_out_over_the_people(votes, answer, expected):
    assert vqa_accuracy(answer, votes) == pytest.approx(expected)


@pytest.mark.parametrize("agreeing", range(1, 10))
def test_the_accuracy_is_the_mean_over_subsets_of_nine(agreeing):
    people = ["cat"] * agreeing + ["dog"] * (10 - agreeing)
    subsets = [people[:left] + people[left + 1 :] for left in range(10)]
    expected = sum(min(subset.count("cat") / 3, 1) for subset in subsets) / 10
    assert vqa_accuracy("cat", {"cat": agreeing, "dog": 10 - agreeing}) == pytest.approx(expected)


def test_alike_answers_are_taken_together():
    assert consensus({"two": 3, "2": 4, "Two!": 3}) == {"2": 10}
    assert consensus({"Two": 10}) == {"Two": 10}


@pytest.mark.parametrize(
    ("votes", "expected"),
    [
        ({"cat": 1, "dog": 9}, {"cat": 1 / 3, "dog": 1.0}),
        ({"red": 1}, {"red": 1.0}),
        ({"a": 2, "b": 8}, {"": 2 / 3, "b": 1.0}),
    ],
)
def test_soft_scores(votes, expected):
    assert soft_scores(votes) == pytest.approx(expected)


def test_votes_of_nobody():
    with pytest.raises(ValueError, match="votes are empty"):
        vqa_accuracy("cat", {})
