"""Fine-tuning on GLUE end to end on a tiny random BERT: every guide, what is learned, bad input."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from experiments.datasets.text.glue import load_glue
from experiments.files import UserError
from experiments.finetune.config import GlueConfig
from experiments.finetune.data import EncodedPairs, PairBatch, load_texts
from experiments.finetune.evaluation import definitions, outputs_of
from experiments.finetune.model import PairModel, attention_weights, build
from experiments.finetune.train import GlueTask
from experiments.run import load_trained, run
from tests.experiments.finetune.tiny_glue import write_bert, write_glue

TASK = GlueTask()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Folder of the data sets, and that of the pretrained model."""
    root = tmp_path_factory.mktemp("data")
    return write_glue(root), write_bert(root / "bert")


def tiny_config(data, out, **options):
    root, model = data
    shared = {"task": "rte", "model": str(model), "data_root": root, "out": out, "length": 20, "batch_size": 8}
    return GlueConfig(**(shared | {"max_epochs": 2, "num_samples": 3, "progress": False} | options))


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    """A finished run with a contextual prior."""
    config = tiny_config(data, tmp_path_factory.mktemp("runs") / "run", guide="weibull", concentration=1.0)
    run(TASK, config)
    return config


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"guide": "lognormal", "prior": "fixed", "precision": "bf16-mixed", "kl_warmup": 0.0},
        {"guide": "weibull", "task": "stsb", "label_noise": 0.25, "pooling": "pair"},
        {"task": "cola", "pooling": "mean"},
        {"task": "mrpc", "label_noise": 0.5, "train_share": 0.5, "keep_weights": False},
        {"task": "sst2", "out_of_domain": ("cola", "rte"), "max_epochs": 1},
    ],
    ids=lambda options: "-".join(map(str, options.values())) or "soft",
)
def test_training(data, tmp_path, options):
    config = tiny_config(data, tmp_path / "run", **options)
    metrics = run(TASK, config)
    assert all(math.isfinite(value) for value in metrics.values())
    saved = json.loads((config.out / "metrics.json").read_text())
    assert saved["definitions"] == definitions(metrics)
    assert (config.out / "checkpoints" / "best.safetensors").exists() == config.keep_weights
    assert not (config.out / "checkpoints" / "last.ckpt").exists()
    kind = "mc_dropout" if config.guide == "soft" else "attention"
    with np.load(config.out / "predictions.npz", allow_pickle=False) as arrays:
        outputs = 1 if config.task == "stsb" else 2
        assert arrays[f"{kind}_test"].shape == (3, 16, outputs)
        assert arrays["mean_val"].shape[0] == 1
        assert len(arrays["labels_test"]) == 16
        assert arrays[f"{kind}_test"].std(0).max() > 0
    if config.task == "stsb":
        assert {"test_mean_pearson", "test_mean_spearman", "test_mean_scaled_nll", "mean_scale"} <= metrics.keys()
    else:
        assert 0 <= metrics[f"test_{kind}_risk_80"] <= 1
    for name in config.out_of_domain:
        assert load_texts(config)[name].second is None  # as of SST-2 itself
        assert 0 <= metrics[f"auroc_mc_dropout_{name}_mutual_information"] <= 1
    assert metrics["noisy_labels"] == round(config.label_noise * metrics["train_examples"])
    assert run(TASK, replace(config, resume=True)) == pytest.approx(metrics)


def test_prior_networks_train_and_the_guide_is_stochastic(finished, data):
    before, after = build(finished), load_trained(TASK, finished)
    old, new = before.module.state_dict(), after.module.state_dict()
    assert old.keys() == new.keys()
    priors = [name for name in new if "latent_attention.prior" in name]
    assert priors
    assert all(not torch.equal(old[name], new[name]) for name in priors if name.endswith("weight"))


def test_the_kl_of_long_texts_does_not_drown_their_labels(finished):
    """Of one weight it grows with the logarithm of the length; summed over all, it would with the square as well."""
    parts = []
    for length in (8, 32):
        module = build(replace(finished, kl_weight=0.01, kl_warmup=0.0), lengths=[length] * 4).module
        inputs = {"input_ids": torch.randint(5, 20, (4, length)), "attention_mask": torch.ones(4, length).long()}
        module.objective(*module.arguments(PairBatch(inputs, torch.tensor([0, 1, 1, 0]))))
        kl = sum(module.objective.elbo.kl_record.values())
        parts.append(float(module.objective.elbo.current_kl_weight() * kl / 4))
        weights = 4 * attention_weights(module.objective.model.network.config, [length])
        assert parts[-1] == pytest.approx(0.01 * float(kl) / weights)
    assert 1 < parts[1] / parts[0] < 3


def test_padding_and_the_order_of_examples_do_not_matter(finished):
    trained = load_trained(TASK, finished)
    text = load_glue("rte", data_root=finished.data_root)["test"]
    together = outputs_of(trained, EncodedPairs(text, trained.tokenizer, length=20), "mean", num_samples=1)[0]
    for place in (0, 5):
        one = EncodedPairs(text.select(torch.tensor([place, place])), trained.tokenizer, length=20)
        alone = outputs_of(trained, one, "mean", num_samples=1)[0, 0]
        torch.testing.assert_close(alone, together[place], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("pooling", ["mean", "pair"])
def test_what_an_example_is_read_from(data, pooling):
    network = AutoModelForSequenceClassification.from_pretrained(data[1]).eval()
    model = PairModel(network, pooling).eval()
    inputs = {
        "input_ids": torch.tensor([[2, 5, 6, 3, 7, 3], [2, 8, 3, 0, 0, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]]),
        "token_type_ids": torch.tensor([[0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 0]]),
    }
    states = network.base_model(**inputs).last_hidden_state
    pair, single = states[0], states[1, :3].mean(0)
    if pooling == "mean":
        expected = torch.stack([pair.mean(0), single])
    else:
        u, v = pair[:4].mean(0), pair[4:].mean(0)
        expected = torch.stack([torch.cat([u, v, (u - v).abs()]), torch.cat([single, 0 * single, single.abs()])])
    torch.testing.assert_close(model(inputs), model.head(expected))


def test_the_train_part_is_learned(data, tmp_path):
    """The first word tells the class, which the model finds out; chance is a half, with a standard error of .08."""
    root = write_glue(tmp_path / "more", train=120, test=40)
    config = tiny_config((root, data[1]), tmp_path / "run", task="sst2", learning_rate=1e-2, max_epochs=5)
    assert run(TASK, config)["test_mean_accuracy"] > 0.8


# bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "no/such/folder"}, "its tokenizer cannot be loaded"),
        ({"length": 500}, "length is 500, and model .* has 40 positions; pass --length 40"),
        ({"task": "stsb", "out_of_domain": ("cola",)}, "expected a task with classes"),
        ({"out_of_domain": ("cola",)}, "cola, which has no pairs"),
        ({"task": "sst2", "out_of_domain": ("sst2",)}, "expected other tasks"),
    ],
)
def test_bad_options(data, tmp_path, options, message):
    with pytest.raises(UserError, match=message):
        run(TASK, tiny_config(data, tmp_path / "run", **options))


def changed(name, **options):
    """A change of a JSON file in the folder of a model."""

    def change(folder):
        path = folder / name
        path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | options))

    return change


def shards_elsewhere(folder):
    (folder / "model.safetensors").unlink()
    changed("model.safetensors.index.json", weight_map={"a": "/dev/zero"})(folder)


SEQUENCE = changed("tokenizer_config.json", model_input_names=["input_ids", "attention_mask"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: write_bert(folder, vocabulary=10), r"tokenizer has 24 tokens and its embedding 10"),
        (SEQUENCE, "pooling is pair, but the tokenizer of .* does not mark the second sentence"),
        (lambda folder: write_bert(folder, safe=False), "pickled weights are not read: save them again"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"damaged"), "its model cannot be loaded"),
        (changed("tokenizer_config.json", tokenizer_class="RagTokenizer"), "its tokenizer has no padding token"),
        (changed("config.json", num_hidden_layers=3), r"16 weights .* are missing \(bert\.encoder\.layer\.2"),
        (shards_elsewhere, "its model cannot be loaded .* names the file '/dev/zero'"),
    ],
    ids=["vocabulary", "one sequence", "pickled", "damaged", "two tokenizers", "layers", "shards"],
)
def test_bad_models(data, tmp_path, change, message):
    folder = write_bert(tmp_path / "bert")
    change(folder)
    with pytest.raises(UserError, match=message):
        run(TASK, tiny_config((data[0], folder), tmp_path / "run", pooling="pair"))
