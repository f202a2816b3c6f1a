"""Training on questions, end to end on tiny sizes, and asking: models and schemes, data, numbers and answers."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from experiments.files import UserError
from experiments.harness.folder import read_metrics
from experiments.vqa.accuracy import consensus, normalize_answer, soft_scores, vqa_accuracy
from experiments.vqa.config import AskConfig, VQAConfig
from experiments.vqa.evaluation import evaluate, guesses, looked_at, outputs_of
from experiments.vqa.model import Answered, Words, load_questions, load_words
from experiments.vqa.train import ask, load_trained, reply_to
from pyro_attention.analysis import fit_temperature, negative_log_likelihood, pavpu
from tests.experiments.datasets.questions.tiny_questions import write_easy_vqa, write_vqa_v2
from tests.experiments.vqa.tiny_questions import command, few_digits, run_tiny

KINDS = {"where", "count", "which", "exists", "chain"}


# accuracy


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("the  dog ", "dog"), ("Two", "2"), ("none", "0"), ("1,000", "1000"), ("black/white", "black white"),
        ("black / white", "black white"), ("red, white", "red white"), ("3.5", "3.5"), ("st. mary", "st mary"),
        ("dont.", "don't"), ("it's", "it's"), ("t-shirt", "t shirt"), ("line\nbreak\tand tab", "line break and tab"),
        ("", ""),
    ],
)  # fmt: skip
def test_normalised_answers(answer, expected):
    assert normalize_answer(answer) == expected


@pytest.mark.parametrize(
    ("votes", "answer", "expected"),
    [
        ({"cat": 10}, "Cat", 0.0),  # all people agree: compared as it stands
        ({"two": 2, "2": 2, "3": 6}, "2", 1.0),
        ({"a cat": 5, "dog": 5}, "The cat.", 1.0),
        ({"red": 1}, "red", 1.0),  # one annotator, as in DAQUAR
        ({"red": 1}, "blue", 0.0),
    ],
)
def test_alike_answers_agree(votes, answer, expected):
    assert vqa_accuracy(answer, votes) == pytest.approx(expected)


@pytest.mark.parametrize("agreeing", range(5))
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
    # answers are drawn in proportion to the votes, and one without a class never
    data = replace(few_digits(1)["test"].pick([0, 1]), answers=[{"1": 1, "2": 9, "rare": 5}, {"2": 1, "3": 2}])
    words = Words(["is"], ["1", "2", "3"])
    drawn = torch.stack([Answered(data, words, "single", seed=1)[epoch, [0, 1]].answer for epoch in range(400)])
    assert (drawn[:, 0] == 0).float().mean().item() == pytest.approx(0.1, abs=0.05)
    assert (drawn[:, 1] == 2).float().mean().item() == pytest.approx(2 / 3, abs=0.08)
    scores = Answered(data, words, "scores")[0, [0, 1]].answer
    torch.testing.assert_close(scores, torch.tensor([[1 / 3, 1, 0], [0, 1 / 3, 2 / 3]]))


def test_guesses():
    def asked(*rows):
        questions, answers = zip(*[(text.split(), votes) for text, votes in rows], strict=True)
        data = few_digits(1)["test"].pick([0] * len(rows))
        return replace(data, questions=questions, answers=answers)

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


# training


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        ({"guide": "soft", "normalizer": "hybrid", "feature_noise": 0.5}, 2),
        ({"model": "bottom_up", "guide": "categorical_sample", "likelihood": "scores"}, 1),
        ({"model": "multi_view", "guide": "weibull", "normalizer": "hybrid", "objective": "evidence", "draws": 2}, 4),
    ],
    ids=str,
)
def test_models_and_schemes(options, kinds, tmp_path, capsys):
    metrics, model = run_tiny(tmp_path, **options), options.get("model")
    assert all(math.isfinite(value) for value in metrics.values())
    assert {name.split("/")[2] for name in metrics if name.startswith("test_accuracy/mean/")} == KINDS | {"noise_0.5"}
    found, _ = evaluate(*load_trained(tmp_path))  # of the saved network
    assert found == pytest.approx({name: metrics[name] for name in found})
    assert ("relevant_mass" in found) == (model != "multi_view")
    assert ("hybrid_view.1" in found) == (model == "multi_view")
    assert kinds == len({name.split("/")[1] for name in found if "test_nll" in name})
    reply = ask(AskConfig(run=tmp_path, question="how many", num_samples=4))
    assert ("no picture" in capsys.readouterr().out) == (reply.weights is None) == (model == "multi_view")
    assert (tmp_path / "figures" / "asked.png").is_file() == (model != "multi_view")


def test_the_numbers_are_those_of_the_saved_predictions(weibull_run):
    metrics, words = read_metrics(weibull_run), load_words(weibull_run)
    test = few_digits(1)["test"]
    arrays = {name: torch.from_numpy(values) for name, values in np.load(weibull_run / "predictions.npz").items()}
    chosen = [words.answers[place] for place in arrays["mean"].argmax(-1)]
    right = [vqa_accuracy(answer, votes) for answer, votes in zip(chosen, test.answers, strict=True)]
    assert arrays["accuracy"].tolist() == right
    assert metrics["test_accuracy/mean"] == pytest.approx(sum(right) / len(right))
    for kind in KINDS:
        own = [accurate for accurate, other in zip(right, test.kinds, strict=True) if other == kind]
        assert metrics[f"test_accuracy/mean/{kind}"] == pytest.approx(sum(own) / len(own))
    nll = [
        -math.log(row[words.answer_ids[answer]])
        for row, votes in zip(arrays["attention"], test.answers, strict=True)
        for answer in votes
        if answer in words.answer_ids
    ]
    assert metrics["test_nll/attention"] == pytest.approx(sum(nll) / len(nll), rel=1e-4)
    entropy = torch.special.entr(arrays["attention"].double()).sum(-1)
    torch.testing.assert_close(arrays["entropy_attention"].double(), entropy, rtol=1e-4, atol=1e-4)
    mutual = arrays["mutual_information_both"].mean().item()
    assert metrics["test_mutual_information/both"] == pytest.approx(mutual, rel=1e-4)


def test_certainty_and_temperature(weibull_run):
    """PAvPU is of the accuracy at the mean; the temperature is fitted on the validation questions alone."""
    metrics, (trained, questions) = read_metrics(weibull_run), load_trained(weibull_run)
    logits, labels = {}, {}
    for part in ("val", "test"):
        data = trained.answered(questions[part])
        logits[part] = outputs_of(trained, data, "both").logits
        known = {place: max(votes, key=votes.get) for place, votes in enumerate(data.known) if votes}
        labels[part] = [*known], torch.tensor([*known.values()])
    accurate = torch.from_numpy(np.load(weibull_run / "predictions.npz")["accuracy"])
    found = pavpu(logits["test"], accurate, test="logits")[0.05]
    assert metrics["test_pavpu_05/both"] == pytest.approx(found.pavpu)
    scaling = fit_temperature(logits["val"][:, labels["val"][0]], labels["val"][1])
    places, classes = labels["test"]
    nll = negative_log_likelihood(scaling(logits["test"][:, places]), classes)
    assert metrics["test_scaled_nll/both"] == pytest.approx(float(nll), rel=1e-5)


def test_the_mass_on_relevant_cells(weibull_run):
    metrics, (trained, questions) = read_metrics(weibull_run), load_trained(weibull_run)
    data, shares = questions["test"], []
    for batch in trained.answered(data).batches(trained.device, size=1):
        weights = looked_at(trained, batch)[0, 0]
        shares.append(sum(weights[cell].item() for cell in range(9) if data.relevant[batch.places[0], cell]))
    assert metrics["relevant_mass"] == pytest.approx(sum(shares) / len(data), rel=1e-4)
    regions = data.regions.mask[data.photographs]
    assert metrics["uniform_mass"] == pytest.approx((data.relevant.sum(1) / regions.sum(1)).mean().item())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "bottom_up", "guide": "dirichlet"}, "cannot predict"),
        ({"model": "multi_view", "dataset": "daquar"}, "daquar has one view; take digits or another model"),
    ],
)
def test_what_does_not_go_together(options, message, tmp_path):
    with pytest.raises(UserError, match=message):
        run_tiny(tmp_path, **options)


# data


def test_parts_of_the_questions():
    whole = load_questions(VQAConfig())["train"]
    shares = [load_questions(VQAConfig(train_share=0.25, seed=seed, test_questions=3)) for seed in (0, 1)]
    assert [len(found["train"]) for found in shares] == [round(len(whole) / 4)] * 2
    assert shares[0]["train"].questions != shares[1]["train"].questions  # the seed draws them
    assert len(shares[0]["test"]) == len(shares[0]["val"]) == 3


def test_blind_models_see_blank_regions(tmp_path):
    write_vqa_v2(tmp_path)
    options = {"dataset": "vqa_v2", "data_root": tmp_path, "progress": False}
    seen, blind = (load_questions(VQAConfig(**options, blind=blind))["train"] for blind in (False, True))
    assert seen.regions.features.any()
    assert not blind.regions.features.any()
    assert torch.equal(blind.regions.mask, seen.regions.mask)
    assert blind.questions == seen.questions
    assert blind.regions.spread == 0 < seen.regions.spread


# asking


def test_ask(weibull_run, tmp_path, capsys):
    picture = tmp_path / "picture.png"
    options = ("--place", 2, "--num-samples", 30, "--out", picture)
    assert command("ask", weibull_run, "What digit is left of the Zebra?", *options) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0] == "what digit is left of the zebra?"
    assert printed.err == "not among the words of the training questions: zebra\n"
    with Image.open(picture) as image:
        assert image.size[0] > 1000  # the scene and two maps
    # the intervals are those of the samples
    trained, questions = load_trained(weibull_run)
    reply = reply_to(trained, questions["test"].regions, ["how", "many"], 1, picture, num_samples=30)
    assert reply.weights.shape == (30, 9)
    torch.testing.assert_close(reply.weights.sum(-1), torch.ones(30))
    samples, row = reply.outputs.logits.softmax(-1)[:, 0].numpy(), reply.answers[0]
    place = trained.words.answers.index(row["answer"])
    assert place == samples.mean(0).argmax()
    low, high = np.quantile(samples[:, place], [0.025, 0.975])
    assert row["95% interval"] == f"[{low:.3f}, {high:.3f}]"


def test_bad_questions(weibull_run):
    for options, message in (({"question": "  ?"}, "has no word"), ({"place": 6}, "expected numbers from 0 to 3")):
        with pytest.raises(UserError, match=message):
            ask(AskConfig(**{"run": weibull_run, "question": "how many"} | options))


def test_a_photograph_of_ones_own(tmp_path):
    """It is answered as at its place in the test, by an encoder that is not trained again."""
    write_easy_vqa(tmp_path)
    options = {"encoder_epochs": 1, "test_noise": (0.0,), "guide": "weibull", "data_root": tmp_path}
    run_tiny(tmp_path / "run", dataset="easy_vqa", **options)
    with np.load(tmp_path / "easy-vqa" / "test_images.npz") as arrays:
        Image.fromarray(arrays["images"][4]).save(tmp_path / "green.png")
    cache = tmp_path / "easy-vqa" / "cache"
    made = sorted(cache.iterdir())
    options = {"run": tmp_path / "run", "question": "What color is the shape?", "num_samples": 5}
    other, same = (ask(AskConfig(place=place, **options)) for place in (0, 4))
    own = ask(AskConfig(photo=tmp_path / "green.png", **options))
    torch.testing.assert_close(own.outputs.logits, same.outputs.logits)
    torch.testing.assert_close(own.weights, same.weights)
    assert not torch.allclose(own.outputs.logits, other.outputs.logits, rtol=1e-3)
    assert sorted(cache.iterdir()) == made
