"""Training on questions, end to end on tiny sizes: every model and scheme, its data and its numbers."""

import json
import math
import sys

import numpy as np
import pytest
import torch

from experiments.files import UserError
from experiments.harness.results import read_metrics
from experiments.vqa.accuracy import vqa_accuracy
from experiments.vqa.ask import evaluate_run, load_trained
from experiments.vqa.config import EvaluateConfig, VQAConfig
from experiments.vqa.data import Answered, Words, load_questions, load_words
from experiments.vqa.evaluation import Outputs, accuracies, auroc, looked_at
from tests.experiments.datasets.questions.tiny_questions import write_easy_vqa, write_vqa_v2
from tests.experiments.vqa.tiny_questions import few_digits, run_tiny

KINDS = {"where", "count", "which", "exists", "chain"}
ALIGNED = (
    "marginal", "sparse_marginal", "hard_enum", "hard_sample", "categorical_sample", "categorical_enum", "sparse_enum",
    "gumbel", "wake_sleep", "iwae",
)  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {"guide": "soft"},
        {"guide": "weibull", "normalizer": "hybrid"},
        {"guide": "lognormal", "prior": "fixed", "feature_noise": 0.5},
        {"guide": "gamma", "likelihood": "scores"},
        {"model": "bottom_up", "guide": "soft", "layers": 0},
        {"model": "bottom_up", "guide": "weibull"},
        *({"model": "bottom_up", "guide": guide} for guide in ALIGNED),
        {"model": "multi_view", "guide": "soft", "normalizer": "doubly_normalized"},
        {"model": "multi_view", "guide": "weibull", "normalizer": "hybrid"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_every_model_and_scheme(options, tmp_path, capsys):
    model, guide, normalizer = (options.get(name) for name in ("model", "guide", "normalizer"))
    metrics = run_tiny(tmp_path, **options)
    assert all(math.isfinite(value) for value in metrics.values())
    assert {name.split("/")[2] for name in metrics if name.startswith("test_accuracy/mean/")} == KINDS | {"noise_0.5"}
    meanings = json.loads((tmp_path / "metrics.json").read_text())["definitions"]
    assert meanings.keys() == metrics.keys()
    assert all(meanings.values())
    found = evaluate_run(EvaluateConfig(run=tmp_path))
    assert "test_nll/mean" in capsys.readouterr().out
    assert found == pytest.approx({name: metrics[name] for name in found})
    assert len(metrics) == len(found) + 10  # how training went, and guesses
    assert ("relevant_mass" in found) == (model != "multi_view")
    assert ("hybrid_view.1" in found) == (model == "multi_view" and normalizer == "hybrid")
    assert ("test_nll/mc_dropout" in found) == (guide not in ALIGNED)
    assert ("test_nll/attention" in found) == (guide not in (*ALIGNED, "soft"))


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


def test_the_mass_on_relevant_cells(weibull_run):
    metrics, (trained, questions) = read_metrics(weibull_run), load_trained(weibull_run)
    data, shares = questions["test"], []
    for batch in trained.answered(data).batches(trained.device, size=1):
        (place,) = batch.places.tolist()
        weights = looked_at(trained, batch)[0, 0]
        shares.append(sum(weights[cell].item() for cell in range(9) if data.relevant[place, cell]))
    assert metrics["relevant_mass"] == pytest.approx(sum(shares) / len(data), rel=1e-4)
    regions = data.regions.mask[data.photographs]
    assert metrics["uniform_mass"] == pytest.approx((data.relevant.sum(1) / regions.sum(1)).mean().item())


def test_scores_by_hand():
    data = few_digits(1)["test"].pick(range(3))
    words = Words(["is"], ["x", *(answer for votes in data.answers for answer in votes)])
    truth = [words.answer_ids[answer] for votes in data.answers for answer in votes]
    probabilities = torch.full((3, len(words.answers)), 0.1)
    probabilities[[0, 1], truth[:2]] = 0.9
    probabilities[2, 0] = 0.9
    assert accuracies(probabilities, Answered(data, words, "single")).tolist() == [1, 1, 0]
    # two samples that disagree completely, and two that agree
    logits = torch.tensor([[[50.0, 0.0], [0.0, 0.0]], [[0.0, 50.0], [0.0, 0.0]]])
    uncertain = Outputs(logits, torch.tensor([0.2, 0.0])).uncertainties()
    assert uncertain["entropy"].tolist() == pytest.approx([math.log(2)] * 2)
    assert uncertain["mutual_information"].tolist() == pytest.approx([math.log(2), 0], abs=1e-6)
    assert uncertain["attention_variance"].tolist() == pytest.approx([0.2, 0.0])
    # of the six pairs of a wrong and a right answer the wrong one is the less sure in five
    wrong = torch.tensor([0, 1, 0, 0, 1])
    assert auroc(torch.tensor([1.0, 30.0, 40.0, 2.0, 50.0]), wrong) == pytest.approx(5 / 6)
    assert auroc(torch.ones(5), wrong) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"guide": "marginal"}, "--model bottom_up takes all"),
        ({"model": "bottom_up", "guide": "dirichlet"}, "cannot predict"),
        ({"model": "multi_view", "dataset": "daquar"}, "daquar has one view; take digits or another model"),
    ],
)
def test_what_does_not_go_together(options, message, tmp_path):
    with pytest.raises(UserError, match=message):
        run_tiny(tmp_path, **options)


def test_a_share_of_the_questions_is_the_seeds():
    whole = load_questions(VQAConfig())["train"]
    shares = [load_questions(VQAConfig(train_share=0.25, seed=seed)) for seed in (0, 1)]
    assert [len(found["train"]) for found in shares] == [round(len(whole) / 4)] * 2
    assert shares[0]["train"].questions != shares[1]["train"].questions
    assert len(shares[0]["test"]) == len(few_digits(1)["test"])


def test_photographs_by_option(tmp_path, monkeypatch):
    write_easy_vqa(tmp_path)
    options = {"dataset": "easy_vqa", "data_root": tmp_path, "progress": False}
    data = load_questions(VQAConfig(**options, encoder_epochs=1, questions=4, test_questions=3))
    assert {part: len(found) for part, found in data.items()} == {"train": 4, "val": 3, "test": 3}
    batch = next(Answered(data["train"], Words.of(data["train"], answers=9), "single").batches(torch.device("cpu")))
    assert batch.regions.shape == (4, 16, 264)
    assert batch.regions.dtype == torch.float32
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.delitem(sys.modules, "torchvision.models", raising=False)
    with pytest.raises(UserError, match="torchvision cannot be imported"):
        load_questions(VQAConfig(**options, encoder="mobilenet_v2"))


def test_blind_models_see_blank_regions(tmp_path):
    write_vqa_v2(tmp_path)
    options = {"dataset": "vqa_v2", "data_root": tmp_path, "progress": False}
    seen, blind = (load_questions(VQAConfig(**options, blind=blind))["train"] for blind in (False, True))
    assert seen.regions.features.any()
    assert not blind.regions.features.any()
    assert blind.regions.features.shape == seen.regions.features.shape
    assert torch.equal(blind.regions.mask, seen.regions.mask)
    assert blind.questions == seen.questions
    assert blind.regions.spread == 0 < seen.regions.spread


@pytest.mark.parametrize("content", ['{"words": []}', '{"words": ["a"], "answers": [1]}'])
def test_a_damaged_vocabulary(content, tmp_path):
    (tmp_path / "vocabulary.json").write_text(content)
    with pytest.raises(UserError, match=r"vocabulary\.json"):
        load_words(tmp_path)
