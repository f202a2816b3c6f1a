"""VQA v2: its files, the official accuracy, soft scores, and answers drawn by votes."""

import json
import random

import numpy as np
import pytest
import torch

from experiments.data.questions.votes import normalize_answer, soft_scores, vqa_accuracy
from experiments.data.questions.vqa_v2 import read_pairs, read_vqa_v2
from experiments.vqa.model import Answered, Words
from tests.experiments.data.questions.tiny_questions import VQA, vqa_rows, write_features, write_vqa_v2

# the metric


@pytest.mark.parametrize(
    ("answer", "normal"),
    [
        ("The Dog", "dog"), ("two  cats", "2 cats"), ("none", "0"), ("a.m.", "am"), ("2.5", "2.5"), ("1,000", "1000"),
        ("black/white", "black white"), ("black / white", "black white"), ("yes!", "yes"), ("dont know", "don't know"),
        ("wouldnt've", "wouldn't've"), ("wouldn'tve", "wouldn't've"), ("somebody'd", "somebodyd"),
        ("t-shirt", "t shirt"), ("an\napple", "apple"), ("yall'll", "y'all'll"), ("hes", "he's"), ("shes", "shes"),
    ],
)  # fmt: skip
def test_answers_are_written_alike(answer, normal):
    assert normalize_answer(answer) == normal


def test_the_official_accuracy_is_the_mean_over_the_ten_sets_that_leave_one_person_out():
    """By brute force: every person left out in turn, the others counted one by one."""
    chance, texts = random.Random(0), ["red", "the red", "dark red", "Dark, red", "two", "2", "blue"]
    for _ in range(300):
        answers = chance.choices(texts, weights=[chance.random() ** 4 for _ in texts], k=10)
        answer = chance.choice(texts)
        alike = len(set(answers)) == 1
        said, given = (answer, answers) if alike else (normalize_answer(answer), list(map(normalize_answer, answers)))
        sets = [given[:place] + given[place + 1 :] for place in range(10)]
        expected = sum(min(1, sum(other == said for other in others) / 3) for others in sets) / 10
        votes = {text: answers.count(text) for text in dict.fromkeys(answers)}
        assert vqa_accuracy(answer, votes) == pytest.approx(expected)


def test_soft_scores_count_alike_answers_together():
    assert soft_scores({"red": 1, "the red": 1, "blue": 8}) == {"red": pytest.approx(2 / 3), "blue": 1.0}
    assert soft_scores({"the red": 10}) == {"the red": 1.0}


# files


@pytest.mark.parametrize("form", ["npy", "npz", "mcan"])
def test_features_of_every_form(tmp_path, form):
    write_vqa_v2(tmp_path, form, packed=form == "mcan")
    data = read_vqa_v2(tmp_path)
    assert {part: len(questions) for part, questions in data.items()} == {"train": 6, "val": 2, "test": 2}
    train = data["train"]
    assert train.questions[:2] == (["is", "there", "a", "cat"], ["what", "color", "is", "the", "cat", "'s", "hat"])
    assert train.answers[:2] == ("yes", "red")
    assert train.votes[1] == {"red": 6, "the dark, red": 3, "dark red": 1}
    assert train.kinds[:2] == ("yes/no", "other")
    for place, number in enumerate(VQA["train"]):
        rows = torch.from_numpy(vqa_rows(number))
        assert torch.allclose(train.regions.features[place][train.regions.mask[place]].float(), rows, atol=5e-3)
    assert not train.regions.features[~train.regions.mask].any()
    # half of the validation photographs are for the test
    assert set(data["val"].photographs.tolist()).isdisjoint(data["test"].photographs.tolist())


def test_an_excerpt_has_a_test_part_of_its_own_and_blind_networks_need_no_features(tmp_path):
    write_vqa_v2(tmp_path, "none", excerpt=True)
    data = read_vqa_v2(tmp_path, blind=True)
    assert [len(questions) for questions in data.values()] == [6, 4, 4]
    assert data["test"].regions.features.shape == (2, 1, 1)
    with pytest.raises(FileNotFoundError, match=r"train is missing.*or --blind to train without them"):
        read_vqa_v2(tmp_path)


def test_several_views_of_a_photograph(tmp_path):
    folder = write_vqa_v2(tmp_path, "none")
    for view in (1, 2, 3):
        (folder / "features" / str(view)).mkdir()
        for split, photographs in VQA.items():
            write_features(folder / "features" / str(view) / f"{split}2014", photographs, "npy", more=view)
    train = read_vqa_v2(tmp_path, views=3)["train"]
    assert train.regions.features.shape == (3, 3, 6, 4)
    assert train.regions.mask.shape == (3, 3, 6)
    for place, number in enumerate(VQA["train"]):
        for view in (1, 2, 3):
            row = train.regions.features[place, view - 1][train.regions.mask[place, view - 1]].float()
            assert torch.allclose(row, torch.from_numpy(vqa_rows(number, more=view)), atol=5e-3)
    assert read_vqa_v2(tmp_path, views=3, blind=True)["train"].regions.features.shape == (3, 3, 1, 1)
    with pytest.raises(FileNotFoundError, match=r"train2014 is missing"):  # one view has its files elsewhere
        read_vqa_v2(tmp_path)
    (folder / "features" / "2" / "val2014" / "42.npy").unlink()
    with pytest.raises(ValueError, match=r"2.val2014: no features of photograph 42"):
        read_vqa_v2(tmp_path, views=3)


def annotations(change):
    def write(folder):
        path = folder / "v2_mscoco_train2014_annotations.json"
        rows = json.loads(path.read_text())["annotations"]
        change(rows)
        path.write_text(json.dumps({"annotations": rows}))

    return write


def all_features(folder):
    for path in (folder / "features" / "val2014").iterdir():
        np.save(path, np.ones((2, 5), np.float32))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (all_features, r"features of the widths \{'train2014': 4, 'val2014': 5\}"),
        (annotations(lambda rows: rows.pop()), r"question 30001 is in .*questions.json and not in .*annotations.json"),
        (annotations(lambda rows: rows[0]["answers"].pop()), "question 9000 .*9 answers.*expected .* 10 people"),
        (annotations(lambda rows: rows[1].update(image_id=25)), "question 9001 .*another photograph"),
        (annotations(lambda rows: rows.append(rows[0])), "no question, or the same question twice"),
    ],
)  # fmt: skip
def test_bad_input_is_told(tmp_path, spoil, message):
    spoil(write_vqa_v2(tmp_path))
    with pytest.raises(ValueError, match=message):
        read_vqa_v2(tmp_path)


def test_files_of_two_splits_do_not_fit(tmp_path):
    folder = write_vqa_v2(tmp_path)
    files = folder / "v2_OpenEnded_mscoco_train2014_questions.json", folder / "v2_mscoco_val2014_annotations.json"
    with pytest.raises(ValueError, match=r"10 questions are in one file alone\); expected files of one split"):
        read_pairs(*files)


# targets


def test_answers_are_drawn_in_proportion_to_the_votes(tmp_path):
    write_vqa_v2(tmp_path, "none")
    data = read_vqa_v2(tmp_path, blind=True)["train"]
    words = Words(["is"], ["dark red", "red", "yes"])
    answered = Answered(data, words, seed=3)
    drawn = torch.stack([answered[epoch, [0, 1]].answer for epoch in range(2000)])
    assert (drawn[:, 0] == 2).all()
    share = (drawn[:, 1] == 1).double().mean().item()  # six of ten said red, the others dark red
    assert share == pytest.approx(0.6, abs=4 * (0.6 * 0.4 / 2000) ** 0.5)
    assert torch.equal(answered[7, [1]].answer, Answered(data, words, seed=3)[7, [1]].answer)
    fixed = Answered(data, words, fixed=True)
    assert len({fixed[epoch, [1]].answer.item() for epoch in range(20)}) == 1
    # an answer without a class is left out
    rare = Answered(data, Words(["is"], ["red"]))
    assert rare.labels == [None, 0] * 3
    assert len(rare.answerable()) == 3
    assert {rare[epoch, [1]].answer.item() for epoch in range(20)} == {0}


def test_soft_scores_are_targets(tmp_path):
    write_vqa_v2(tmp_path, "none")
    data = read_vqa_v2(tmp_path, blind=True)["train"]
    answered = Answered(data, Words(["is"], ["dark red", "red", "yes"]), likelihood="scores")
    assert torch.equal(answered[0, [0, 1]].answer, torch.tensor([[0.0, 0.0, 1.0], [1.0, 1.0, 0.0]]))
    # six of ten said red, though four who said dark red give a whole score, too
    assert answered.labels[:2] == [2, 1]
