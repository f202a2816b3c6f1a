"""Pretraining end to end on tiny sizes, what fine-tuning begins with, and missing data."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import nll_loss

from experiments.data.text import masked_text
from experiments.files import UserError
from experiments.folder import read_history
from experiments.normalizer_report import BINS, hybrid_figure, hybrid_shares, key_counts, mass_counts
from experiments.pretrain.config import PretrainConfig
from experiments.pretrain.task import (
    PretrainTask,
    build_classifier,
    hidden_batches,
    key_masses,
    token_scores,
)
from experiments.pretrain.texts import hidden_pieces
from experiments.run import load_trained
from guides.schemes import build_normalizer
from pyro_attention import Dense, predict

pytestmark = pytest.mark.usefixtures("tiny_corpus")
TASK = PretrainTask()
TINY = {"vocabulary": 270, "width": 8, "heads": 2, "layers": 2, "batch_size": 8, "max_epochs": 1, "num_samples": 2}


def tiny_config(out, **options):
    return PretrainConfig(**(TINY | {"progress": False, "out": out} | options))


@pytest.fixture(scope="module", params=[("doubly_normalized", "soft"), ("hybrid", "weibull"), ("sinkhorn", "soft")])
def pretrained(request, tiny_corpus, tmp_path_factory):
    """Configuration and metrics of a finished run."""
    normalizer, guide = request.param
    config = tiny_config(tmp_path_factory.mktemp("runs") / "run", normalizer=normalizer, guide=guide)
    return config, TASK.run(config)


def test_pretraining(pretrained):
    config, metrics = pretrained
    assert all(math.isfinite(value) for value in metrics.values())
    assert metrics["updates"] == 3
    assert sum(name.startswith("hybrid_layers.") for name in metrics) == (4 if config.normalizer == "hybrid" else 0)
    trained = load_trained(TASK, config)
    assert token_scores(trained)["test_ppl"] == pytest.approx(metrics["test_ppl"], rel=1e-5)
    if config.guide == "soft":  # the perplexity is that of all hidden pieces together
        batches, likelihood = list(hidden_batches(trained)), trained.model.likelihood
        logits = [likelihood(predict(trained.guide, *one, num_samples=1, noise="none").mean).logits for one in batches]
        losses = [nll_loss(one, batch.target, reduction="sum") for one, batch in zip(logits, batches, strict=True)]
        mean = sum(losses) / sum(len(batch.target) for batch in batches)
        assert metrics["test_ppl"] == pytest.approx(mean.exp().item(), rel=1e-4)
        # what is trained is the loss of a hidden piece
        loss = trained.module.eval().objective(*batches[0]) / trained.module.observations(batches[0])
        assert loss.item() == pytest.approx(losses[0].item() / len(batches[0].target), rel=1e-4)


def test_key_masses(pretrained):
    config, metrics = pretrained
    trained = load_trained(TASK, config)
    masses, texts = key_masses(trained), masked_text.load_english("toy")["test"]
    assert list(masses) == ["layers.0", "layers.1"]
    pieces = [min(len(trained.vocabulary.encode(text)) + 2, config.length) for text in texts]
    for mass in masses.values():
        assert mass.shape == (2, sum(pieces))
        # every query gives away a mass of one
        assert mass.sum(1).tolist() == pytest.approx([sum(pieces)] * 2, rel=1e-4)
        assert config.normalizer != "doubly_normalized" or mass.min() > 1 / max(pieces) - 1e-6
    assert metrics["explained_away"] == 0
    counts = mass_counts([mass.numpy() for mass in masses.values()])
    assert counts.tolist() == key_counts(config.out).tolist()
    assert counts.sum() == 4 * sum(pieces)
    assert counts[BINS[1:] < math.log(1 / max(pieces))].sum() == 0 or config.normalizer == "hybrid"
    smallest = min(mass.min().item() for mass in masses.values())
    assert smallest <= metrics["key_mass_1_percent"] < 1


def test_sweeps(tmp_path):
    config = tiny_config(tmp_path / "run", normalizer="sinkhorn", guide="soft", sweeps=7)
    trained = TASK.build(config, tmp_path)
    assert repr(trained.model).count("Sinkhorn(7)") == 2
    # one sweep is doubly normalized attention
    one, doubly = (build_normalizer(name, 2, sweeps=1) for name in ("sinkhorn", "doubly_normalized"))
    scores = torch.randn(2, 4, 5)
    torch.testing.assert_close(one(scores, Dense()), doubly(scores, Dense()))


@pytest.mark.parametrize("pretrained", [("hybrid", "weibull")], indirect=True)
def test_the_share_of_hybrid_attention_is_drawn_by_layer_and_epoch(pretrained, capsys):
    config, metrics = pretrained
    shares = hybrid_shares(read_history(config.out))
    assert list(shares) == ["layers.0", "layers.1"]
    for layer, values in shares.items():
        heads = [metrics[f"hybrid_{layer}_{head}"] for head in (0, 1)]
        assert values == [pytest.approx(sum(heads) / 2, rel=1e-5)]
    TASK.show(config, metrics, config.out)
    said = capsys.readouterr().out
    for name in ("hybrid.png", "key_mass.png"):
        assert (config.out / "figures" / name).read_bytes().startswith(b"\x89PNG")
        assert str(config.out / "figures" / name) in said
    (lines,) = hybrid_figure({"a": [0.5, 0.6], "b": [0.4, 0.3]}).axes
    assert [line.get_ydata().tolist() for line in lines.lines[:2]] == [[0.5, 0.6], [0.4, 0.3]]


@pytest.mark.parametrize("pretrained", [("hybrid", "weibull")], indirect=True)
def test_finetuning_begins_with_the_pretrained_encoder(pretrained):
    start, changes = load_trained(TASK, replace(pretrained[0], finetune_epochs=1)), {}
    expected = start.model.encoder.state_dict()
    for scratch in (False, True):
        state = build_classifier(start, scratch=scratch).model.encoder.state_dict()
        changes[scratch] = max((state[name] - value).abs().max().item() for name, value in expected.items())
    assert changes[False] == 0
    assert changes[True] > 1e-3  # the seed is the same, so this is what pretraining has changed


def test_bad_input(tmp_path):
    with pytest.raises(UserError, match="SST-2"):  # found before the pretraining
        TASK.run(tiny_config(tmp_path / "sst2", finetune_epochs=1, data_root=tmp_path))
    assert not (tmp_path / "sst2").exists()


def test_sentence_order_beside_hidden_pieces(tmp_path):
    """End to end: metrics are those of the pairs, computed again, and what is trained is the sum of both means."""
    config = tiny_config(tmp_path / "run", guide="weibull", sentence_order=True)
    metrics = TASK.run(config)
    assert 0 <= metrics["test_order_accuracy"] <= 1
    assert "val_order_accuracy" in read_history(config.out)[0]
    trained = load_trained(TASK, config)
    scores = token_scores(trained)
    assert scores == pytest.approx({name: metrics[name] for name in scores}, rel=1e-5)
    # the perplexity is that of hidden pieces, without the loss of the order
    val = hidden_pieces(config, trained.vocabulary, TASK.load(config)["val"], seed=config.seed)
    losses, count = 0.0, 0
    for batch in val.batches(trained.device, sentences=config.batch_size):
        features = predict(trained.guide, *batch, num_samples=1, noise="none").mean[: len(batch.target)]
        losses += nll_loss(trained.model.likelihood(features).logits, batch.target, reduction="sum").item()
        count += len(batch.target)
    assert metrics["val_ppl"] == pytest.approx(math.exp(losses / count), rel=1e-4)
    batch = next(hidden_batches(trained))
    assert batch.order.tolist() == next(hidden_batches(trained)).order.tolist()
    module = TASK.build(tiny_config(tmp_path / "soft", guide="soft", sentence_order=True), tmp_path).module.eval()
    loss = module.objective(*batch) / module.observations(batch)
    assert loss.item() == pytest.approx(module.evaluate(batch)["loss"].item(), rel=1e-4)


@pytest.mark.parametrize("order", [True, False])
def test_texts_of_ones_own(tmp_path, order):
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(["A dog runs.\nIt is fast.\nA cat sleeps."] * 40))
    config = tiny_config(tmp_path / "run", guide="soft", dataset="own", text=path, sentence_order=order, sentences=27)
    assert len(TASK.load(config)["train"]) == 9
    assert TASK.run(config)["updates"] == (2 if order else 4)  # of 9 pairs, or 27 sentences, 8 at a time


@pytest.mark.parametrize("alone", [0, 1, 2])
def test_every_part_has_an_order_before_the_training(tmp_path, alone):
    documents = ["one sentence\nand another\n"] * 3
    documents[alone] = "one sentence\n"
    (tmp_path / "mine.txt").write_text("\n".join(documents))
    config = tiny_config(tmp_path / "run", dataset="own", text=tmp_path / "mine.txt", sentence_order=True)
    with pytest.raises(UserError, match=r"(train|val|test): none of its 1 documents has two sentences"):
        TASK.run(config)
    assert not config.out.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "english"}, "english do not follow one another.*--dataset toy, squad or own"),
        ({"dataset": "own"}, "needs --text FILE"),
        ({"dataset": "squad"}, "train-v1.1.json"),
        ({"length": 4}, "length is 4, expected 5"),
    ],
)
def test_bad_input_of_sentence_order(tmp_path, options, message):
    config = tiny_config(tmp_path / "run", **{"data_root": tmp_path, "sentence_order": True} | options)
    with pytest.raises(UserError, match=message):
        TASK.run(config)
