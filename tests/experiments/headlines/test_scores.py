"""ROUGE against worked examples, and the baseline of the first words."""

import pytest

from experiments.datasets.text.headlines import HeadlineText
from experiments.headlines.evaluation import lead_baseline, rouge

GUNMAN = "police killed the gunman"


@pytest.mark.parametrize(
    ("headline", "references", "expected"),
    [
        # Lin (2004), section 3.1: both share as many words with the reference, and a longer one in order
        ("police kill the gunman", [GUNMAN], (75.0, 100 / 3, 75.0)),
        ("the gunman kill police", [GUNMAN], (75.0, 100 / 3, 50.0)),
        (GUNMAN, [GUNMAN], (100.0, 100.0, 100.0)),
        # 2 of 3 words and 2 of 4: 2 P R / (P + R) = 4 / 7; no pair of words; in order only one after the other
        ("police , the end", [GUNMAN], (400 / 7, 0.0, 400 / 7)),
        # a word counts as often as the reference has it
        ("the the the the", [GUNMAN], (25.0, 0.0, 25.0)),
        ("Police KILLED the 'gunman' !", [GUNMAN], (100.0, 100.0, 100.0)),
        # the best of the references, for each score
        ("police kill the gunman", ["nothing", GUNMAN, "police"], (75.0, 100 / 3, 75.0)),
        ("", [GUNMAN], (0.0, 0.0, 0.0)),
        ("# .", [GUNMAN], (0.0, 0.0, 0.0)),
        (GUNMAN, ["#"], (0.0, 0.0, 0.0)),
    ],
)
def test_worked_examples(headline, references, expected):
    found = rouge([headline], [references])
    assert {name: values[0] for name, values in found.items()} == pytest.approx(
        dict(zip(("rouge_1", "rouge_2", "rouge_l"), expected, strict=True)), abs=1e-4
    )


def test_every_headline_by_itself():
    together = rouge([GUNMAN, "a"], [["police"], ["b"]])
    assert together["rouge_1"] == pytest.approx([40.0, 0.0])


@pytest.mark.parametrize(("headlines", "references"), [([], []), (["a"], [["a"], ["b"]])])
def test_headlines_and_references_go_together(headlines, references):
    with pytest.raises(ValueError, match=f"{len(headlines)} headlines and references of {len(references)} texts"):
        rouge(headlines, references)


@pytest.mark.parametrize(("words", "expected"), [(1, [100.0, 0.0]), (2, [200 / 3, 200 / 3])])
def test_the_baseline(words, expected):
    data = HeadlineText(["one two three", "four five six"], [("one",), ("five",)], "two texts")
    assert lead_baseline(data, words)["rouge_1"] == pytest.approx(expected, abs=1e-4)
