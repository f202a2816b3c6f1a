"""Multiple choice in RACE's format: what is read, how options are scored, accuracies by hand, bad input."""

import json
import re
from itertools import permutations

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from experiments.data.text.race import Choice, load_race, read_race
from experiments.files import UserError
from experiments.finetune.choices import EncodedChoices, RaceTask, choice_scores, joined
from experiments.finetune.config import PredictConfig, RaceConfig
from experiments.finetune.predict import predict_file
from experiments.run import load_trained
from models.transformers import ChoiceModel
from pyro_attention.analysis import fit_temperature
from tests.experiments.finetune.tiny_race import write_race

GOOD = {
    "article": "Tom drinks tea.",
    "questions": ["Tom likes _ .", "Who is it?"],
    "options": [["tea", "milk", "rum", "beer"], ["Tom", "Ann"]],
    "answers": ["A", "B"],
    "id": "high1.txt",
}


def written(folder, content, name="1.txt"):
    path = folder / "RACE" / "train" / "high" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


# the reader


def test_questions_of_race(tmp_path):
    first, second = read_race(written(tmp_path, GOOD))
    assert first == Choice("1.txt-1", "high", GOOD["article"], "Tom likes _ .", ("tea", "milk", "rum", "beer"), 0)
    assert (second.id, second.options, second.answer) == ("1.txt-2", ("Tom", "Ann"), 1)
    # questions to answer say nothing of answers
    asked = written(tmp_path, {name: value for name, value in GOOD.items() if name != "answers"})
    assert [choice.answer for choice in read_race(asked, answers=False)] == [None, None]


def test_parts_of_race_are_those_of_its_publishers(tmp_path):
    root = write_race(tmp_path)
    parts = load_race(data_root=root)
    assert {part: len(choices) for part, choices in parts.items()} == {"train": 24, "val": 12, "test": 12}
    high = load_race("high", data_root=root)
    assert high["test"] == [choice for choice in parts["test"] if choice.level == "high"]
    for choice in parts["train"]:
        assert choice.options[choice.answer] in choice.passage.split()
    # by number, as 10.txt would stand ahead of 2.txt
    for number in (10, 2):
        (tmp_path / "RACE" / "test" / "high" / f"{number}.txt").write_text(json.dumps(GOOD))
    assert [choice.id for choice in load_race("high", data_root=root)["test"]][-2:] == ["10.txt-1", "10.txt-2"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"answers": ["A", "C"]}, r"question 2 .*the answer is 'C', and the options are A to B"),
        ({"answers": [None, "A"]}, r"question 1 .*the answer is None, and the options are A to D"),
        ({"answers": ["E", "A"]}, r"question 1 .*the answer is 'E', and the options are A to D"),
        ({"options": [["tea"], ["Tom", "Ann"]]}, r"question 1 .*options are \['tea'\].*two options or more"),
        ({"options": ["tea or milk", ["Tom", "Ann"]]}, "question 1 .*the options are tea or milk"),
        ({"answers": ["A"]}, "2 questions, 2 options, 1 answers"),
        ({"questions": ["Tom \ud83d", "Who?"]}, "question 1 .*half of a character"),
        ({"article": " "}, "a passage of 0 characters"),
        ({"questions": [], "options": [], "answers": []}, "0 questions"),
    ],
)
def test_bad_files_of_race(tmp_path, changes, message):
    path = written(tmp_path, GOOD | changes)
    with pytest.raises(UserError, match=f"{re.escape(str(path))}.*{message}"):
        read_race(path)


@pytest.mark.parametrize("field", ["article", "questions", "options", "answers"])
def test_a_missing_field_is_named(tmp_path, field):
    path = written(tmp_path, {name: value for name, value in GOOD.items() if name != field})
    with pytest.raises(UserError, match=f"it has no {field}.*expected a JSON object with article, questions"):
        read_race(path)


def test_a_missing_folder_is_named(tmp_path):
    written(tmp_path, GOOD)
    with pytest.raises(FileNotFoundError, match=r"RACE/train/middle is missing; .*RACE\.tar\.gz.*--data-root"):
        load_race(data_root=tmp_path)


# texts and scores


def race_config(root, out=None, **options):
    tiny = {"length": 24, "batch_size": 8, "max_epochs": 1, "num_samples": 3, "progress": False}
    return RaceConfig(**tiny | {"model": str(root / "some" / "bert"), "data_root": root, "out": out} | options)


def test_a_text_has_the_passage_the_question_and_one_option(place):
    tokenizer = AutoTokenizer.from_pretrained(place / "some" / "bert")
    passage = " ".join(f"word{number % 10}" for number in range(30))
    choices = [
        Choice("a", "high", passage, "word11 _ word12", ("word15", "word16"), 0),
        Choice("b", "high", "word1", "word11 " * 9, ("word15", "word16", "word17"), 2),
    ]
    data = EncodedChoices(choices, tokenizer, length=20)
    texts = [tokenizer.decode(text["input_ids"]).replace("[CLS] ", "").split(" [SEP]") for text in data.inputs]
    # 20 tokens, three of them special, three of the question with its option
    assert texts[0] == [" ".join(passage.split()[:14]), " word11 word15 word12", ""]
    # a long question loses its beginning, half of the length stays, and its option is there
    assert texts[4] == ["word1", f" {'word11 ' * 9}word17", ""]
    batch = data[0, [0, 1]]
    assert batch.options.tolist() == [[True, True, False], [True, True, True]]
    assert batch.answers.tolist() == [0, 2]
    assert data.token_pairs == [2 * 20**2, 3 * 14**2]
    assert joined("Who?", "Tom") == "Who? Tom"
    short = EncodedChoices(choices[1:], tokenizer, length=12)
    assert (
        tokenizer.decode(short.inputs[0]["input_ids"])
        == "[CLS] word1 [SEP] word11 word11 word11 word11 word11 word15 [SEP]"
    )


def test_a_permutation_of_the_options_permutes_their_scores(place):
    """Each option is scored by itself: score and probability move with it, and so does the loss of the right one."""
    tokenizer = AutoTokenizer.from_pretrained(place / "some" / "bert")
    network = AutoModelForSequenceClassification.from_pretrained(place / "some" / "bert", num_labels=1)
    model, options = ChoiceModel(network).eval(), ("word1", "word2 word3", "word4")
    scores = []
    for order in permutations(range(3)):
        choice = Choice("a", "high", "word7 word8", "word9 _", tuple(options[index] for index in order), order.index(1))
        batch = EncodedChoices([choice], tokenizer, length=20)[0, [0]]
        with torch.no_grad():
            logits = model(batch.inputs, batch.options, batch.answers)[0]
        scores.append(logits[torch.tensor(order).argsort()])
    assert scores[0].unique().numel() == 3
    for other in scores[1:]:
        torch.testing.assert_close(other, scores[0], rtol=1e-5, atol=1e-6)


def test_options_that_are_missing_have_no_probability():
    class Known(torch.nn.Module):
        def forward(self, input_ids, return_dict):
            assert return_dict
            return type("Output", (), {"logits": input_ids[:, :1].float()})

    scores = torch.tensor([[1], [2], [3], [4], [5]])
    options = torch.tensor([[True, True, False], [True, True, True]])
    logits = ChoiceModel(Known())({"input_ids": scores}, options)
    assert logits[0, :2].tolist() == [1, 2]
    assert logits[1].tolist() == [3, 4, 5]
    assert logits.softmax(-1)[0, 2] == 0


def test_accuracies_by_hand():
    """Four questions, of which the mean probabilities of two samples are right for the first, second and fourth."""
    choices = [
        Choice("a", level, "passage", "question", ("one", "two"), answer)
        for level, answer in (("middle", 0), ("middle", 1), ("high", 0), ("high", 1))
    ]
    # the samples of the fourth question disagree: .9 and .2 of the second option, .55 in the mean
    second = torch.tensor([[0.3, 0.8, 0.6, 0.9], [0.4, 0.7, 0.9, 0.2]])
    logits = torch.stack([1 - second, second], -1).log()
    assert choice_scores(logits, choices) == {"accuracy": 0.75, "accuracy_middle": 1.0, "accuracy_high": 0.5}


# training


@pytest.fixture(scope="module")
def race(place):
    """The tiny data of the module, with those of RACE."""
    return write_race(place)


@pytest.mark.parametrize("guide", ["soft", "weibull"])
def test_training_and_predictions(race, tmp_path, guide):
    config = race_config(
        race, tmp_path / "run", **{"guide": guide} | ({} if guide == "soft" else {"concentration": 1.0})
    )
    metrics = RaceTask().run(config)
    kind = "mc_dropout" if guide == "soft" else "attention"
    with np.load(config.out / "predictions.npz", allow_pickle=False) as arrays:
        val, test = (torch.from_numpy(arrays[f"{kind}_{part}"]) for part in ("val", "test"))
        labels = {part: torch.from_numpy(arrays[f"labels_{part}"]) for part in ("val", "test")}
    assert test.shape == (3, 12, 4)
    assert test.std(0).max() > 0
    right = test.softmax(-1).mean(0).argmax(-1) == labels["test"]
    assert metrics[f"test_{kind}_accuracy"] == pytest.approx(right.double().mean().item())
    assert metrics[f"test_{kind}_accuracy_middle"] == pytest.approx(right[:6].double().mean().item())
    assert metrics[f"{kind}_temperature"] == pytest.approx(fit_temperature(val, labels["val"]).temperature, rel=1e-3)
    assert metrics["train_questions"] == 24
    # the same probabilities for a file, whose questions have as many options as they like
    file = race / "RACE" / "test" / "middle" / "0.txt"
    out = predict_file(PredictConfig(run=config.out, file=file, out=tmp_path / "out.jsonl", num_samples=3))
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["id"] for line in lines] == ["0.txt-1", "0.txt-2"]
    for line in lines:
        assert sum(line["probabilities"]) == pytest.approx(1, abs=1e-5)
        assert line["probability"] == max(line["probabilities"])
        assert line["probabilities"]["ABCD".index(line["answer"])] == line["probability"]


def test_the_right_options_are_learned(place, tmp_path):
    """Chance is a half of two options."""
    root = write_race(tmp_path, train=60, test=20, options=2)
    config = race_config(place, tmp_path / "run", data_root=root, learning_rate=1e-2, max_epochs=5, num_samples=1)
    assert RaceTask().run(config)["test_mean_accuracy"] > 0.8
    trained, choices = load_trained(RaceTask(), config), load_race(data_root=root)["test"]
    data = EncodedChoices(choices, trained.tokenizer, length=config.length)
    # padding and the order of the questions do not matter
    together, alone = (trained.module.outputs(*data[0, indices][:2])[0] for indices in ([0, 5, 9], [5]))
    torch.testing.assert_close(together[1], alone[0], rtol=1e-4, atol=1e-5)


def test_the_kl_of_a_question_is_that_of_all_its_options(race):
    """A weight of an attention layer has the same share of the loss as in a task with one text an example."""
    config = race_config(race, guide="weibull", kl_weight=0.5, kl_warmup=0.0)
    data = RaceTask().load(config)["train"]
    module = RaceTask().network(config, token_pairs=data.token_pairs).module
    weights = 2 * 2 * sum(data.token_pairs) / len(data)  # two layers of two heads
    assert module.objective.elbo.current_kl_weight() == pytest.approx(0.5 / weights)
    assert data.token_pairs[0] == sum(len(data.inputs[text]["input_ids"]) ** 2 for text in range(4))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 5}, "length is 5; expected at least 10"),
        ({"guide": "weibull", "objective": "evidence"}, "objective is evidence.*pass --objective elbo"),
        ({"model": ""}, "model is missing"),
    ],
)
def test_bad_options(place, options, message):
    with pytest.raises(UserError, match=message):
        race_config(place, **options)
