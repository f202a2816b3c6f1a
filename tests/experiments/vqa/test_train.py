"""Training on questions, end to end on tiny sizes, and asking: models and schemes, data, numbers and answers."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from experiments.files import UserError
from experiments.folder import read_metrics, start_run
from experiments.vqa.config import AskConfig, VQAConfig
from experiments.vqa.model import Answered, AnswerTraining, QuestionBatch, Words, load_questions, load_words
from experiments.vqa.studies import TASK
from experiments.vqa.task import (
    ask,
    evaluate,
    guesses,
    key_masses,
    load_trained,
    outputs_of,
    region_weights,
    reply_to,
)
from models.vqa import BottomUp
from pyro_attention import AlignmentELBO, AttentionGuide, Marginal, sample_posterior
from pyro_attention.analysis import classification_scores, fit_temperature, pavpu
from tests.experiments.data.questions.tiny_questions import write_daquar, write_easy_vqa, write_vqa_v2
from tests.experiments.vqa.tiny_questions import command, few_digits, run_tiny

KINDS = {"where", "count", "which", "exists", "chain"}


def test_guesses():
    def asked(*rows):
        questions, answers = zip(*[(text.split(), answer) for text, answer in rows], strict=True)
        data = few_digits(1)["test"].pick([0] * len(rows))
        return replace(data, questions=questions, answers=answers)

    train = asked(
        ("is there a cat", "yes"), ("is there a dog", "yes"), ("is there food", "no"), ("how many cats", "2"),
        ("how many dogs", "2"), ("how many pets", "3"), ("is it red", "yes"),
    )  # fmt: skip
    test = asked(("is there a bird", "yes"), ("how many birds", "2"), ("how many rooms", "3"), ("what is it", "yes"))
    assert guesses(train, test) == pytest.approx({"majority_accuracy": 2 / 4, "form_accuracy": 3 / 4})


def test_answers_and_their_classes():
    """The most frequent ones have a class; questions with another answer are not trained on."""
    data = replace(few_digits(1)["test"].pick([0, 1, 2]), answers=["3", "2", "rare"])
    answered = Answered(data, Words(["is"], ["2", "3"]))
    assert answered[0, [0, 1]].answer.tolist() == [1, 0]
    assert answered.labels == [1, 0, None]
    assert len(answered.answerable()) == 2


# training


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        ({"guide": "soft", "normalizer": "hybrid", "feature_noise": 0.5}, 2),
        ({"model": "bottom_up", "guide": "categorical_sample"}, 1),
        ({"guide": "lognormal", "prior": "contextual_as_printed"}, 4),
        ({"model": "multi_view", "guide": "weibull", "normalizer": "hybrid", "objective": "evidence", "draws": 2}, 4),
        ({"model": "multi_view", "guide": "weibull", "merge": "concatenation"}, 4),
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
    assert ("hybrid_view.1" in found) == (model == "multi_view" and options.get("normalizer") == "hybrid")
    assert kinds == len({name.split("/")[1] for name in found if "test_nll" in name})
    reply = ask(AskConfig(run=tmp_path, question="how many", num_samples=4))
    assert ("no picture" in capsys.readouterr().out) == (reply.weights is None) == (model == "multi_view")
    assert (tmp_path / "figures" / "asked.png").is_file() == (model != "multi_view")


def test_the_mass_of_regions(tmp_path, capsys):
    """That of every real region of the other views: what the regions of the first view give to it, and one each."""
    metrics = run_tiny(tmp_path, model="multi_view", guide="soft", normalizer="hybrid")
    trained, questions = load_trained(tmp_path)
    data = trained.answered(questions["test"])
    masses = key_masses(trained, data)
    assert list(masses) == ["view.1", "view.2"]
    first, *others = questions["test"].regions.mask[questions["test"].photographs].unbind(1)
    for mass, real in zip(masses.values(), others, strict=True):
        assert mass.shape == (real.sum(), 1)
        assert mass.sum().item() == pytest.approx(first[real.any(1)].sum().item(), rel=1e-5)
    # a question by itself, on padding of its own
    batch = next(data.batches(trained.device, sentences=1))
    view = sample_posterior(trained.guide, *batch[:4], num_samples=1, noise="none")["view.1"][0, 0, 0]
    alone = [sum(row[key].item() for row in view) for key in range(len(others[0][0])) if batch.region_mask[0, 1, key]]
    assert masses["view.1"][: len(alone), 0].tolist() == pytest.approx(alone, rel=1e-5)
    assert metrics["explained_away"] == 0
    lowest = torch.cat([*masses.values()]).flatten().sort().values
    assert metrics["key_mass_1_percent"] == pytest.approx(lowest[max(1, round(0.01 * len(lowest))) - 1].item())
    TASK.show(trained.config, metrics, tmp_path)
    said = capsys.readouterr().out
    for name in ("key_mass.png", "hybrid.png"):
        assert (tmp_path / "figures" / name).is_file()
        assert name in said


def test_the_numbers_are_those_of_the_saved_predictions(weibull_run):
    metrics, words = read_metrics(weibull_run), load_words(weibull_run)
    test = few_digits(1)["test"]
    arrays = {name: torch.from_numpy(values) for name, values in np.load(weibull_run / "predictions.npz").items()}
    chosen = [words.answers[place] for place in arrays["mean"].argmax(-1)]
    right = [float(said == answer) for said, answer in zip(chosen, test.answers, strict=True)]
    assert arrays["accuracy"].tolist() == right
    assert metrics["test_accuracy/mean"] == pytest.approx(sum(right) / len(right))
    for kind in KINDS:
        own = [accurate for accurate, other in zip(right, test.kinds, strict=True) if other == kind]
        assert metrics[f"test_accuracy/mean/{kind}"] == pytest.approx(sum(own) / len(own))
    nll = [
        -math.log(row[words.answer_ids[answer]])
        for row, answer in zip(arrays["attention"], test.answers, strict=True)
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
        known = {place: label for place, label in enumerate(data.labels) if label is not None}
        labels[part] = [*known], torch.tensor([*known.values()])
    accurate = torch.from_numpy(np.load(weibull_run / "predictions.npz")["accuracy"])
    found = pavpu(logits["test"], accurate)[0.05]
    assert metrics["test_pavpu_05/both"] == pytest.approx(found)
    scaling = fit_temperature(logits["val"][:, labels["val"][0]], labels["val"][1])
    places, classes = labels["test"]
    nll = classification_scores(scaling(logits["test"][:, places]), classes).nll
    assert metrics["test_scaled_nll/both"] == pytest.approx(nll, rel=1e-5)


def test_the_mass_on_relevant_cells(weibull_run):
    metrics, (trained, questions) = read_metrics(weibull_run), load_trained(weibull_run)
    data, shares = questions["test"], []
    for batch in trained.answered(data).batches(trained.device, sentences=1):
        weights = region_weights(trained, batch)[0, 0]
        shares.append(sum(weights[cell].item() for cell in range(9) if data.relevant[batch.indices[0], cell]))
    assert metrics["relevant_mass"] == pytest.approx(sum(shares) / len(data), rel=1e-4)
    regions = data.regions.mask[data.photographs]
    assert metrics["uniform_mass"] == pytest.approx((data.relevant.sum(1) / regions.sum(1)).mean().item())


def test_what_does_not_go_together(tmp_path):
    with pytest.raises(UserError, match="cannot predict"):
        run_tiny(tmp_path, model="bottom_up", guide="dirichlet")


# data


def test_parts_of_the_questions():
    whole = load_questions(VQAConfig())["train"]
    shares = [load_questions(VQAConfig(train_share=0.25, seed=seed, test_questions=3)) for seed in (0, 1)]
    assert [len(found["train"]) for found in shares] == [round(len(whole) / 4)] * 2
    assert shares[0]["train"].questions != shares[1]["train"].questions  # the seed draws them
    assert len(shares[0]["test"]) == len(shares[0]["val"]) == 3


def test_blind_models_see_blank_regions():
    seen, blind = (load_questions(VQAConfig(blind=blind))["train"] for blind in (False, True))
    assert seen.regions.features.any()
    assert not blind.regions.features.any()
    assert torch.equal(blind.regions.mask, seen.regions.mask)
    assert blind.questions == seen.questions
    assert blind.regions.spread == 0 < seen.regions.spread


# asking


def test_ask(weibull_run, tmp_path, capsys):
    picture = tmp_path / "picture.png"
    options = ("--image", 2, "--num-samples", 30, "--out", picture)
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
    other, same = (ask(AskConfig(image=image, **options)) for image in (0, 4))
    own = ask(AskConfig(photo=tmp_path / "green.png", **options))
    torch.testing.assert_close(own.outputs.logits, same.outputs.logits)
    torch.testing.assert_close(own.weights, same.weights)
    assert not torch.allclose(own.outputs.logits, other.outputs.logits, rtol=1e-3)
    assert sorted(cache.iterdir()) == made


def test_a_picture_takes_not_the_place_of_the_photograph(tmp_path):
    photo = tmp_path / "mine.png"
    Image.new("RGB", (8, 8)).save(photo)
    before = photo.read_bytes()
    with pytest.raises(UserError, match=r"would replace .*mine\.png; name another file by --out"):
        ask(AskConfig(run=tmp_path, question="what", photo=photo, out=tmp_path / "." / "mine.png", overwrite=True))
    with pytest.raises(UserError, match=r"mine\.png is there already .*pass --overwrite"):
        ask(AskConfig(run=tmp_path, question="what", out=photo))
    assert photo.read_bytes() == before


def test_a_run_without_weights_is_told(tmp_path, capsys):
    config = VQAConfig(out=tmp_path / "run")
    start_run(config.out, config)
    assert command("ask", config.out, "what is there") == 1
    assert "best.safetensors is missing, so" in (error := capsys.readouterr().err)
    assert "goes on with --resume" in error


def test_answers_that_the_training_has_not(tmp_path):
    path = write_daquar(tmp_path) / "text" / "data.csv"
    rows = path.read_text().splitlines()
    path.write_text("\n".join([*rows[:-4], *(f"what is there,a sofa,image{5 + row // 2}" for row in range(4))]))
    with pytest.raises(UserError, match=r"test: none of its 4 questions has an answer among the 2 most frequent ones"):
        run_tiny(tmp_path / "run", dataset="daquar", data_root=tmp_path, encoder_epochs=1, size=32)


def test_a_single_answer(tmp_path):
    with pytest.raises(UserError, match=r"train: the answer '.*' is the only one to choose from, .* raise --answers"):
        run_tiny(tmp_path / "run", answers=1)


def test_validation_loss_of_soft_scores_under_a_sum_over_alignments():
    model = BottomUp(9, 4, 3, embedding=8, hidden=8, dropout=0.0, likelihood="scores")
    elbo = AlignmentELBO(max_plate_nesting=1)
    training = AnswerTraining(model, AttentionGuide(model, Marginal()), elbo, learning_rate=0.1).eval()
    words, there = torch.tensor([[5, 2], [3, 0]]), torch.ones(2, 6, dtype=torch.bool)
    batch = QuestionBatch(words, words > 0, torch.randn(2, 6, 4), there, torch.rand(2, 3), torch.arange(2))
    p, y = model.mixture(*batch[:4]).exp(), batch.answer
    expected = -(y * p.log() + (1 - y) * (1 - p).log()).sum(-1).mean()
    torch.testing.assert_close(training.evaluate(batch)["loss"], expected)


ALIGNED = {"model": "bottom_up", "guide": "categorical_enum", "layers": 0}


@pytest.mark.parametrize(
    ("options", "likelihood"), [({"model": "mcan"}, "scores"), (ALIGNED, "scores"), (ALIGNED, "single")], ids=str
)
def test_answers_of_ten_people(options, likelihood, tmp_path, capsys):
    write_vqa_v2(tmp_path)
    run = tmp_path / "run"
    metrics = run_tiny(
        run,
        dataset="vqa_v2",
        data_root=tmp_path,
        likelihood=likelihood,
        max_epochs=30,
        batch_size=2,
        test_noise=(0.0,),
        learning_rate=0.02,
        patience=30,
        **options,
    )
    # red has six votes and dark red four: both count for a whole answer
    assert metrics["test_accuracy/mean"] == metrics["form_accuracy"] == 1
    assert metrics["majority_accuracy"] == 0.5
    assert {name.split("/", 2)[2] for name in metrics if name.startswith("test_accuracy/mean/")} == {"yes/no", "other"}
    if options["model"] == "mcan":
        found, _ = evaluate(*load_trained(run))
        assert found == pytest.approx({name: metrics[name] for name in found})
        capsys.readouterr()
        assert command("ask", run, "is there a cat") == 0
        assert (run / "figures" / "asked.png").is_file()
        said = capsys.readouterr().out
        assert "yes" in said
        # the test of the paper's figure 2
        assert re.search(
            r"p = [\d.e-]+ of a paired t-test that the two most probable answers .* over 200 samples",
            " ".join(said.split()),
        )


def test_questions_alone(tmp_path):
    write_vqa_v2(tmp_path, "none", excerpt=True)
    metrics = run_tiny(
        tmp_path / "run", dataset="vqa_v2", data_root=tmp_path, blind=True, guide="soft", test_noise=(0.0,)
    )
    assert 0 <= metrics["test_accuracy/mean"] <= 1


def test_features_of_another_size_than_a_network_was_trained_on(tmp_path):
    folder = write_vqa_v2(tmp_path)
    config = {"dataset": "vqa_v2", "data_root": tmp_path, "model": "bottom_up", "guide": "soft", "test_noise": (0.0,)}
    run_tiny(tmp_path / "run", **config)
    for split in ("train2014", "val2014"):
        for path in (folder / "features" / split).iterdir():
            np.save(path, np.ones((2, 5), np.float32))
    with pytest.raises(UserError, match="expected"):
        load_trained(tmp_path / "run")
