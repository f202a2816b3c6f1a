"""The comparison of kinds of uncertainty, on a tiny random BERT: every row, resuming, and its scores."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn.metrics import roc_auc_score
from torch.distributions import MultivariateNormal
from transformers import (
    DistilBertConfig,
    DistilBertForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from experiments.files import UserError
from experiments.options import is_whole
from experiments.uncertainty import compare as comparison
from experiments.uncertainty.compare import (
    BASELINE,
    METHODS,
    chosen_methods,
    compare,
    kinds_of,
    network_configs,
    predicted,
    predictions_of,
    predictor,
)
from experiments.uncertainty.config import CompareConfig, PairConfig
from experiments.uncertainty.last_layer import LastLayerPosterior, SpanLayerPosterior
from experiments.uncertainty.networks import (
    LowerLayersOnce,
    NetworkTask,
    PairNetworkTask,
    load_parts,
    logits_of,
    nll,
    some,
)
from experiments.uncertainty.scores import METRICS, auroc, predict_from, resampled_scores, score_items
from experiments.uncertainty.spans import load_windows
from pyro_attention import LaplacePosterior
from pyro_attention.analysis import classification_scores, decompose_uncertainty, selective_accuracy
from tests.experiments.finetune.tiny_glue import WORDS, write_bert, write_glue
from tests.experiments.finetune.tiny_squad import write_squad

SIZES = {"max_epochs": 1, "train_items": 16, "val_items": 3, "test_items": 8}
TASKS = ("sst2", "rte", "squad")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("compare")
    write_bert(root / "bert", positions=192)
    write_glue(root)
    write_squad(root)
    for part, count in (("headline-train/gigaword_train_sample", 4), ("headline-train/gigaword_valid_sample", 4),
                        ("headline/gigaword", 12)):  # fmt: skip
        path = root / f"{part}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        texts = [f"{part[-8:]} {number}" for number in range(count)]
        headlines = [f"rain over town {chr(97 + number)}" for number in range(count)]
        headlines[0] += " 7"
        path.write_text("".join(
            json.dumps({"text": text, "summaries": [headline]}) + "\n"
            for text, headline in zip(texts, headlines, strict=True)
        ))  # fmt: skip
    return root


def make(data, out, **changes):
    options = {"tasks": TASKS, "seeds": 2, "members": 3, "resamples": 10, "workers": 1, "train_questions": 16} | SIZES
    return CompareConfig(
        model=str(data / "bert"), data_root=data, out=out, results=out / "results", progress=False, device="cpu",
        **options | changes,
    )  # fmt: skip


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    config = make(data, tmp_path_factory.mktemp("compared"))
    return config, compare(config)


@pytest.mark.slow
def test_every_row_is_scored_on_every_task(finished):
    config, metrics = finished
    for task in config.tasks:
        for row, method in chosen_methods(config, task).items():
            names = [name for name in METRICS if f"{task}/{row}/{name}" in metrics]
            drawn = method.ensemble or method.passes == 0 or method.kind == "last_layer"
            assert names == list(METRICS if drawn else METRICS[:-1]), row
            assert all(np.isfinite(metrics[f"{task}/{row}/{name}"]) for name in names)
    report = json.loads((config.results / "uncertainty-bert.json").read_text())
    assert report["command"].startswith("python -m experiments.uncertainty compare FOLDER --tasks")
    assert {row["labels"]["row"] for row in report["rows"] if row["part"] == 0} == set(METHODS)
    rows = [len(chosen_methods(config, task)) - 1 for task in config.tasks]
    assert rows == [10, 10, 6]
    assert f"number, {sum(6 * count - 1 for count in rows)}," in json.dumps(report)  # temperature: no draws
    assert not list(config.out.rglob("*.safetensors"))


@pytest.mark.slow
def test_rows_are_what_their_names_say(finished):
    config, metrics = finished
    folder = config.out / "rte"
    soft = [predicted(folder / "soft" / str(seed)) for seed in range(3)]
    mean = np.concatenate([softmax(arrays["mean_test"], -1) for arrays in soft]).mean(0)
    labels = torch.from_numpy(soft[0]["labels_test"])
    scores = classification_scores(torch.from_numpy(mean), labels)
    assert metrics["rte/ensemble/NLL"] == pytest.approx(scores.nll, rel=1e-5)
    assert metrics["rte/ensemble/accuracy"] == pytest.approx(scores.accuracy)
    single = [classification_scores(torch.from_numpy(softmax(arrays["mean_test"][0], -1)), labels) for arrays in soft]
    assert metrics[f"rte/{BASELINE}/NLL"] == pytest.approx(np.mean([score.nll for score in single[:2]]), rel=1e-5)
    for kind, draws in (("mc_dropout", 3), ("width", 3), ("score_network", 3), ("last_layer", 100)):
        logits = soft[0][f"{kind}_test"]
        assert logits.shape == (draws, 8, 2), kind
        assert np.ptp(logits, axis=0).max() > 0, kind
    predict = predictor("rte", config, config.out)
    [cold], [hot] = (predictions_of(METHODS[row], soft[:1], predict) for row in (BASELINE, "temperature"))
    assert (hot.right == cold.right).all()
    assert (hot.confidence != cold.confidence).all()
    assert {key.split("_test")[0] for key in soft[2] if key.endswith("_test")} == {"mean", "labels"}  # ensemble alone


@pytest.mark.slow
def test_it_goes_on_and_takes_more_seeds(finished, monkeypatch):
    config, metrics = finished
    trained = []
    monkeypatch.setattr(NetworkTask, "fit", lambda *_: trained.append(1))
    assert compare(replace(config, resume=True)) == pytest.approx(metrics)
    assert not trained
    with pytest.raises(UserError, match="train_items"):
        compare(replace(config, resume=True, train_items=8))
    few = compare(replace(config, resume=True, rows=("MC dropout",), tasks=("sst2",)))
    assert few == pytest.approx({name: value for name, value in metrics.items() if name in few})
    assert {name.split("/")[1] for name in few} == {BASELINE, "MC dropout"}
    with pytest.raises(UserError, match=r"rows 'MC dropot': .*MC dropout"):
        compare(replace(config, resume=True, rows=("MC dropot",)))


def test_adapters_train_adapters_and_output_layer_alone(data, tmp_path):
    config = make(data, tmp_path)
    for key, options in network_configs(config, tmp_path).items():
        if key[1:] != ("lora", 0):
            continue
        model = PairNetworkTask().network(options).module.objective.model
        names = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        assert any("lora_A" in name for name in names)
        rest = {name for name in names if "lora_" not in name}
        assert rest
        assert all("classifier" in name or "pooler" in name or name.startswith("head") for name in rest)


def test_cola_has_a_number_of_sentences_of_its_own(data, tmp_path):
    config = make(data, tmp_path, tasks=("sst2", "cola", "squad"), train_items=5, cola_items=6, train_questions=7)
    networks = network_configs(config, tmp_path)
    assert {key[0]: network.train_items for key, network in networks.items()} == {"sst2": 5, "cola": 6, "squad": 7}


def test_the_same_examples_for_every_seed(data):
    options = {"model": str(data / "bert"), "data_root": data, "task": "sst2", "domain": "headlines", **SIZES}
    first, second = (load_parts(PairConfig(**options, seed=seed)) for seed in (0, 1))
    for part, size in (("train", 16), ("val", 3), ("test", 8), ("domain", 8)):
        assert first[part].first == second[part].first
        assert len(first[part]) == size
    assert not any("#" in headline for headline in first["domain"].first)
    assert some(first["test"], 99).first == first["test"].first


def test_pairs_need_pairs_out_of_domain(data):
    config = PairConfig(model=str(data / "bert"), data_root=data, task="rte", domain="headlines")
    with pytest.raises(UserError, match="domain is headlines, which has single sentences, and rte has pairs"):
        load_parts(config)


def test_models_without_the_layers_of_bert(data):
    config = PairConfig(model="distil", data_root=data, task="sst2")
    sizes = {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 16, "vocab_size": 30}
    network = DistilBertForSequenceClassification(DistilBertConfig(**sizes))
    with pytest.raises(UserError, match=r"model distil is a DistilBert.*expected one with the layers of BERT"):
        PairNetworkTask().wrap(config, network)


def test_an_output_layer_that_is_no_matrix_is_refused_before_the_training(data):
    config = PairConfig(model="roberta", data_root=data, task="sst2", pooling="head")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    network = RobertaForSequenceClassification(RobertaConfig(vocab_size=30, **sizes))
    with pytest.raises(UserError, match="output layer of model roberta is a RobertaClassificationHead, expected a Lin"):
        PairNetworkTask().wrap(config, network)


def test_the_output_layer_has_the_posterior_of_its_hessian():
    torch.manual_seed(0)
    layer, features = torch.nn.Linear(3, 2), torch.randn(40, 3)

    def loss(weights):
        logits = torch.cat([features.double(), torch.ones(40, 1)], 1) @ weights.view(2, 4).T
        labels = logits.detach().argmax(-1)  # the Hessian of the cross entropy does not depend on labels
        return torch.nn.functional.cross_entropy(logits, labels, reduction="sum")

    posterior = LastLayerPosterior(layer, features)
    weights = posterior.mean.flatten()
    hessian = torch.autograd.functional.hessian(loss, weights)
    torch.testing.assert_close(posterior.hessian, hessian)
    covariance = (hessian + torch.eye(8) / 0.5**2).inverse()
    exact = MultivariateNormal(weights, covariance).sample((20000,)).view(-1, 2, 4)
    point = torch.randn(1, 3)
    expected = torch.einsum("d,scd->sc", torch.cat([point[0].double(), torch.ones(1)]), exact)
    drawn = posterior.logits(point, prior_scale=0.5, num_samples=20000)[:, 0].double()
    error = expected.std(0) / np.sqrt(20000)
    assert ((drawn.mean(0) - expected.mean(0)).abs() < 6 * error).all()
    torch.testing.assert_close(drawn.T.cov(), expected.T.cov(), rtol=0.05, atol=0.01)


def test_the_output_layer_has_the_laplace_posterior_of_the_library():
    torch.manual_seed(0)
    layer, features, labels = torch.nn.Linear(3, 2), torch.randn(40, 3), torch.randint(2, (40,))

    def loss(features, labels):
        return torch.nn.functional.cross_entropy(layer(features), labels, reduction="sum")

    expected = LaplacePosterior(layer, ["weight", "bias"], loss, [(features, labels)], prior_scale=0.5).covariance
    hessian = LastLayerPosterior(layer, features).hessian
    order = [0, 1, 2, 4, 5, 6, 3, 7]  # weights and bias of a class stand together here
    covariance = (hessian + torch.eye(8) / 0.5**2).inverse()[order][:, order]
    torch.testing.assert_close(covariance, expected.double(), rtol=1e-4, atol=1e-6)


def test_scores_are_those_of_the_library():
    generator = np.random.default_rng(0)
    test, domain = (softmax(generator.normal(size=(5, size, 3)), -1) for size in (60, 40))
    labels = generator.integers(3, size=60)
    scores = score_items(predict_from(test, domain, labels), np.arange(60), np.arange(40))
    samples = torch.from_numpy(test)
    expected = classification_scores(samples, torch.from_numpy(labels))
    assert [scores[name] for name in ("accuracy", "NLL", "ECE")] == pytest.approx(
        [expected.accuracy, expected.nll, expected.ece], rel=1e-5
    )
    mean = samples.mean(0)
    right = mean.argmax(-1) == torch.from_numpy(labels)
    assert scores["risk-coverage area"] == pytest.approx(selective_accuracy(mean.amax(-1), right).area, rel=1e-5)
    parts = [decompose_uncertainty(torch.from_numpy(part)) for part in (test, domain)]
    truth = [0] * 60 + [1] * 40
    for name, of in (("AUROC, entropy", "total"), ("AUROC, mutual information", "mutual_information")):
        values = torch.cat([getattr(part, of) for part in parts])
        assert scores[name] == pytest.approx(roc_auc_score(truth, values))
    assert auroc(np.zeros(3), np.zeros(2)) == 0.5


def test_a_row_has_no_difference_to_itself_and_intervals_are_shared():
    generator = np.random.default_rng(1)
    labels = generator.integers(2, size=80)
    rows = [
        predict_from(*(softmax(generator.normal(size=(1, size, 2)), -1) for size in (80, 80)), labels) for _ in range(3)
    ]
    scores = resampled_scores({"a": rows[:2], "b": rows[:2], "c": rows[2:]}, resamples=40)
    same = comparison.difference(scores["b"], scores["a"], "NLL", "sst2")
    assert (same.mean, same.low, same.high, same.bold) == (0.0, 0.0, 0.0, False)
    other = comparison.difference(scores["c"], scores["a"], "NLL", "sst2")
    assert other.low < other.mean < other.high
    cell = comparison.estimate(scores["a"], "accuracy")
    assert len(cell.values) == 2
    assert cell.low < cell.mean < cell.high


def test_a_difference_is_clear_only_where_all_seeds_agree():
    labels = np.zeros(60, dtype=np.int64)
    certain = np.tile([[0.9, 0.1]], (60, 1))
    worse, better = np.tile([[0.6, 0.4]], (60, 1)), np.tile([[0.99, 0.01]], (60, 1))

    def row(*means):
        return [predict_from(mean[None], mean[None], labels) for mean in means]

    scores = resampled_scores(
        {"soft": row(certain, certain), "mixed": row(worse, better), "worse": row(worse, worse)}, resamples=20
    )
    assert comparison.difference(scores["worse"], scores["soft"], "NLL", "sst2").bold
    mixed = comparison.difference(scores["mixed"], scores["soft"], "NLL", "sst2")
    assert mixed.low > 0
    assert not mixed.bold


@pytest.mark.slow
def test_questions_without_an_answer(finished):
    """Scores of SQuAD by hand: exact match of tokens, and how often a question without an answer is less sure."""
    config, metrics = finished
    arrays = predicted(config.out / "squad" / "soft" / "0")
    predict = predictor("squad", config, config.out)
    [prediction] = predictions_of(METHODS[BASELINE], [arrays], predict)
    probabilities, domain = (
        torch.from_numpy(arrays[f"mean_{part}"][0]).double().softmax(-1) for part in ("test", "domain")
    )
    entropy, foreign = (torch.special.entr(part).sum((-2, -1)) for part in (probabilities, domain))
    truth = torch.from_numpy(arrays["labels_test"])
    chosen = probabilities.gather(-1, truth[..., None])[..., 0]
    assert prediction.log_prob == pytest.approx(chosen.log().sum(-1).numpy(), rel=1e-5)
    assert prediction.confidence.max() <= 1
    scores = score_items(prediction, np.arange(8), np.arange(8))
    expected = roc_auc_score([0] * 8 + [1] * 8, torch.cat([entropy, foreign]))
    assert scores["AUROC, entropy"] == pytest.approx(expected)
    assert 0 <= metrics["squad/Laplace, output layer/AUROC, mutual information"] <= 1


def test_one_window_a_question(data):
    config = next(
        options for key, options in network_configs(make(data, data / "none", tasks=("squad",)), data).items()
    )
    windows = load_windows(config)
    for part, count in (("train", 16), ("val", 3), ("test", 8), ("domain", 8)):
        assert [window.question for window in windows[part].windows] == [*range(count)]
    assert all(not question.answers for question in windows["domain"].questions)
    assert all(window.first > window.nothing for window in windows["test"].windows)
    assert not {question.id for question in windows["test"].questions} & {
        question.id for question in windows["train"].questions
    }
    content = json.loads((data / "squad" / "train-v1.1-tiny.json").read_text())
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            paragraph["context"] += 20 * f" {WORDS[-1]}"
    long = data / "long.json"
    long.write_text(json.dumps(content))
    with pytest.raises(UserError, match="no question of the train part has at most 20 tokens with its paragraph"):
        load_windows(replace(config, length=20, stride=5, train_file=long))


def test_networks_predict_what_rows_take():
    everything = ("mean", "mc_dropout", "last_layer", "score_network", "width")
    assert kinds_of("soft", task="rte", member=False) == everything
    assert kinds_of("soft", task="squad", member=False) == ("mean", "mc_dropout", "last_layer", "width")
    assert kinds_of("soft", task="rte", member=True) == ("mean",)
    assert kinds_of("lora", task="rte", member=True) == ("mean",)
    assert kinds_of("weibull", task="squad", member=False) == ("attention",)


@pytest.mark.parametrize("name", ["evidence", "soft"])
@pytest.mark.parametrize("task", ["sst2", "rte"])
def test_lower_layers_once_change_no_number(data, tmp_path, name, task):
    options = network_configs(make(data, tmp_path, tasks=(task,)), tmp_path)[task, name, 0]
    trainer = PairNetworkTask()
    trained = trainer.network(options)
    trained.module.eval()
    model, batches = (
        trained.module.objective.model,
        [*trainer.load(options)["test"].batches(torch.device("cpu"), sentences=3)],
    )
    kind = "attention" if name == "evidence" else "mean"
    expected = [logits_of(trained, batches, kind) for _ in range(2)]
    torch.testing.assert_close(*expected, rtol=0, atol=0)
    layers = model.network.base_model.encoder.layer
    sizes = []
    hook = layers[0].register_forward_hook(lambda _, given, __: sizes.append(len(given[0])))
    with LowerLayersOnce(model):
        found = [logits_of(trained, batches, kind) for _ in range(2)]
    hook.remove()
    for logits in found:
        torch.testing.assert_close(logits, expected[0], rtol=0, atol=0)
    assert sum(sizes) < 2 * 8 * (3 if name == "evidence" else 1)  # the lower layers had fewer texts
    torch.testing.assert_close(logits_of(trained, batches, kind), expected[0], rtol=0, atol=0)  # all as before


def test_the_loss_of_spans_is_that_of_both_tokens():
    logits, truth = torch.randn(1, 5, 2, 7), torch.randint(7, (5, 2))
    expected = 2 * torch.nn.functional.cross_entropy(logits[0].mT, truth)
    assert nll(logits, truth) == pytest.approx(expected.item(), rel=1e-5)
    classes = torch.randint(7, (5,))
    expected = torch.nn.functional.cross_entropy(logits[0, :, 0], classes)
    assert nll(logits[:, :, 0], classes) == pytest.approx(expected.item(), rel=1e-5)


def test_the_layer_of_spans_has_the_posterior_of_its_hessian():
    torch.manual_seed(0)
    layer, features = torch.nn.Linear(3, 2), torch.randn(30, 6, 3)
    allowed = torch.rand(30, 6) < 0.7
    allowed[:, 0] = True

    def loss(weights):
        logits = torch.einsum("btd,kd->bkt", features.double(), weights.view(2, 3)).masked_fill(~allowed[:, None], -1e9)
        labels = logits.detach().argmax(-1)  # the Hessian of the cross entropy does not depend on labels
        return torch.nn.functional.cross_entropy(logits.mT, labels, reduction="sum")

    posterior = SpanLayerPosterior(layer, [(features[:10], allowed[:10]), (features[10:], allowed[10:])])
    hessian = torch.autograd.functional.hessian(loss, layer.weight.detach().double().flatten())
    torch.testing.assert_close(torch.block_diag(*posterior.hessian), hessian, rtol=1e-4, atol=1e-5)
    draws = posterior.sample(prior_scale=0.5, num_samples=20000).double()
    covariance = (hessian + torch.eye(6) / 0.5**2).inverse()
    torch.testing.assert_close(draws.flatten(1).T.cov(), covariance, rtol=0.05, atol=0.003)
    torch.testing.assert_close(draws.mean(0), layer.weight.detach().double(), rtol=0, atol=0.02)


def test_a_part_of_the_study_is_not_published(data):
    config = CompareConfig(model=str(data / "bert"))
    assert is_whole(replace(config, workers=1, out=data / "out", resume=True))
    for change in ({"seeds": 2}, {"tasks": ("sst2",)}, {"rows": ("ensemble",)}, {"train_items": 10}):
        assert not is_whole(replace(config, **change))
