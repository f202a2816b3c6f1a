"""The official accuracy of visual question answering, on worked examples."""

import pytest
import torch

from experiments.datasets.questions.data import Questions, Regions
from experiments.vqa.accuracy import consensus, guesses, normalize_answer, soft_scores, vqa_accuracy


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("Yes", "yes"), ("a dog", "dog"), ("the  dog ", "dog"), ("Two", "2"), ("none", "0"), ("ten", "10"),
        ("1,000", "1000"), ("black/white", "black white"), ("black / white", "black white"),
        ("red, white", "red white"), ("3.5", "3.5"), ("st. mary", "st mary"), ("dont know", "don't know"),
        ("dont.", "don't"), ("it's", "it's"), ("t-shirt", "t shirt"), ("well", "well"),
        ("line\nbreak\tand tab", "line break and tab"), ("", ""),
    ],
)  # fmt: skip
def test_normalised_answers(answer, expected):
    assert normalize_answer(answer) == expected


@pytest.mark.parametrize(
    ("votes", "answer", "expected"),
    [
        ({"cat": 10}, "cat", 1.0),
        ({"cat": 10}, "Cat", 0.0),  # all people agree: compared as it stands
        ({"two": 2, "2": 2, "3": 6}, "2", 1.0),
        ({"a cat": 5, "dog": 5}, "The cat.", 1.0),
        ({"red": 1}, "red", 1.0),  # one annotator, as in DAQUAR
        ({"red": 1}, "blue", 0.0),
    ],
)
def test_alike_answers_agree(votes, answer, expected):
    assert vqa_accuracy(answer, votes) == pytest.approx(expected)


@pytest.mark.parametrize("agreeing", range(10))
def test_the_accuracy_is_the_mean_over_subsets_of_nine(agreeing):
    people = ["cat"] * agreeing + ["dog"] * (10 - agreeing)
    subsets = [people[:left] + people[left + 1 :] for left in range(10)]
    expected = sum(min(subset.count("cat") / 3, 1) for subset in subsets) / 10
    votes = {name: people.count(name) for name in people}
    assert vqa_accuracy("cat", votes) == pytest.approx(expected)


def test_votes_and_targets():
    assert consensus({"two": 3, "2": 4, "Two!": 3}) == {"2": 10}
    assert consensus({"Two": 10}) == {"Two": 10}
    assert soft_scores({"cat": 1, "dog": 9}) == pytest.approx({"cat": 1 / 3, "dog": 1.0})
    assert soft_scores({"red": 1}) == {"red": 1.0}
    with pytest.raises(ValueError, match="votes are empty"):
        vqa_accuracy("cat", {})


def asked(*rows):
    regions = Regions(torch.zeros(1, 1, 1), torch.ones(1, 1, dtype=torch.bool))
    questions, answers = zip(*[(text.split(), votes) for text, votes in rows], strict=True)
    return Questions("x", questions, answers, torch.zeros(len(rows), dtype=torch.long), regions, ["k"] * len(rows))


def test_guesses():
    train = asked(
        ("is there a cat", {"yes": 10}), ("is there a dog", {"yes": 6, "no": 4}), ("is there food", {"no": 10}),
        ("how many cats", {"2": 10}), ("how many dogs", {"two": 7, "3": 3}),
    )  # fmt: skip
    test = asked(
        ("is there a bird", {"yes": 10}), ("how many birds", {"2": 10}), ("how many rooms", {"2": 2, "3": 8}),
        ("what color is it", {"2": 10}),
    )  # fmt: skip
    found = guesses(train, test)
    assert found == pytest.approx({"majority_accuracy": 2.6 / 4, "form_accuracy": 3.6 / 4})
